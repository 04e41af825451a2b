"""The device, backend and threads of one rank, and the sums over all of them."""

import contextlib
import ctypes
import dataclasses
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.common.config import Config, resolve_global_batch, resolve_memory_format, resolve_precision
from benchmarks.common.errors import UserError
from benchmarks.common.machine import number_from_env, usable_gpus
from benchmarks.common.run_folder import RunFolder
from scripts.shared.options_as_typed import option_as_typed

# glibc's numbers of these parameters; mallopt(3)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1
LARGEST_BEFORE = 2**25
"""The largest M_MMAP_THRESHOLD that older versions of glibc take."""
OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
"""With one of these set, or glibc.malloc in GLIBC_TUNABLES, the process keeps the user's choice."""


def keep_freed_memory() -> None:
    """Have glibc keep most of what the main thread frees, for the next tensor of that size. By default it can return
    large blocks to the kernel, which clears each page anew: a step may then take twice as long. Without mallopt, as in
    musl, nothing changes."""
    if any(os.environ.get(name) for name in OWN_CHOICE) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, LARGEST) or mallopt(M_MMAP_THRESHOLD, LARGEST_BEFORE)):
        mallopt(M_TRIM_THRESHOLD, LARGEST)


RANK_VARIABLES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
}
HOW_TO = {
    "torchrun": "start it with: launchers/ddp.sh, or the launcher of another strategy",
    "horovodrun": "start it with: horovodrun --gloo -np 2 -H localhost:2 python -m benchmarks.horovod_ddp",
    "srun": "start it with: srun --ntasks 2 python -m benchmarks.slurm",
}


class NotStarted(UserError):
    """The launcher that a script needs did not start this process. launcher: torchrun, horovodrun or srun."""

    def __init__(self, launcher: str, text: str):
        super().__init__(text)
        self.launcher = launcher


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """One process among `world_size`; `launcher` is torchrun, srun, horovodrun, spawn or none.

    rendezvous_file: the file in which the ranks meet; empty: where torch.distributed looks for itself.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    nodes: int = 1
    launcher: str = "none"
    rendezvous_file: str = ""


def find_rank_info(expected: str | None = None, env: Mapping[str, str] = os.environ) -> RankInfo:
    """This process's RankInfo from the environment, and which launcher set it.

    torchrun comes first: inside a Slurm job its variables are the ones about this process. Slurm's are believed only in
    a step that srun started: a shell in an allocation has SLURM_PROCID too. Raises UserError for a wrong variable, and
    NotStarted where `expected` (torchrun, horovodrun or srun) did not start the process.
    """
    found = "none"
    for launcher in ("torchrun", "horovodrun", "srun"):
        if expected in (None, launcher) and RANK_VARIABLES[launcher][2] in env:
            found = launcher
            break
    if expected and found != expected:
        missing = [name for name in RANK_VARIABLES[expected] if name not in env]
        text = f"{expected} did not start this process ({', '.join(missing)} not set); {HOW_TO[expected]}"
        raise NotStarted(expected, text)
    if found == "none":
        return RankInfo()
    rank, local_rank, world_size = (_number(env, name, found) for name in RANK_VARIABLES[found])
    if not (rank < world_size and local_rank < world_size):
        raise UserError(f"{found} says rank {rank}, local_rank {local_rank} of {world_size}; unset stale variables")
    # tasks of srun have a file of their own (SlurmStep); this one is of a run around them
    rendezvous_file = "" if found == "srun" else env.get("RENDEZVOUS_FILE", "")
    return RankInfo(rank, local_rank, world_size, _num_nodes(env, found, world_size), found, rendezvous_file)


@dataclasses.dataclass(frozen=True)
class SlurmStep:
    """The step of a Slurm job that srun started.

    name: of this step alone, also after a restart of the job. port: 20000 to 30014, by job and step. address: of the
    first node. folder: of the run, which all nodes see; without one, the current folder.
    """

    name: str
    port: int
    address: str
    folder: str


def find_slurm_step(env: Mapping[str, str] = os.environ) -> SlurmStep:
    """This process's SlurmStep from the environment. Raises KeyError outside of srun."""
    job_id, step_id = env["SLURM_JOB_ID"], env["SLURM_STEP_ID"]
    name = f"{job_id}-{step_id}-{env.get('SLURM_RESTART_COUNT', 0)}"
    port = 20000 + (int(job_id) * 16) % 10000 + int(step_id) % 16
    address = env.get("MASTER_ADDR") or env.get("SLURM_LAUNCH_NODE_IPADDR", "")
    run_folder = RunFolder.current()
    return SlurmStep(name, port, address, str(run_folder.path) if run_folder else ".")


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    text = env.get(name, "")
    if not text.isdecimal():
        raise UserError(f"{name} is {text!r}, but {launcher} sets a number; {HOW_TO[launcher]}")
    return int(text)


