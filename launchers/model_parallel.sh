#!/usr/bin/env bash
# One process drives two GPUs, half of the layers on each.
source "$(dirname "$0")/lib.sh"
export NPROC=1
attempt "$PYTHON" -m benchmarks.model_parallel "${OPTIONS[@]}"
