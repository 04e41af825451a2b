#!/usr/bin/env bash
# torch.multiprocessing starts one process per GPU; the script reads NPROC.
source "$(dirname "$0")/lib.sh"
over_loopback
record "${HERE[@]}" -m benchmarks.ddp_spawn "${OPTIONS[@]}"
