#!/usr/bin/env bash
# torchrun starts one process for every two GPUs; on a CPU, NPROC of them.
source "$(dirname "$0")/lib.sh"
[ "$NUM_GPUS" != 1 ] ||
  skip "a rank needs two GPUs, and there is one; model_parallel runs on one"
[ "$NUM_GPUS" = 0 ] || NPROC=$((NPROC > 1 ? NPROC / 2 : 1))
words_of_torchrun
attempt "${TORCHRUN[@]}" -m benchmarks.hybrid_parallel "${OPTIONS[@]}"
