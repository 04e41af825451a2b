#!/usr/bin/env bash
# One process on one device: the baseline.
source "$(dirname "$0")/lib.sh"
over_loopback
export NPROC=1
record "${HERE[@]}" -m benchmarks.single "${OPTIONS[@]}"
