#!/usr/bin/env bash
# One process drives the first NPROC GPUs.
source "$(dirname "$0")/lib.sh"
see_only "$NPROC"
export NPROC=1
attempt "$PYTHON" -m benchmarks.dataparallel "${OPTIONS[@]}"
