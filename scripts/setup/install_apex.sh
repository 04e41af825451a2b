#!/usr/bin/env bash
# Installs NVIDIA Apex 25.05, the last tag with apex.amp and apex.parallel, where torch sees a GPU. By its commit, as
# a tag can be moved.
#
#     scripts/setup/install_apex.sh               PYTHON=.venv/bin/python   the interpreter to install for
#                                           PIP_ARGS="..."            options for every pip call
#                                           APEX_GIT=url or folder    a clone of github.com/NVIDIA/apex
#                                           FORCE=1                   install again, also after a failed build
#                                           BUILD=no                  take what is built already, and build nothing
#
# With amp's fused kernels where nvcc is of torch's CUDA major version, else the Python-only build (slower).
# PyPI's package named apex is another project. A failed build is remembered: the next call skips it.
# Exit code: 0 Apex works or there is no GPU to use it on, 1 the build failed, 2 PYTHON has no torch, 3 it has to be
# built first, and BUILD=no.

what=apex
source "$(dirname "$0")/install_lib.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then help; fi
tag=25.05
commit=379937e1719b8190f38f3e666e2a8d32c97e221f
git_url=${APEX_GIT:-https://github.com/NVIDIA/apex}
if [[ -d $git_url ]]; then git_url=$(realpath -- "$git_url"); fi
# Prints one fact a line, in the order in which look_around reads them. The last is never empty, as $() drops
# empty lines at the end.
probe() {
    "$python" - <<'EOF'
import contextlib, importlib.util, os, pathlib, re, shutil, subprocess, sys
try:
    import torch
except (ImportError, OSError) as error:
    sys.exit(f"apex: {error}")

def installed_apex():
    """"nvidia" if amp and parallel load, "other" if the apex that is installed has no amp, "" for none."""
    spec = importlib.util.find_spec("apex")
    if not spec:
        return ""
    if not any(pathlib.Path(folder, "amp").is_dir() for folder in spec.submodule_search_locations or []):
        return "other"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            from apex import amp, parallel
        return "nvidia"
    except ImportError as error:
        print(f"apex: it is installed but does not load: {error}", file=sys.stderr)
        return ""

has_gpu = bool(torch.version.cuda) and torch.cuda.is_available()
cuda_home = headers = capabilities = ""
if has_gpu:
    bins = [f"{os.environ[name]}/bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc", path=os.pathsep.join([*bins, os.environ["PATH"], "/usr/local/cuda/bin"]))
    # nvcc says itself which toolkit it belongs to: on PATH it can be a wrapper.
    said = subprocess.getoutput(f"'{nvcc}' --version; '{nvcc}' -v --dryrun x.cu") if nvcc else ""
    release, top = re.search(r"release (\d+)", said), re.search(r"TOP=(.+)", said)
    if top and release and release[1] == torch.version.cuda.split(".")[0]:
        cuda_home = os.path.realpath(top[1].strip())
        # torch includes headers that a toolkit of nvcc alone lacks (cusparse.h); pip's packages have them: one folder
        # for all from CUDA 13 on, before that one for each library.
        packages = pathlib.Path(torch.__file__).parents[1] / "nvidia"
        together = packages / f"cu{release[1]}/include"
        folders = [together] if together.is_dir() else sorted(packages.glob("*/include"))
        headers = os.pathsep.join(map(str, folders))
    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    capabilities = ";".join(f"{a}.{b}" for a, b in sorted(found))
print(torch.__version__, "%d.%d" % sys.version_info[:2], installed_apex(), "yes" if has_gpu else "",
      cuda_home, headers, capabilities, sys.prefix, sep="\n")
EOF
}

look_around() {
    local facts
    if ! command -v "$python" >/dev/null || ! facts=$(probe); then no_torch; fi
    {
        read -r torch; read -r python_version; read -r installed; read -r has_gpu
        read -r cuda_home; read -r headers; read -r capabilities; read -r prefix
    } <<<"$facts"
}

download() {
    install_tools ninja packaging setuptools wheel &&
        git init --quiet "$work/source" &&
        GIT_TERMINAL_PROMPT=0 git -C "$work/source" fetch --quiet --depth 1 -- "$git_url" "$commit" &&
        git -C "$work/source" checkout --quiet "$commit" # the hash of all that it holds
}

mend() {  # mend <folder>: each change must find its text
    "$python" - "$1" <<'EOF'
import pathlib, sys
path = pathlib.Path(sys.argv[1], "setup.py")
text = path.read_text()
for old, new in [
    # A Python-only build needs no nvcc, but setup.py asks for its version all the same.
    ("\n_, bare_metal_version = get_cuda_bare_metal_version(CUDA_HOME)\n",
     "\nbare_metal_version = get_cuda_bare_metal_version(CUDA_HOME)[1] if CUDA_HOME else Version('0')\n"),
    # Minor versions of CUDA are compatible; this script compares the major ones.
    ("if (bare_metal_version != torch_binary_version):",
     "if bare_metal_version.major != torch_binary_version.major:"),
    # --cuda_ext builds dozens of kernels for other uses; these are the ones that amp and parallel load.
    ('\nsetup(\n    name="apex",',
     '\next_modules = [e for e in ext_modules if e.name in ("apex_C", "amp_C", "syncbn")]\n'
     'setup(\n    name="apex",'),
]:
    if text.count(old) != 1:
        sys.exit(f"mend error: setup.py should hold once: {old}")
    text = text.replace(old, new)
path.write_text(text)
EOF
}

build() {  # build <fused|python>
    local options=() settings=("TMPDIR=$work")
    if [[ $1 == fused ]]; then
        options=(--config-settings "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext")
        settings+=(
            "CUDA_HOME=$cuda_home" "CPATH=$headers${CPATH:+:$CPATH}" "TORCH_CUDA_ARCH_LIST=$capabilities"
            "PATH=$prefix/bin:$PATH"
        )
    fi
    cp -r -- "$work/source" "$work/$1" && mend "$work/$1" &&
        env "${settings[@]}" "$python" -m pip install "${pip_args[@]}" -v --no-build-isolation --no-deps \
            --no-cache-dir --force-reinstall "${options[@]}" "$work/$1"
}

look_around
if [[ $installed == other ]]; then
    say "the package apex that is installed is not NVIDIA's (PyPI's apex is another project) or lacks amp."
fi
if [[ -z $has_gpu ]]; then
    say "nothing to install: apex.amp refuses a model on the CPU. Run this where torch sees an NVIDIA GPU."
    exit 0
fi

log=$prefix/apex-build.log
failures=$prefix/apex-build.failed
stamp=$prefix/apex-build.ok
identity="apex $tag, torch $torch, python $python_version"
attempt="$identity, script $(cksum <"$script")"
if [[ -n ${FORCE:-} ]]; then
    installed=''
    rm -f -- "$failures"
elif [[ $installed == nvidia && (! -f $stamp || $(<"$stamp") == "$identity") ]]; then
    # Without a stamp it is somebody else's build, NVIDIA's container for one: it loads, so it is used.
    say "Apex is ready (torch $torch)."
    exit 0
fi

kinds=(python)
if [[ -n $cuda_home ]]; then kinds=(fused python); fi
for kind in "${kinds[@]}"; do
    if [[ -f $failures ]] && grep -qxF "$kind, $attempt" "$failures"; then
        say "the $kind build failed before (log: $log). To try again: FORCE=1 scripts/setup/install_apex.sh"
        continue
    fi
    if [[ ${BUILD:-} == no ]]; then
        say "$tag has to be built, which takes some minutes; that is done when a run needs it."
        exit 3
    fi
    if [[ -z $work ]]; then
        if ! command -v git >/dev/null; then
            say "cannot be installed without git. Run: apt-get install git; then this again."
            exit 1
        fi
        work=$(mktemp -d)
        : >"$log"
        say "installing tag $tag for torch $torch, some minutes (log: $log)"
        if ! run_logged downloading download; then
            report_failure 'the download' "Check that $git_url can be reached, or set APEX_GIT to a mirror."
            exit 1
        fi
    fi
    start=$SECONDS
    if run_logged "building ($kind)" build "$kind" && look_around && [[ $installed == nvidia ]]; then
        printf '%s\n' "$identity" >"$stamp"
        say "$tag built ($kind) for torch $torch in $((SECONDS - start)) s."
        exit 0
    fi
    printf '%s\n' "$kind, $attempt" >>"$failures"
    report_failure "the $kind build" "Mend what the log names, then: FORCE=1 scripts/setup/install_apex.sh"
done
exit 1
