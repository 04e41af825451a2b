#!/usr/bin/env bash
# One process drives two GPUs, half of the layers on each; with NPROC=1 one GPU has both halves.
source "$(dirname "$0")/lib.sh"
on_one_node
see_only "$NPROC"
export NPROC=1
supervise "${HERE[@]}" -m benchmarks.model_parallel "${OPTIONS[@]}"
