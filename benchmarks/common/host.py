"""Which machine this is, and what about it changes the kernels that compute: facts of a run's settings. Needs no torch.

Containers share names, and a cluster gives a name to another board. So a host is a hash of name, machine-id, board,
processor and microcode.
"""

import contextlib
import hashlib
import os
import platform
import pwd
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from benchmarks.common.machine import num_cores

HASH_DIGITS = 12
BOARD_FILES = ("sys_vendor", "product_name", "board_vendor", "board_name", "board_version")  # without root's rights
VECTOR_FLAGS = re.compile(r"(avx|amx|sse|ssse|fma|f16c|bmi|vnni|sve|sme(?!p)|asimd|neon|bf16|i8mm)\w*")
"""Of /proc/cpuinfo: what kernels are chosen by. The other flags change with the Linux kernel."""
# How the names of variables begin that may change kernels, memory or communication.
PREFIXES = (
    *("OMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_", "NCCL_", "GLOO_", "CUBLAS", "CUDNN_", "MALLOC_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "TCMALLOC_", "PYTORCH_TUNABLEOP_"),
    *("FI_", "OFI_", "UCX_"),  # of networks, by which NCCL's plugins send
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "NVIDIA_TF32_OVERRIDE", "GLIBC_TUNABLES"),
    # of these words, others say where something is, or how it was built: CUDA_HOME, HOROVOD_WITH_PYTORCH
    *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_FORCE_PTX_JIT", "CUDA_SCALE_LAUNCH_QUEUES"),
    *("CUDA_MPS_", "CUDA_INJECTION64_PATH", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEM"),
    *("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_AUTOTUNE"),
    *("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_BATCH_D2D_MEMCOPIES", "HOROVOD_NUM_NCCL_STREAMS"),
)
# The launchers, or compiling.py and torch, set the first of these. The others say where something is.
NOT_RECORDED = (
    *("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_CACHE_DIR", "TRITON_HOME"),
    *("TORCH_HOME", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_DEBUG_FILE"),
)
LOOPBACK = {("GLOO_SOCKET_IFNAME", "lo"), ("NCCL_SOCKET_IFNAME", "lo")}  # what launchers choose on one machine
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
    """Whether oneDNN has no kernels in bf16 for an x86 processor with these vector_flags: it has some from AVX-512 and
    from AVX-NE-CONVERT on (oneDNN, "CPU Dispatcher Control")."""
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

    env: of the run's supervisor.
    """
    chosen = {name: text for name, text in env.items() if text and name.startswith(PREFIXES)}
    recorded = [item for item in sorted(chosen.items()) if item[0] not in NOT_RECORDED and item not in LOOPBACK]
    return " ".join(f"{name}={text}" for name, text in recorded) or NONE


def nccl_conf(env: Mapping[str, str]) -> str:
    """A hash of the files from which NCCL reads its variables; NONE without any: NCCL_CONF_FILE, or else ~/.nccl.conf,
    and /etc/nccl.conf (nccl/src/misc/param.cc, initEnvFunc)."""
    own = env.get("NCCL_CONF_FILE", "")
    if not own:
        with contextlib.suppress(KeyError):  # a user whom the system does not list
            own = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".nccl.conf")  # NCCL does not read HOME
    texts = [_text(Path(own)), _text(NCCL_CONF)]
    return f"#{_hash(texts)}" if any(texts) else NONE


def _cpuinfo() -> list[str]:
    return _text(Path("/proc/cpuinfo")).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _hash(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]
