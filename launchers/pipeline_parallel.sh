#!/usr/bin/env bash
# torchrun starts one process a stage, each on a GPU of its own, here or on NNODES nodes.
source "$(dirname "$0")/lib.sh"
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.pipeline_parallel "${OPTIONS[@]}"
