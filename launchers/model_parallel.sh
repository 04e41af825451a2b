#!/usr/bin/env bash
# One process drives two GPUs, half of the layers on each; with NPROC=1 one GPU has both halves.
source "$(dirname "$0")/lib.sh"
over_loopback
see_only "$NPROC"
export NPROC=1
record "${HERE[@]}" -m benchmarks.model_parallel "${OPTIONS[@]}"
