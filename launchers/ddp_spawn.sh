#!/usr/bin/env bash
# torch.multiprocessing starts one process a GPU; the script reads NPROC.
source "$(dirname "$0")/lib.sh"
on_one_node
supervise "${HERE[@]}" -m benchmarks.ddp_spawn "${OPTIONS[@]}"
