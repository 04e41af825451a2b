# shellcheck shell=bash disable=SC2034,SC2154
# What horovod.sh and apex.sh share. They set `what`, `name` and `check`, Python that fails where the library does not work,
# and define `get_source`, which fills $work/source.
#
# Exit code: 0 the library works; 1 it does not, and stderr and .venv/$what.failed say why; 2 PYTHON has no torch.
set -euo pipefail
unset CDPATH GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE # of a hook or of dotfiles: git would change that repository
script=$(realpath -- "$0")
[[ ${1:-} != -h && ${1:-} != --help ]] || exec sed -n '2,/^$/s/^# \{0,1\}//p' "$script"
cd "$(dirname "${BASH_SOURCE[0]}")/../.." # relative paths begin in the checkout
python=${PYTHON:-.venv/bin/python}
read -r -a pip_args <<<"${PIP_ARGS:-}"
settings=() options=() job='' work=$(mktemp -d)

clean_up() {
    if [[ -n $job ]] && kill -TERM -- "-$job" 2>/dev/null; then wait "$job" 2>/dev/null || true; fi
    rm -rf -- "$work"
}
trap clean_up EXIT
trap 'exit 143' INT TERM HUP

say() { printf '%s: %s\n' "$what" "$*" >&2; }

give_up() { # REASON, AND A REMEDY: for the terminal, and for the rows of runs that are skipped
    say "$1; then: scripts/setup/$what.sh"
    printf '%s cannot be built: %s; then: scripts/setup/%s.sh\n' "$name" "$1" "$what" >"$failed"
    exit 1
}

look_at_torch() { # sets facts of PYTHON and its torch; cuda and capabilities are empty where torch sees no GPU
    local facts
    facts=$("$python" - <<'EOF'
import pathlib, shlex, sys, sysconfig
import torch
gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
facts = {
    "torch": torch.__version__,
    "python_version": "%d.%d" % sys.version_info[:2],
    "has_headers": "yes" if pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file() else "",
    "prefix": sys.prefix,
    "nvidia": pathlib.Path(torch.__file__).parents[1] / "nvidia",  # NVIDIA's libraries as pip's packages
    "cuda": torch.version.cuda if gpus else "",
    "capabilities": " ".join(sorted({"%d.%d" % torch.cuda.get_device_capability(gpu) for gpu in gpus})),
}
for name, value in facts.items():
    print(f"{name}={shlex.quote(str(value or ''))}")
EOF
    ) || { say "$python cannot import torch; run ./bench setup, or set PYTHON to an interpreter that has torch"; exit 2; }
    eval "$facts"
    PATH=$prefix/bin:$PATH log=$prefix/$what-build.log failed=$prefix/$what.failed
    rm -f -- "$failed"
    : >"$log"
}

need() { # PROGRAM ...
    local program missing=()
    for program in "$@"; do command -v "$program" >/dev/null || missing+=("$program"); done
    [[ -n $has_headers ]] || missing+=("python$python_version-dev")
    ((${#missing[@]} == 0)) || give_up "there is no ${missing[*]}; on Debian: apt install ${missing[*]}"
}

find_cuda_compiler() { # sets cuda_home: a toolkit of torch's major version, else PyPI's compiler, made for CUDA 13 and later
    local major=${cuda%%.*} nvcc
    for nvcc in "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$(command -v nvcc || true)" "$nvidia/cu$major/bin/nvcc"; do
        [[ -x $nvcc && $("$nvcc" --version) == *"release $major."* ]] || continue
        # it says itself which toolkit it is of: on PATH it can be a wrapper
        cuda_home=$(realpath -- "$("$nvcc" -v --dryrun x.cu 2>&1 | sed -n 's/^#\$ *TOP=//p')")
        return
    done
    ((major >= 13)) || return 1
    run_logged 'downloading a compiler' "$python" -m pip install "${pip_args[@]}" --no-deps "nvidia-cuda-nvcc==$cuda.*" \
        "nvidia-nvvm==$cuda.*" "nvidia-cuda-crt==$cuda.*" || return 1
    cuda_home=$nvidia/cu$major
    ln -sfn lib "$cuda_home/lib64" # names by which linkers look for what is there
    ln -sf "libcudart.so.$major" "$cuda_home/lib/libcudart.so"
}

run_logged() { # TASK COMMAND ...: a terminal shows the seconds; a process group, so that clean_up reaches the compilers
    local task=$1 start=$SECONDS status=0 percent
    shift
    set -m
    "$@" >>"$log" 2>&1 </dev/null &
    job=$!
    set +m
    while [[ -t 2 ]] && kill -0 "$job" 2>/dev/null; do
        percent=$(grep -aoE '\[ *[0-9]+%\]' "$log" | tail -n 1 || true)
        printf '\r\033[K%s: %s %s %d s\r' "$what" "$task" "$percent" "$((SECONDS - start))" >&2
        sleep 0.5
    done
    if [[ -t 2 ]]; then printf '\033[K' >&2; fi
    wait "$job" || status=$?
    job=''
    return "$status"
}

first_error() {
    local error
    error=$(grep -aE -m 1 -A 2 'error: |ERROR: |CMake Error|fatal: |RuntimeError: ' "$log" || tail -n 1 "$log")
    error=$(tr -s ' \n' ' ' <<<"$error")
    error=${error% }
    printf '%s (log: %s)' "${error:0:300}" "$log"
}

mend() { # stdin: Python's list of (file, old text, new text), each of which must find its text once
    "$python" -c '
import pathlib, sys
for name, old, new in eval(sys.stdin.read()):
    path = pathlib.Path(sys.argv[1], name)
    text = path.read_text()
    if text.count(old) != 1:
        sys.exit(f"mend error: {name} should hold once: {old}")
    path.write_text(text.replace(old, new))
' "$work/source" "${backend:-}"
}

install_wheel() { # FOLDER, which has one
    "$python" -m pip install "${pip_args[@]}" --no-index --no-deps --no-cache-dir --force-reinstall "$1"/*.whl &&
        "$python" -c "$check"
}

take_kept() { # exits with 0 where the user's cache has a wheel of this script, torch, Python, machine and GPUs
    local cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
    kept=$(cat "$script" scripts/setup/lib.sh - <<<"$torch $python_version $(uname -m) $capabilities" | sha256sum)
    kept=${cache:+$cache/imagenet-parallel-benchmarks/$what-${kept:0:16}}
    if [[ -d $kept ]] && run_logged installing install_wheel "$kept"; then
        say "installed for torch $torch from $kept, where an earlier build left it"
        exit 0
    fi
}

fetch() { # what the builds and Horovod's launcher need, where it is missing, and the source
    run_logged downloading "$python" -m pip install "${pip_args[@]}" 'setuptools<81' wheel cmake ninja cloudpickle \
        packaging psutil pyyaml && run_logged downloading get_source
}

build() { # exits with 0 where the library then works
    local start=$SECONDS
    run_logged building env TMPDIR="$work" "${settings[@]}" "$python" -m pip wheel "${pip_args[@]}" -v --no-deps \
        --no-build-isolation --no-cache-dir "${options[@]}" --wheel-dir "$work/wheels" "$work/source" &&
        run_logged installing install_wheel "$work/wheels" || return 0
    if [[ -n $kept ]]; then
        { rm -rf -- "$kept" && mkdir -p -- "${kept%/*}" && mv -- "$work/wheels" "$kept"; } 2>>"$log" || true
    fi
    say "built for torch $torch in $((SECONDS - start)) s"
    exit 0
}
