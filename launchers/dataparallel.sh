#!/usr/bin/env bash
# One process drives the first NPROC GPUs.
source "$(dirname "$0")/lib.sh"
over_loopback
see_only "$NPROC"
export NPROC=1
record "${HERE[@]}" -m benchmarks.dataparallel "${OPTIONS[@]}"
