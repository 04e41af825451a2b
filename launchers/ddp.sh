#!/usr/bin/env bash
# torchrun starts one process per GPU, here or on NNODES nodes (NODE_RANK, RDZV_ENDPOINT).
source "$(dirname "$0")/lib.sh"
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.ddp "${OPTIONS[@]}"
