#!/usr/bin/env bash
# One process drives the first NPROC GPUs.
source "$(dirname "$0")/lib.sh"
on_one_node
see_only "$NPROC"
export NPROC=1
supervise "${HERE[@]}" -m benchmarks.dataparallel "${OPTIONS[@]}"
