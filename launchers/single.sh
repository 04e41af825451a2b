#!/usr/bin/env bash
# One process on one device: the baseline.
source "$(dirname "$0")/lib.sh"
export NPROC=1
attempt "$PYTHON" -m benchmarks.single "${OPTIONS[@]}"
