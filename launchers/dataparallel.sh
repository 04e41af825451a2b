#!/usr/bin/env bash
# One process drives all GPUs that it sees: the first NPROC.
source "$(dirname "$0")/lib.sh"
if [ "$NUM_GPUS" -gt 0 ]; then # it would take all that it sees
  CUDA_VISIBLE_DEVICES=$(cut -d , -f "1-$NPROC" <<<"${CUDA_VISIBLE_DEVICES-$(seq -s , 0 "$((NPROC - 1))")}")
  export CUDA_VISIBLE_DEVICES
fi
export NPROC=1
attempt "$PYTHON" -m benchmarks.dataparallel "${OPTIONS[@]}"
