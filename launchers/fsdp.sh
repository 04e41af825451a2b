#!/usr/bin/env bash
# torchrun and FSDP2, here or on NNODES nodes.
source "$(dirname "$0")/lib.sh"
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.fsdp "${OPTIONS[@]}"
