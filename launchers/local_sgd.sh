#!/usr/bin/env bash
# torchrun and local SGD, here or on NNODES nodes.
source "$(dirname "$0")/lib.sh"
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.local_sgd "${OPTIONS[@]}"
