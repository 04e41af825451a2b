#!/usr/bin/env bash
# Not a strategy: times the loader alone, training alone, and both together, and adds the verdict to RESULTS.
source "$(dirname "$0")/lib.sh"
exec "$PYTHON" -m scripts.probe.loader --results "$RESULTS" "${OPTIONS[@]}"
