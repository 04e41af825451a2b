#!/usr/bin/env bash
# Builds Horovod from its newest release's source, mended for today's compilers, against the installed torch. The wheel
# is kept in the user's cache (XDG_CACHE_HOME, else ~/.cache), so that a second clone does not build again.
#
#     scripts/setup/install_horovod.sh            PYTHON=.venv/bin/python   the interpreter to build for
#                                           PIP_ARGS="..."            words that every pip call gets
#                                           FORCE=1                   build again, also after a failed build
#                                           BUILD=no                  take what is built already, and build nothing
#
# With NCCL where torch sees a GPU, and nvcc (of torch's CUDA major version) and NCCL are there; else gloo.
# Does nothing where Horovod already works. A failed build is remembered, so the next call does not repeat it.
# Exit code: 0 Horovod works, 1 the build failed or a tool is missing, 2 PYTHON is no interpreter with torch, 3 it has
# to be built first, and BUILD=no.

what=horovod
source "$(dirname "$0")/install_lib.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then help; fi
version=0.28.1
sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0

# Prints one fact a line, in the order in which look_around reads them. The last is never empty, as $() drops
# empty lines at the end.
probe() {
    "$python" - <<'EOF'
import contextlib, importlib.util, json, os, pathlib, re, shutil, subprocess, sys, sysconfig
try:
    import torch
except (ImportError, OSError) as error:
    sys.exit(f"horovod: {error}")

def horovod_built_with():
    """"nccl", "gloo" or "": what the installed Horovod can do with the torch that is installed now."""
    spec = importlib.util.find_spec("horovod")
    record = pathlib.Path(spec.origin).with_name("metadata.json") if spec and spec.origin else None
    # Loading a library that was built against another torch can crash, so its record is read first.
    if not record or not record.is_file():
        return ""
    if json.loads(record.read_text()).get("pytorch") != torch.__version__:
        return ""
    runner = record.with_name("runner")  # another one, or one of before these changes, is built anew
    if "address=''" not in (runner / "http/http_server.py").read_text():
        print("horovod: its server listens on all interfaces", file=sys.stderr)
        return ""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            import horovod.torch as hvd
            return "nccl" if hvd.nccl_built() else "gloo" if hvd.gloo_built() else ""
    except (ImportError, AttributeError) as error:
        print(f"horovod: it is installed but does not load: {error}", file=sys.stderr)
        return ""

def find_nccl(cuda_home):
    """(header folder, library) of the first NCCL that has both; pip's is first, as torch loads it."""
    pip_nccl = pathlib.Path(torch.__file__).parents[1] / "nvidia" / "nccl"
    for root in (os.environ.get("HOROVOD_NCCL_HOME"), pip_nccl, cuda_home, "/usr", "/usr/local"):
        if root and pathlib.Path(root, "include", "nccl.h").is_file():
            for pattern in ("lib/libnccl.so*", "lib64/libnccl.so*", "lib/*-linux-gnu/libnccl.so*"):
                for library in sorted(pathlib.Path(root).glob(pattern)):
                    return str(pathlib.Path(root, "include")), str(library)
    return "", ""

cuda_home = header = library = why_no_nccl = capabilities = ""
has_gpu = bool(torch.version.cuda) and torch.cuda.is_available()
if has_gpu:
    major = torch.version.cuda.split(".")[0]
    bins = [f"{os.environ[name]}/bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc", path=os.pathsep.join([*bins, os.environ["PATH"], "/usr/local/cuda/bin"]))
    # nvcc says itself which toolkit it belongs to: on PATH it can be a wrapper.
    said = subprocess.getoutput(f"'{nvcc}' --version; '{nvcc}' -v --dryrun x.cu") if nvcc else ""
    release, top = re.search(r"release (\d+)", said), re.search(r"TOP=(.+)", said)
    cuda_home = os.path.realpath(top[1].strip()) if top else ""
    header, library = find_nccl(cuda_home)
    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    capabilities = ",".join(f"{a}{b}" for a, b in sorted(found))
    if not cuda_home or not release or release[1] != major:
        why_no_nccl = f"nvcc of CUDA {major} is not: install NVIDIA's CUDA toolkit {major}.x"
    elif not library:
        why_no_nccl = f"NCCL is not: pip install nvidia-nccl-cu{major}"
python_header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
print(torch.__version__, "%d.%d" % sys.version_info[:2], horovod_built_with(),
      "yes" if python_header.is_file() else "", "yes" if has_gpu else "", why_no_nccl,
      cuda_home, header, library, capabilities, sys.prefix, sep="\n")
EOF
}

