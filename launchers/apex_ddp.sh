#!/usr/bin/env bash
# NVIDIA Apex under torchrun; needs GPUs.
source "$(dirname "$0")/lib.sh"
[ "$NUM_GPUS" -gt 0 ] ||
  skip "apex.amp refuses a model on the CPU; run it where there are NVIDIA GPUs, or use ddp_amp"
set_torchrun_command
record "${TORCHRUN[@]}" -m benchmarks.apex_ddp "${OPTIONS[@]}"
