#!/usr/bin/env bash
# torchrun starts one process for every two GPUs; on a CPU, NPROC of them.
source "$(dirname "$0")/lib.sh"
[ "$NUM_GPUS" != 1 ] ||
  skip "a rank needs two GPUs, and there is one; model_parallel runs on one"
[ "$NUM_GPUS" = 0 ] || [ $((NPROC % 2)) = 0 ] ||
  skip "a rank needs two GPUs, and NPROC is $NPROC; give an even NPROC"
[ "$NUM_GPUS" = 0 ] || NPROC=$((NPROC / 2))
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.hybrid_parallel "${OPTIONS[@]}"
