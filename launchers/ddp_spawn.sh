#!/usr/bin/env bash
# torch.multiprocessing starts one process a GPU; the script reads NPROC.
source "$(dirname "$0")/lib.sh"
over_loopback
attempt "$PYTHON" -m benchmarks.ddp_spawn "${OPTIONS[@]}"