look_around() {
    local facts
    if ! command -v "$python" >/dev/null || ! facts=$(probe); then no_torch; fi
    {
        read -r torch; read -r python_version; read -r built
        read -r python_header; read -r has_gpu; read -r why_no_nccl
        read -r cuda_home; read -r nccl_include; read -r nccl_library; read -r capabilities; read -r prefix
    } <<<"$facts"
}

need_tools() {
    local missing=()
    command -v make >/dev/null || missing+=(make)
    command -v g++ >/dev/null || missing+=(g++)
    [[ -n $python_header ]] || missing+=("python$python_version-dev")
    if ((${#missing[@]})); then
        say "cannot be built without ${missing[*]}. Run: apt-get install ${missing[*]}; then this again."
        exit 1
    fi
}

download() {
    # What Horovod imports, and what its setup.py needs: in an isolated build it would not see torch.
    local needs=(cloudpickle packaging psutil pyyaml setuptools wheel)
    command -v cmake >/dev/null || needs+=(cmake)
    echo "horovod==$version --hash=sha256:$sha256" >"$work/horovod.txt"
    install_tools "${needs[@]}" &&
        "$python" -m pip download "${pip_args[@]}" --no-binary horovod --no-deps --no-build-isolation \
            --dest "$work" --require-hashes -r "$work/horovod.txt" &&
        tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
}

# mend <folder> <nccl|gloo>: each change must find its text, so that no release is half mended in silence.
mend() {
    "$python" - "$@" <<'EOF'
import pathlib, sys
folder, backend = pathlib.Path(sys.argv[1]), sys.argv[2]
cmake, torch_cmake = "CMakeLists.txt", "horovod/torch/CMakeLists.txt"
network, server = "horovod/runner/util/network.py", "horovod/runner/http/http_server.py"
mends = [
    # torch's headers need C++20, and nvcc 13's need C++17.
    (cmake, "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    (torch_cmake, "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/common/ops/cuda/CMakeLists.txt", "set(CMAKE_CUDA_STANDARD 11)", "set(CMAKE_CUDA_STANDARD 17)"),
    # Python 3.12 has no distutils; nothing in horovod.torch uses cffi.
    (torch_cmake, "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
     "import sysconfig; print(sysconfig.get_path('include'))"),
    ("horovod/runner/js_run.py", "from distutils.spawn import find_executable",
     "from shutil import which as find_executable"),
    ("setup.py", "require_list.append('cffi>=1.4.0')", "pass"),
    # horovodrun's rendezvous server listens everywhere: bind it to the one address that the ranks are told.
    (network, "def find_port(server_factory):", "def find_port(server_factory, address=''):"),
    (network, "addr = ('', port)", "addr = (address, port)"),
    (server, "def start(self, handler_cls=RendezvousHandler):",
     "def start(self, handler_cls=RendezvousHandler, address=''):"),
    (server, "addr, handler_cls, self._verbose))", "addr, handler_cls, self._verbose), address)"),
    ("horovod/runner/gloo_run.py", "_port = rendezvous.start()\n",
     "_port = rendezvous.start(address=server_ip)\n"),
]
if backend == "gloo":  # a CUDA toolkit that is there but cannot be used must not be looked at
    mends += [
        (cmake, "include(CheckLanguage)\ncheck_language(CUDA)\nif(NOT CMAKE_CUDA_COMPILER)", "if(FALSE)"),
        ("cmake/Modules/FindPytorch.cmake",
         "True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False", "False"),
    ]
for name, old, new in mends:
    text = (folder / name).read_text()
    if text.count(old) != 1:
        sys.exit(f"mend error: {name} should hold once: {old}")
    (folder / name).write_text(text.replace(old, new))
EOF
}

build() {  # build <nccl|gloo>
    local settings=(
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1
        HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1
        "TMPDIR=$work" "MAKEFLAGS=-j$(nproc)"
        # GCC 13 no longer includes cstdint by itself, and CMake 4 refuses gloo's cmake_minimum_required.
        "CXXFLAGS=-include cstdint ${CXXFLAGS:-}" CMAKE_POLICY_VERSION_MINIMUM=3.5
    )
    if [[ $1 == nccl ]]; then
        local nccl_lib=${nccl_library%/*}
        # The linker looks for libnccl.so; pip's NCCL ships only libnccl.so.2.
        [[ -e $nccl_lib/libnccl.so ]] || ln -s "${nccl_library##*/}" "$nccl_lib/libnccl.so"
        settings+=(
            HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED
            "HOROVOD_NCCL_INCLUDE=$nccl_include" "HOROVOD_NCCL_LIB=$nccl_lib"
            "HOROVOD_CUDA_HOME=$cuda_home" "CUDA_HOME=$cuda_home" "HOROVOD_BUILD_CUDA_CC_LIST=$capabilities"
        )
    fi
    cp -r -- "$work/horovod-$version" "$work/$1" && mend "$work/$1" "$1" &&
        env "${settings[@]}" "$python" -m pip wheel "${pip_args[@]}" -v --no-build-isolation --no-deps \
            --no-cache-dir --wheel-dir "$work/wheels-$1" "$work/$1" &&
        install_wheel "$work/wheels-$1"/*.whl
}

install_wheel() { # install_wheel WHEEL
    "$python" -m pip install "${pip_args[@]}" --no-index --no-deps --no-cache-dir --force-reinstall "$1"
}

# A wheel fits the torch, the Python, the machine and, with NCCL, the CUDA and the GPUs that it was built for.
kept_wheels() { # kept_wheels <nccl|gloo>: the folder of this build
    local built_for
    built_for="$sha256 $(cksum <"$script") $torch $python_version $(uname -m) $1"
    if [[ $1 == nccl ]]; then built_for+=" $cuda_home $nccl_library $capabilities"; fi
    echo "$cache/$(sha256sum <<<"$built_for" | cut -c 1-16)"
}

look_around
backends=(gloo)
if [[ -n $has_gpu && -z $why_no_nccl ]]; then backends=(nccl gloo); fi
log=$prefix/horovod-build.log
failures=$prefix/horovod-build.failed
cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
cache=${cache:+$cache/imagenet-parallel-benchmarks/horovod-$version}
identity="horovod $version, torch $torch, python $python_version, script $(cksum <"$script")"
if [[ -n ${FORCE:-} ]]; then
    built=''
    rm -f -- "$failures"
fi

work=$(mktemp -d)
for backend in "${backends[@]}"; do
    if [[ $built == nccl || $built == "$backend" ]]; then
        say "$version is ready ($built, torch $torch)."
        exit 0
    fi
    start=$SECONDS
    kept=$(kept_wheels "$backend")
    if [[ -n $cache && -z ${FORCE:-} && -d $kept ]]; then
        : >"$log"
        if run_logged installing install_wheel "$kept"/*.whl && look_around && [[ $built == "$backend" ]]; then
            say "$version with $backend for torch $torch installed in $((SECONDS - start)) s, from $kept."
            exit 0
        fi
        say "the wheel in $kept does not work here, and is built again (log: $log)."
    fi
    if [[ -f $failures ]] && grep -qxF "$backend, $identity" "$failures"; then
        say "the $backend build failed before (log: $log). To try again: FORCE=1 scripts/setup/install_horovod.sh"
        continue
    fi
    if [[ ${BUILD:-} == no ]]; then
        say "$version has to be built, which takes about 2 minutes on 2 cores; that is done when a run needs it."
        exit 3
    fi
    if [[ -z ${downloaded:-} ]]; then
        PATH=$prefix/bin:$PATH
        need_tools
        : >"$log"
        say "building $version against torch $torch, about 2 minutes on 2 cores (log: $log)"
        if [[ -n $why_no_nccl ]]; then
            say "gloo only, which cannot reduce CUDA tensors: a GPU is here but $why_no_nccl."
        fi
        if ! run_logged downloading download; then
            report_failure 'the download' 'Check the network and PIP_ARGS, then run this again.'
            exit 1
        fi
        downloaded=yes
    fi
    if run_logged "building with $backend" build "$backend" && look_around && [[ $built == "$backend" ]]; then
        [[ -z $cache ]] || keep_wheel "$work/wheels-$backend" "$kept" ||
            say "the built wheel could not be kept in $cache. The next clone builds again."
        say "$version built with $backend for torch $torch in $((SECONDS - start)) s."
        exit 0
    fi
    printf '%s\n' "$backend, $identity" >>"$failures"
    report_failure "the $backend build" "Mend what the log names, then: FORCE=1 scripts/setup/install_horovod.sh"
done
exit 1