def _num_nodes(env: Mapping[str, str], launcher: str, world_size: int) -> int:
    if launcher == "srun":
        return int(env.get("SLURM_STEP_NUM_NODES") or 1)
    local_size = env.get("LOCAL_WORLD_SIZE" if launcher == "torchrun" else "HOROVOD_LOCAL_SIZE", "")
    return -(-world_size // int(local_size)) if local_size.isdecimal() and int(local_size) else 1


@contextlib.contextmanager
def rank_zero_first(rank: int, barrier: Callable[[], object]) -> Iterator[None]:
    """Rank 0 runs the block alone, then all the others do: for work whose result is found on disk.

    barrier: blocks until every rank has called it. An exception on rank 0 does not keep the others waiting.
    """
    if rank != 0:
        barrier()
    try:
        yield
    finally:
        if rank == 0:
            barrier()


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # each requests a checkpoint
AllReduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over all ranks and returns the result on each of them."""


@dataclasses.dataclass(frozen=True)
class RankContext:
    """One rank at work."""

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    nodes: int = 1
    backend: str = "none"
    rendezvous_file: str = ""

    @property
    def reports(self) -> bool:
        """Whether this is the one rank that writes results."""
        return self.rank == 0


def set_up_rank(
    config: Config,
    info: RankInfo,
    backend: str | None = None,
    *,
    first_gpu: int | None = None,
    devices_per_rank: int = 1,
    mixed: bool = False,
) -> tuple[Config, RankContext]:
    """Configure this process for its rank: device, threads (THREADS_PER_RANK), seed, precision. Returns the
    configuration, now with the global batch, the precision and the memory format that are meant, and the context.

    backend: of the process group; by default NCCL between GPUs and gloo between CPUs. first_gpu: by default local_rank.
    devices_per_rank: those that a rank computes on. mixed: StrategyFacts.mixed_precision. Raises UserError where the
    machine has no GPU of that number, and as resolve_precision does.
    """
    num_gpus = usable_gpus()
    use_cuda = num_gpus > 0
    gpu = info.local_rank if first_gpu is None else first_gpu
    if use_cuda and gpu >= num_gpus:
        remedy = f"lower {option_as_typed('NPROC')} (or tasks per node), or free CUDA_VISIBLE_DEVICES"
        if info.launcher == "srun" and num_gpus == 1:
            remedy = "Slurm may bind one GPU to each task: use srun --gpu-bind=none, or set SLURM_GPU_BIND=none"
        raise UserError(f"rank {info.rank} wants GPU {gpu}, but {num_gpus} can be seen; {remedy}")
    device = torch.device("cuda", gpu) if use_cuda else torch.device("cpu")
    capability = None
    if use_cuda:
        torch.cuda.set_device(device)
        capability = min(torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count()))
    else:
        keep_freed_memory()
    precision = resolve_precision(config.precision, capability, mixed)
    memory_format = resolve_memory_format(config.memory_format, precision)
    config = resolve_global_batch(config, info.world_size * devices_per_rank)
    config = dataclasses.replace(config, precision=precision, memory_format=memory_format)
    set_kernels(config)
    if threads := number_from_env("THREADS_PER_RANK", "a number of threads"):
        torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    if backend is None and info.launcher == "none":
        backend = "none"
    elif backend is None:
        backend = "nccl" if use_cuda else "gloo"
    context = RankContext(
        device=device,
        rank=info.rank,
        local_rank=info.local_rank,
        world_size=info.world_size,
        nodes=info.nodes,
        backend=backend,
        rendezvous_file=info.rendezvous_file,
    )
    return config, context


def set_kernels(config: Config) -> None:
    """Set what torch keeps for the whole process: whether float32 may be TF32, and cuDNN's choice of algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.deterministic = config.cudnn_deterministic


def process_group_options(config: Config, context: RankContext) -> dict[str, Any]:
    """Keyword arguments of init_process_group that every strategy shares: backend, timeout, the file where ranks meet,
    if a launcher names one, and, for NCCL, the device, without which a barrier would guess it."""
    options: dict[str, Any] = {"backend": context.backend, "timeout": timedelta(seconds=config.timeout_s)}
    if context.rendezvous_file:
        options |= {
            "store": file_store(context.rendezvous_file, config, context),
            "rank": context.rank,
            "world_size": context.world_size,
        }
    if context.device.type == "cuda":
        options["device_id"] = context.device
    return options


def file_store(path: str, config: Config, context: RankContext) -> Any:
    """A store in a file. Not by file://PATH: a # or ? in the path would end it."""
    store = dist.FileStore(path, context.world_size)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=config.timeout_s))  # init_process_group does not set it for a store
    return store


