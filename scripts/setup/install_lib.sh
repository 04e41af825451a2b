# shellcheck shell=bash
# What install_horovod.sh and install_apex.sh share, which set `what` before: words, a logged job with a progress
# line, a clean end, a failure in two lines, build tools by their hashes, and a cache of wheels.
# The scripts work in the checkout's folder: its .venv is used, it is on Python's path, and relative paths begin there.
set -euo pipefail
for name in "${!GIT_@}"; do # GIT_DIR of a hook or of dotfiles names another repository, which git would change
    [[ $name == GIT_CONFIG* ]] || unset "$name"
done
# shellcheck disable=SC2034  # the scripts use it
script=$(realpath -- "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

what=${what:?}
python=${PYTHON:-.venv/bin/python}
# shellcheck disable=SC2034  # the scripts use it
read -r -a pip_args <<<"${PIP_ARGS:-}"
child='' work='' log=''

say() { printf '%s: %s\n' "$what" "$*" >&2; }

clean_up() {
    if [[ -n $child ]] && kill -TERM -- "-$child" 2>/dev/null; then wait "$child" 2>/dev/null || true; fi
    if [[ -n $work ]]; then rm -rf -- "$work"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

help() { # the comment at the top of the script
    sed -n '2,/^$/s/^# \{0,1\}//p' "$script"
    exit 0
}

no_torch() {
    say "$python cannot import torch. Run ./bench setup, or set PYTHON to an interpreter that has torch."
    exit 2
}

# Output goes to the log; a terminal shows make's percentage. The job gets a process group of its own, so that
# clean_up reaches the compilers.
run_logged() {
    local task=$1 start=$SECONDS status=0 percent
    shift
    set -m
    "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    set +m
    while kill -0 "$child" 2>/dev/null; do
        if [[ -t 2 ]]; then
            percent=$(grep -aoE '\[ *[0-9]+%\]' "$log" | tail -n 1 || true)
            printf '\r\033[K%s: %s %s %d s' "$what" "$task" "$percent" "$((SECONDS - start))" >&2
        fi
        sleep 0.5
    done
    if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
    wait "$child" || status=$?
    child=''
    return "$status"
}

report_failure() { # report_failure <what> <remedy>
    local error
    error=$(grep -aE -m 1 -A 2 'error: |ERROR: |CMake Error|fatal: |RuntimeError: ' "$log" || tail -n 1 "$log")
    error=$(tr -s ' \n' ' ' <<<"$error")
    error=${error# }
    say "$1 failed (log: $log): ${error:0:300}"
    say "$2"
}

# install_tools NAME ...: installs those that the environment lacks, in the lock's versions and by its hashes.
install_tools() {
    local missing name
    missing=$("$python" - "$@" <<'EOF'
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        print(name)
    else:
        if name == "setuptools" and int(version.split(".")[0]) >= 81:  # it has no pkg_resources
            print(name)
EOF
    )
    [[ -n $missing ]] || return 0
    for name in $missing; do # a package's line of the lock, and those of its hashes
        sed -n "/^$name==/,/[^\\]\$/p" requirements.lock
    done >"$work/tools.txt"
    # no source: its build would fetch what has no hash
    "$python" -m pip install "${pip_args[@]}" --no-deps --require-hashes --only-binary :all: -r "$work/tools.txt"
}

# keep_wheel FROM FOLDER: keeps a built wheel; FOLDER appears only when it is whole.
keep_wheel() {
    local new=$2.$$
    mkdir -p -- "$(dirname "$2")" && rm -rf -- "$2" "$new" && cp -r -- "$1" "$new" && mv -T -- "$new" "$2"
}
