"""Which variables of the environment are settings of a run: those that may change kernels, memory or communication."""

from collections.abc import Mapping

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
# The launchers, or torch, set the first of these. The others say where something is.
NOT_RECORDED = (
    *("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_CACHE_DIR", "TRITON_HOME"),
    *("TORCH_HOME", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_DEBUG_FILE"),
)
LOOPBACK = {("GLOO_SOCKET_IFNAME", "lo"), ("NCCL_SOCKET_IFNAME", "lo")}  # what launchers choose on one machine


def kernel_variables(env: Mapping[str, str]) -> str:
    """The variables that may change kernels, memory or communication: "ATEN_CPU_CAPABILITY=avx2"; "none" without any.

    env: of the run's record.
    """
    chosen = {name: text for name, text in env.items() if text and name.startswith(PREFIXES)}
    recorded = [item for item in sorted(chosen.items()) if item[0] not in NOT_RECORDED and item not in LOOPBACK]
    return " ".join(f"{name}={text}" for name, text in recorded) or "none"