def ddp_options(config: Config) -> dict[str, Any]:
    """Keyword arguments of DistributedDataParallel that every strategy shares."""
    flags = {name: getattr(config, name) for name in ("static_graph", "gradient_as_bucket_view", "broadcast_buffers")}
    return flags | {"bucket_cap_mb": config.bucket_cap_mb or None}


def all_reduce_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of `tensor` over the default process group, in place. Raises UserError before initialisation."""
    if not dist.is_initialized():
        raise UserError("a collective was called before dist.init_process_group; start the group first")
    dist.all_reduce(tensor)
    return tensor


def sync_buffers(model: torch.nn.Module, context: RankContext, all_reduce: AllReduce) -> None:
    """Give every rank rank 0's buffers: BatchNorm's running statistics follow each rank's own shard."""
    buffers = list(model.buffers())
    if context.world_size == 1 or not buffers:
        return
    flat = flatten(buffers, context.device)
    fill(buffers, all_reduce(flat if context.rank == 0 else torch.zeros_like(flat)))


def flatten(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """All values of `tensors` as one float32 vector on `device`, which is empty where there are none."""
    vectors = [tensor.detach().to(device, torch.float32).flatten() for tensor in tensors]
    return torch.cat(vectors) if vectors else torch.zeros(0, device=device)


@torch.no_grad()
def fill(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Write what `flatten` made back into tensors of the same sizes."""
    for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


def synchronize(device: torch.device) -> None:
    """Wait until every GPU that this process uses is done; nothing to wait for on a CPU."""
    for index in used_gpus(device):
        torch.cuda.synchronize(index)


def used_gpus(device: torch.device) -> list[int]:
    """Numbers of the GPUs that this process uses; none on a CPU. Asking more of another would start a context there."""
    if device.type != "cuda":
        return []
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]


def device_name(device: torch.device, num_used: int = 1) -> str:
    """What the vendor calls the device, and any other kind among the first num_used GPUs: the slowest sets the pace."""
    if device.type == "cuda":
        used = range(min(num_used, torch.cuda.device_count()) if num_used > 1 else 0)
        return " + ".join(dict.fromkeys(torch.cuda.get_device_name(which) for which in (device, *used)))
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return "CPU"


def peak_memory_mb(device: torch.device) -> float:
    """Most memory used, 10^6 bytes: what torch allocated since reset_peak_memory on the GPU that had most, or the
    process's RSS since its start."""
    if device.type == "cuda":
        return max((torch.cuda.max_memory_allocated(index) for index in used_gpus(device)), default=0) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def reset_peak_memory(device: torch.device) -> None:
    """Have peak_memory_mb forget what came before, on GPUs."""
    for index in used_gpus(device):
        torch.cuda.reset_peak_memory_stats(index)
