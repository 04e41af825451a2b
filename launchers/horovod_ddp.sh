#!/usr/bin/env bash
# horovodrun starts one process a GPU, here or on HOSTS=a:4,b:4.
source "$(dirname "$0")/lib.sh"
"$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("horovod") is None)' ||
  skip "Horovod is not installed for $PYTHON; run: scripts/setup/install_horovod.sh"
if [ -z "${HOSTS:-}" ]; then
  over_loopback
else
  NPROC=$(awk -F, '{ for (i = 1; i <= NF; i++) { split($i, a, ":"); n += a[2] } print n }' <<<"$HOSTS")
  export NUM_CORES=$NPROC # of other hosts nobody knows better than who lists them
fi
HOROVODRUN=("$PYTHON" -m horovod.runner.launch --gloo --disable-cache -np "$NPROC" -H "${HOSTS:-localhost:$NPROC}")
attempt "${HOROVODRUN[@]}" "$PYTHON" -m benchmarks.horovod_ddp "${OPTIONS[@]}"
