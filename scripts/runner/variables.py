"""The variables of the environment that steer libraries: which are cleared, set, or settings of a run. docs/generate.py
writes docs/variables.md from this.

Whatever starts runs calls `prepare` before anything imports torch. Standard library only: ./bench needs it first.
"""

import ctypes
import dataclasses
from collections.abc import Mapping, MutableMapping
from fnmatch import fnmatchcase

M_MMAP_THRESHOLD = -3  # glibc's number of this parameter (mallopt(3))
LARGEST, LARGEST_OF_OLD_GLIBC = 2**31 - 1, 2**25
MALLOC = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
OWN_MALLOC = (*MALLOC, "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Who sets one of these has chosen how memory is kept."""
LOOPBACK = "lo"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Variables of one fate. names: separated by blanks; * stands for any letters."""

    names: str
    why: str
    value: str = ""
    """What they are set to."""

    def covers(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names.split())


CLEARED = (
    Rule(
        "OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY KMP_HW_SUBSET",
        "OpenMP would bind every rank to the same cores, since each is a program of its own",
    ),
    Rule(
        "OMP_THREAD_LIMIT OMP_DYNAMIC MKL_NUM_THREADS MKL_DOMAIN_NUM_THREADS MKL_DYNAMIC OPENBLAS_NUM_THREADS "
        "NUMEXPR_NUM_THREADS",
        "THREADS_PER_RANK alone says how many threads a rank has",
    ),
    Rule(
        "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_* HOROVOD_CROSS_* HOROVOD_HOSTNAME HOROVOD_CONTROLLER "
        "HOROVOD_GLOO_RENDEZVOUS_* HOROVOD_GLOO_IFACE HOROVOD_ELASTIC "
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_* TORCHELASTIC_* PET_* "
        "PYTHON_EXEC NCCL_COMM_ID RENDEZVOUS_FILE RUN_DIR",
        "left from another launch: ranks would take it for their own number or place, and train alone",
    ),
    Rule(
        "NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE ONEDNN_DEFAULT_FPMATH_MODE DNNL_DEFAULT_FPMATH_MODE",
        "`--precision` alone says what is computed in, and the row names it",
    ),
    Rule("TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE", "`--compile` alone says whether a model is compiled"),
    Rule("NUM_GPUS", "GPUs are counted on the machine that runs"),
    Rule(
        "CDPATH PYTHONSAFEPATH PYTHONINSPECT PYTHONHOME PYTHONWARNINGS",
        "bash or Python would not find the suite's own files, ask for input at the end, or stop at a warning",
    ),
)
SET = (
    Rule("MPLBACKEND", "charts are files: no window, and nothing of Jupyter's", "agg"),
    Rule("CUDA_DEVICE_ORDER", "GPUs have NVML's numbers, so that telemetry is of those in use", "PCI_BUS_ID"),
    Rule("SLURM_EXPORT_ENV", "srun passes on to ranks what their launcher has set", "ALL"),
)
RECORDED = (
    Rule("OMP_* GOMP_* KMP_* MKL_* ONEDNN_* DNNL_* ATEN_*", "threads and kernels of the CPU"),
    Rule("CUBLAS* CUDNN_* CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_FORCE_PTX_JIT", "kernels of the GPU"),
    Rule("CUDA_SCALE_LAUNCH_QUEUES CUDA_MODULE_LOADING CUDA_MPS_* CUDA_INJECTION64_PATH", "how the GPU gets its work"),
    Rule(
        "PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEM* MALLOC_* TCMALLOC_* GLIBC_TUNABLES LD_PRELOAD",
        "how memory is kept",
    ),
    Rule(
        "NCCL_* GLOO_* FI_* OFI_* UCX_*", "communication; the last three are of networks, by which NCCL's plugins send"
    ),
    Rule(
        "HOROVOD_FUSION_THRESHOLD HOROVOD_CYCLE_TIME HOROVOD_CACHE_CAPACITY HOROVOD_AUTOTUNE* HOROVOD_THREAD_AFFINITY "
        "HOROVOD_HIERARCHICAL_* HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_NUM_NCCL_STREAMS",
        "how Horovod sends gradients",
    ),
    Rule(
        "TORCH_* TORCHINDUCTOR_* TORCHDYNAMO_* TRITON_* PYTORCH_TUNABLEOP_*",
        "PyTorch's own, such as TORCH_NCCL_BLOCKING_WAIT and TORCH_DISTRIBUTED_DEBUG",
    ),
    Rule("LD_LIBRARY_PATH", "which libraries are loaded"),
    Rule("PYTHONOPTIMIZE PYTHONDEVMODE PYTHONMALLOC PYTHONTRACEMALLOC", "how fast Python is"),
)
# The launchers, or torch, set the first three. The others say where something is.
NOT_RECORDED = (
    *("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCHINDUCTOR_COMPILE_THREADS"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME", "TORCH_HOME", "NCCL_HOSTID", "NCCL_DEBUG_FILE"),
)


def prepare(env: MutableMapping[str, str]) -> None:
    """Clear and set variables in the environment of a program that is to start runs."""
    for name in [*env]:
        if any(rule.covers(name) for rule in CLEARED):
            del env[name]
    for rule in SET:
        env.update(dict.fromkeys(rule.names.split(), rule.value))
    if not any(env.get(name) for name in OWN_MALLOC):
        env.update(malloc_settings())


def malloc_settings() -> dict[str, str]:
    """Have glibc keep what a process frees: returned to the kernel, large blocks are cleared anew, and a step on a CPU
    may take twice as long. {} without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return {}
    most = LARGEST if mallopt(M_MMAP_THRESHOLD, LARGEST) else LARGEST_OF_OLD_GLIBC
    return dict(zip(MALLOC, map(str, (most, LARGEST)), strict=True))


def recorded_variables(env: Mapping[str, str]) -> str:
    """The variables that are settings of a run: "ATEN_CPU_CAPABILITY=avx2"; "none" without any.

    env: of the run's record.
    """
    ours = {(name, str(value)) for name in MALLOC for value in (LARGEST, LARGEST_OF_OLD_GLIBC)}
    ours |= {("GLOO_SOCKET_IFNAME", LOOPBACK), ("NCCL_SOCKET_IFNAME", LOOPBACK)}
    chosen = [item for item in sorted(env.items()) if item[1] and any(rule.covers(item[0]) for rule in RECORDED)]
    return " ".join("=".join(item) for item in chosen if item[0] not in NOT_RECORDED and item not in ours) or "none"
