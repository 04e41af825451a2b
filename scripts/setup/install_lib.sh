# shellcheck shell=bash
# What install_horovod.sh and install_apex.sh share, which set `what` before: words, a logged job with a progress
# line, a clean end, and a failure in two lines.
set -euo pipefail

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
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 0
}

no_torch() {
    say "$python cannot import torch. Run 'make setup', or set PYTHON to an interpreter that has torch."
    exit 2
}

# Output goes to the log; a terminal shows make's percentage. The job gets a process group of its own, so that
# clean_up reaches the compilers.
run_logged() {
    local label=$1 start=$SECONDS status=0 percent
    shift
    set -m
    "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    set +m
    while kill -0 "$child" 2>/dev/null; do
        if [[ -t 2 ]]; then
            percent=$(grep -aoE '\[ *[0-9]+%\]' "$log" | tail -n 1 || true)
            printf '\r\033[K%s: %s %s %d s' "$what" "$label" "$percent" "$((SECONDS - start))" >&2
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
