#!/usr/bin/env bash
# Writes the lock files anew: the newest of everything in requirements.txt, with hashes, for Python 3.11 and later.
#
#     scripts/setup/lock.sh           PYTHON=.venv/bin/python   an interpreter that has uv
set -euo pipefail
cd "$(dirname "$0")/../.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"
    exit 0
fi

compile() { # compile LOCK [MORE REQUIREMENTS...]
    local lock=$1
    shift
    printf '%s\n' "$@" | "${PYTHON:-.venv/bin/python}" -m uv pip compile --quiet --no-config --universal \
        --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command scripts/setup/lock.sh \
        --default-index https://pypi.org/simple --upgrade --constraints - --output-file "$lock" requirements.txt
}

# Two lines of wheels: scripts/setup/builds.py says what each runs on.
compile requirements.lock
compile requirements-torch2.10.lock 'torch<2.11'
