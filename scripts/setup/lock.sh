#!/usr/bin/env bash
# Writes the lock files anew: the newest of everything in requirements.txt, with hashes, for Python 3.11 and later.
# PYTHON=.venv/bin/python is an interpreter that has uv.
set -euo pipefail
unset CDPATH
cd "$(dirname "$0")/../.."

compile() { # LOCK [MORE REQUIREMENTS...]
    local lock=$1
    shift
    printf '%s\n' "$@" | "${PYTHON:-.venv/bin/python}" -m uv pip compile --quiet --no-config --universal \
        --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command scripts/setup/lock.sh \
        --default-index https://pypi.org/simple --upgrade --constraints - --output-file "$lock" requirements.txt
}

compile requirements.lock # builds.py says which machines each is for
compile requirements-torch2.10.lock 'torch<2.11'
{ head -n 2 requirements.lock && sed -n '/^uv==/,/[^\]$/p' requirements.lock; } >scripts/setup/uv.lock # what installs first
