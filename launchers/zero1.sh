#!/usr/bin/env bash
# torchrun and ZeRO's first stage, here or on NNODES nodes.
source "$(dirname "$0")/lib.sh"
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.zero1 "${OPTIONS[@]}"
