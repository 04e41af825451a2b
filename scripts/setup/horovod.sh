#!/usr/bin/env bash
# Builds Horovod's newest release, mended for today's compilers, against the installed torch: with NCCL where torch sees a
# GPU, else with gloo. It takes about 2 minutes on 2 cores; the wheel is kept in the user's cache for the next clone.
#
#     scripts/setup/horovod.sh        PYTHON=.venv/bin/python   the interpreter to build for
#                                     PIP_ARGS="..."            options for every pip call
#
# Exit code: 0 Horovod works; 1 it cannot be built, and stderr says why; 2 PYTHON has no torch.

what=horovod name=Horovod version=0.28.1
sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
source "$(dirname "$0")/lib.sh"

get_source() {
    echo "horovod==$version --hash=sha256:$sha256" >"$work/horovod.txt"
    # no isolation: there setup.py would not see torch
    "$python" -m pip download "${pip_args[@]}" --no-binary horovod --no-deps --no-build-isolation --dest "$work" \
        --require-hashes -r "$work/horovod.txt" &&
        tar -xzf "$work/horovod-$version.tar.gz" -C "$work" && mv -- "$work/horovod-$version" "$work/source" &&
        mend <<'EOF'
[
    # torch's headers need C++20, and nvcc 13's need C++17.
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/common/ops/cuda/CMakeLists.txt", "set(CMAKE_CUDA_STANDARD 11)", "set(CMAKE_CUDA_STANDARD 17)"),
    # Drivers and containers bring libcuda.so.1; libcuda.so comes with development packages.
    ("horovod/torch/cuda_util.cc", 'dlopen("libcuda.so"', 'dlopen("libcuda.so.1"'),
    # Python 3.12 has no distutils; nothing in horovod.torch uses cffi.
    ("horovod/torch/CMakeLists.txt", "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
     "import sysconfig; print(sysconfig.get_path('include'))"),
    ("horovod/runner/js_run.py", "from distutils.spawn import find_executable", "from shutil import which as find_executable"),
    ("setup.py", "require_list.append('cffi>=1.4.0')", "pass"),
    # horovodrun's rendezvous server listens everywhere: bind it to the one address that the ranks are told.
    ("horovod/runner/util/network.py", "def find_port(server_factory):", "def find_port(server_factory, address=''):"),
    ("horovod/runner/util/network.py", "addr = ('', port)", "addr = (address, port)"),
    ("horovod/runner/http/http_server.py", "def start(self, handler_cls=RendezvousHandler):",
     "def start(self, handler_cls=RendezvousHandler, address=''):"),
    ("horovod/runner/http/http_server.py", "addr, handler_cls, self._verbose))", "addr, handler_cls, self._verbose), address)"),
    ("horovod/runner/gloo_run.py", "_port = rendezvous.start()\n", "_port = rendezvous.start(address=server_ip)\n"),
    # With gloo alone, a CUDA toolkit that is there must not be looked at.
    *([("CMakeLists.txt", "include(CheckLanguage)\ncheck_language(CUDA)\nif(NOT CMAKE_CUDA_COMPILER)", "if(FALSE)"),
       ("cmake/Modules/FindPytorch.cmake",
        "True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False", "False")]
      if sys.argv[2] == "gloo" else []),
]
EOF
}

look_at_torch
need make g++
backend=gloo
settings=(
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1
    HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 "MAKEFLAGS=-j$(nproc)"
    # GCC 13 no longer includes cstdint by itself, and CMake 4 refuses gloo's cmake_minimum_required.
    "CXXFLAGS=-include cstdint ${CXXFLAGS:-}" CMAKE_POLICY_VERSION_MINIMUM=3.5
)
if [[ -n $cuda ]]; then
    backend=nccl
    find_cuda_compiler ||
        give_up "torch sees a GPU, and there is no nvcc of CUDA ${cuda%%.*}; install NVIDIA's CUDA toolkit ${cuda%%.*}"
    settings+=(
        HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED "HOROVOD_CUDA_HOME=$cuda_home" "CUDA_HOME=$cuda_home"
        "HOROVOD_BUILD_CUDA_CC_LIST=$(tr -d . <<<"${capabilities// /,}")"
    )
    if [[ -e $nvidia/nccl/lib/libnccl.so.2 ]]; then # torch loads pip's NCCL; the linker looks for libnccl.so
        ln -sf libnccl.so.2 "$nvidia/nccl/lib/libnccl.so"
        settings+=("HOROVOD_NCCL_INCLUDE=$nvidia/nccl/include" "HOROVOD_NCCL_LIB=$nvidia/nccl/lib")
    fi
fi
check="import horovod.torch as hvd, sys; sys.exit(not hvd.${backend}_built())"
take_kept
say "building $version with $backend against torch $torch, about 2 minutes on 2 cores (log: $log)"
fetch || give_up "$(first_error); check the network and PIP_ARGS"
build
give_up "$(first_error); mend that"
