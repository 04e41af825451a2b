#!/usr/bin/env bash
# NVIDIA Apex under torchrun; needs GPUs.
source "$(dirname "$0")/lib.sh"
[ "$NUM_GPUS" -gt 0 ] ||
  skip apex_ddp "apex.amp refuses a model on the CPU; run it where there are NVIDIA GPUs, or use ddp_amp"
torchrun
attempt apex_ddp "${TORCHRUN[@]}" -m benchmarks.apex_ddp "${OPTIONS[@]}"
