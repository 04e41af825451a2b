#!/usr/bin/env bash
# torchrun and torch.compile, here or on NNODES nodes.
source "$(dirname "$0")/lib.sh"
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.ddp_compile "${OPTIONS[@]}"
