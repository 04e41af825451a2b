#!/usr/bin/env bash
# torchrun and FSDP2, here or on NNODES nodes.
source "$(dirname "$0")/lib.sh"
words_of_torchrun
attempt "${TORCHRUN[@]}" -m benchmarks.fsdp "${OPTIONS[@]}"
