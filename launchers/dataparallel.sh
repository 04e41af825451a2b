#!/usr/bin/env bash
# One process drives all GPUs.
source "$(dirname "$0")/lib.sh"
export NPROC=1
attempt dataparallel "$PYTHON" -m benchmarks.dataparallel "${OPTIONS[@]}"
