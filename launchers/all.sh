#!/usr/bin/env bash
# Not a strategy: starts many runs. `all.sh` is ./bench run; `all.sh sweep` plans its runs by scripts/studies/sweep/plan.py.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || { echo "error: no interpreter at $PYTHON; run: ./bench setup" >&2; exit 2; }
exec "$PYTHON" -m scripts.runner.bench "$@"
