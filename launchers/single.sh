#!/usr/bin/env bash
# One process on one device: the baseline.
source "$(dirname "$0")/lib.sh"
on_one_node
export NPROC=1
supervise "${HERE[@]}" -m benchmarks.single "${OPTIONS[@]}"
