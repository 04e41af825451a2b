"""Which machine this is, and what about it changes the kernels that compute: facts of a run's settings. Needs no torch.

A name alone is no identity: containers share names, and a cluster gives a name to another board. So a host is a hash of
its name, machine-id, board, processor and microcode. `./bench publish` writes "host 1" for it.
"""

import contextlib
import hashlib
import os
import platform
import pwd
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from benchmarks.common.system.machine import num_cores

HASH_DIGITS = 12
BOARD_FILES = ("sys_vendor", "product_name", "board_vendor", "board_name", "board_version")  # without root's rights
VECTOR_FLAGS = re.compile(r"(avx|amx|sse|ssse|fma|f16c|bmi|vnni|sve|sme(?!p)|asimd|neon|bf16|i8mm)\w*")
"""Of /proc/cpuinfo: what kernels are chosen by. The other flags change with the Linux kernel."""
PREFIXES = (
    *("OMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_", "NCCL_", "GLOO_", "CUBLAS_", "CUDNN_", "MALLOC_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "TCMALLOC_", "PYTORCH_TUNABLEOP_"),
    *("FI_", "OFI_", "UCX_"),  # of networks, by which NCCL's plugins send
)
# Of these words, others say where something is, or how it was built: CUDA_HOME, HOROVOD_WITH_PYTORCH.
OF_CUDA = (
    *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_FORCE_PTX_JIT", "CUDA_SCALE_LAUNCH_QUEUES"),
    *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_INJECTION64_PATH"),
)
OF_PYTORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
OF_HOROVOD = (
    *("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_AUTOTUNE"),
    *("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_BATCH_D2D_MEMCOPIES", "HOROVOD_NUM_NCCL_STREAMS"),
)
OF_LIBRARIES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT")  # which libraries are loaded
WHOLE_NAMES = (*OF_LIBRARIES, "NVIDIA_TF32_OVERRIDE", "GLIBC_TUNABLES", *OF_CUDA, *OF_PYTORCH, *OF_HOROVOD)
# The launchers set the first two themselves. The others say where something is, and change no kernel.
NOT_RECORDED = (
    *("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("TORCH_HOME", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_DEBUG_FILE"),
    # compiling.py sets these, and torch the first, where nobody else does
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"),
    *("TRITON_CACHE_DIR", "TRITON_HOME"),
)
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# Only of these is the value recorded: numbers and words. Others, such as NCCL_AUTH, may hold a password: its hash is.
# Those of PYTORCH_CUDA_ALLOC_CONF and MALLOC_CONF, such as max_split_size_mb:1024, read as a host and a port.
WITH_VALUE = {
    *INTERFACES,
    *("OMP_SCHEDULE", "OMP_PROC_BIND", "OMP_PLACES", "OMP_DYNAMIC", "OMP_WAIT_POLICY", "OMP_MAX_ACTIVE_LEVELS"),
    *("KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET", "KMP_SETTINGS", "MKL_NUM_THREADS", "MKL_DYNAMIC"),
    *("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_THREADING_LAYER", "ONEDNN_MAX_CPU_ISA"),
    *("DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "ONEDNN_VERBOSE", "ATEN_CPU_CAPABILITY", "NVIDIA_TF32_OVERRIDE"),
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"),
    *("NCCL_NET_GDR_LEVEL", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LAUNCH_MODE", "NCCL_CROSS_NIC", "NCCL_NVLS_ENABLE", "NCCL_DEBUG"),
    *("NCCL_CUMEM_ENABLE", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "GLOO_DEVICE_TRANSPORT"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CUDNN_V8_API_DISABLED", "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_AVOID_RECORD_STREAMS"),
    *("TORCH_NCCL_HIGH_PRIORITY", "TORCH_COMPILE_DISABLE", "TORCH_BLAS_PREFER_CUBLASLT", "CUBLAS_WORKSPACE_CONFIG"),
    *("CUBLASLT_WORKSPACE_SIZE", "TORCH_DIST_USE_NCCL2"),
    *("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FREEZING", "TORCHDYNAMO_DISABLE"),
    *(*OF_CUDA, *OF_HOROVOD),
}
WORD = re.compile(r"[\w.,:+=^{}-]{1,60}", re.ASCII)
# In the name of a network card, such as enx0050b6aabbcc: systemd.net-naming-scheme(7).
MAC_ADDRESS = re.compile(r"[0-9a-f]{12}")
HASHED = re.compile(rf"#[0-9a-f]{{{HASH_DIGITS}}}")
LIBRARY = re.compile(r"[\w.+-]+\.so[\w.]*", re.ASCII)
NONE = "none"
NCCL_CONF = Path("/etc/nccl.conf")


def machine_facts() -> dict[str, int | str]:
    """Cores that this process may use, vector flags (a hash), Linux kernel and host."""
    return {
        "num_cores": num_cores(),
        "cpu_flags": _hash(vector_flags()),
        "kernel": platform.release(),
        "host": host(os.environ),
    }


def vector_flags() -> list[str]:
    """The instructions for vectors that the processor offers, sorted; [] where Linux does not say."""
    words = next((line.partition(":")[2].split() for line in _cpuinfo() if line.startswith(("flags", "Features"))), [])
    return sorted(word for word in words if VECTOR_FLAGS.fullmatch(word))


def emulates_bf16(flags: Collection[str]) -> bool:
    """Whether oneDNN has no kernels in bf16 for an x86 processor with these vector_flags.

    It has some from AVX-512 and from AVX-NE-CONVERT on (oneDNN, "CPU Dispatcher Control": avx512_core, avx2_vnni_2).
    False where the flags are unknown, and on other processors, of which none was measured.
    """
    return "sse2" in flags and not {"avx512bw", "avx_ne_convert"} & set(flags)


def host(env: Mapping[str, str]) -> str:
    """A hash that names this machine; in a Slurm job of several nodes the one of all its nodes, by their names."""
    name = platform.node()
    if env.get("SLURM_JOB_NUM_NODES", "1") != "1" and env.get("SLURMD_NODENAME") == name.partition(".")[0]:
        return _hash(["nodes", env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURM_JOB_NODELIST", "")])
    board = [_text(Path("/sys/class/dmi/id") / file) for file in BOARD_FILES]
    processor = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith(("model name", "microcode"))]
    return _hash([name, _text(Path("/etc/machine-id")), *board, *dict.fromkeys(processor)])


def processor_name() -> str:
    """What the vendor calls the processor."""
    names = (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name"))
    return next(names, "CPU")


def kernel_variables(env: Mapping[str, str]) -> str:
    """The variables that may change kernels, memory or communication: "ATEN_CPU_CAPABILITY=avx2"; NONE without any.

    env: of the run's supervisor. Loopback is what launchers choose on one machine. LD_PRELOAD has its value; of others
    that are not in WITH_VALUE, a hash stands for it: NCCL_AUTH=#0123456789ab.
    """
    chosen = {name: text for name, text in env.items() if name.startswith(PREFIXES) or name in WHOLE_NAMES}
    return (
        " ".join(
            f"{name}={text if name == 'LD_PRELOAD' else recorded_value(name, text)}"
            for name, text in sorted(chosen.items())
            if text and name not in NOT_RECORDED and (name, text) not in {(each, "lo") for each in INTERFACES}
        )
        or NONE
    )


def nccl_conf(env: Mapping[str, str]) -> str:
    """A hash of the files from which NCCL reads its variables, where the environment does not set them; NONE without
    any: NCCL_CONF_FILE, or else ~/.nccl.conf, and /etc/nccl.conf (nccl/src/misc/param.cc, initEnvFunc)."""
    own = env.get("NCCL_CONF_FILE", "")
    if not own:
        with contextlib.suppress(KeyError):  # a user whom the system does not list
            own = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".nccl.conf")  # NCCL does not read HOME
    texts = [_text(Path(own)), _text(NCCL_CONF)]
    return f"#{_hash(texts)}" if any(texts) else NONE


def recorded_value(name: str, text: str) -> str:
    """The value of a variable as a set may say it: that of a listed one, LD_PRELOAD's file names, or else a hash."""
    has_address = name in INTERFACES and MAC_ADDRESS.search(text)
    if HASHED.fullmatch(text) or (name in WITH_VALUE and WORD.fullmatch(text) and not has_address):
        return text
    files = [path.rpartition("/")[2] for path in re.split(r"[\s:]+", text.strip())]
    if name == "LD_PRELOAD" and all(LIBRARY.fullmatch(file) for file in files):
        return ":".join(files)
    return f"#{_hash([text])}"


def _cpuinfo() -> list[str]:
    return _text(Path("/proc/cpuinfo")).splitlines()


def _text(path: Path) -> str:
    """What a file holds; '' where it is missing or not for this user."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _hash(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]
