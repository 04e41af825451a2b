#!/usr/bin/env bash
# A strategy of another repository, EXTERNAL_STRATEGY in the folder STRATEGY_DIR: torchrun starts one process per GPU.
source "$(dirname "$0")/lib.sh"
set_torchrun_command
record "${TORCHRUN[@]}" -m scripts.shared.run_external "$EXTERNAL_STRATEGY" "${OPTIONS[@]}"
