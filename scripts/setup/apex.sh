#!/usr/bin/env bash
# Builds NVIDIA Apex 25.05, the last tag with apex.amp and apex.parallel, where there is an NVIDIA GPU. PyPI's package of
# the name apex is another project. The wheel is kept in the user's cache for the next clone.
#
#     scripts/setup/apex.sh       PYTHON=.venv/bin/python   the interpreter to build for
#                                 PIP_ARGS="..."            options for every pip call
#                                 APEX_GIT=url or folder    a clone of github.com/NVIDIA/apex
#
# With amp's fused kernels where a CUDA compiler is found and they build; else the Python-only build, which is slower.
# Exit code: 0 Apex works; 1 it cannot be built, and stderr says why; 2 PYTHON has no torch.

what=apex name=Apex tag=25.05
commit=379937e1719b8190f38f3e666e2a8d32c97e221f # a tag can be moved
check='from apex import amp, parallel'
source "$(dirname "$0")/lib.sh"

get_source() {
    local url=${APEX_GIT:-https://github.com/NVIDIA/apex}
    if [[ -d $url ]]; then url=$(realpath -- "$url"); fi
    git init --quiet "$work/source" &&
        GIT_TERMINAL_PROMPT=0 git -C "$work/source" fetch --quiet --depth 1 -- "$url" "$commit" &&
        git -C "$work/source" checkout --quiet "$commit" && mend <<'EOF'
[
    # A Python-only build needs no nvcc, but setup.py asks for its version all the same.
    ("setup.py", "\n_, bare_metal_version = get_cuda_bare_metal_version(CUDA_HOME)\n",
     "\nbare_metal_version = get_cuda_bare_metal_version(CUDA_HOME)[1] if CUDA_HOME else Version('0')\n"),
    # Minor versions of CUDA are compatible; find_cuda_compiler compares the major ones.
    ("setup.py", "if (bare_metal_version != torch_binary_version):",
     "if bare_metal_version.major != torch_binary_version.major:"),
    # --cuda_ext builds dozens of kernels for other uses; these are the ones that amp and parallel load.
    ("setup.py", '\nsetup(\n    name="apex",',
     '\next_modules = [e for e in ext_modules if e.name in ("apex_C", "amp_C", "syncbn")]\nsetup(\n    name="apex",'),
]
EOF
}

if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [[ ! -e /dev/dxg ]]; then
    say "nothing to build: apex.amp refuses a model on the CPU; run this where there is an NVIDIA GPU"
    exit 1
fi
look_at_torch
[[ -n $cuda ]] || give_up "torch sees no GPU, and apex.amp refuses a model on the CPU; mend that (nvidia-smi)"
need git
if find_cuda_compiler; then
    # torch includes headers that a compiler alone lacks (cusparse.h); pip's packages have them
    headers=$(printf '%s:' "$nvidia"/*/include)
    settings=("CUDA_HOME=$cuda_home" "CPATH=$headers${CPATH:-}" "TORCH_CUDA_ARCH_LIST=${capabilities// /;}")
    options=(--config-settings --build-option=--cpp_ext --config-settings --build-option=--cuda_ext)
fi
take_kept
say "building $tag against torch $torch, some minutes (log: $log)"
fetch || give_up "$(first_error); check the network, or set APEX_GIT to a mirror"
build
if ((${#options[@]})); then
    say "the fused kernels do not build: $(first_error); the Python-only build follows"
    options=()
    rm -rf -- "$work/source/build"
    build
fi
give_up "$(first_error); mend that"
