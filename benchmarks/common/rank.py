"""Who this process is among the others, and on what it computes.

rank = Rank.from_env("torchrun")
config = prepare(config, rank)
"""

import dataclasses
import os
import signal
from collections.abc import Mapping
from importlib.metadata import entry_points

import torch

from benchmarks.common.config import Config, resolve_global_batch, resolve_memory_format, resolve_precision
from benchmarks.common.errors import UserError
from benchmarks.common.machine import num_cores, number_from_env, prepare_compiler, processor_name, usable_gpus

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # each asks for a checkpoint
CPU = torch.device("cpu")
LAUNCHERS = {  # what each sets: rank, local_rank, world_size, ranks of this node
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", ""),
}


class NotStarted(UserError):
    def __init__(self, launcher: str, text: str):
        super().__init__(text)
        self.launcher = launcher


@dataclasses.dataclass(frozen=True)
class Rank:
    """One process among `world_size`, of which `local_world_size` are on this machine. devices: GPUs, or the CPU.
    init_method: for init_process_group."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    devices: tuple[torch.device, ...] = (CPU,)
    init_method: str = "env://"

    @classmethod
    def from_env(cls, launcher: str, devices_per_rank: int = 1, env: Mapping[str, str] = os.environ) -> "Rank":
        """launcher: torchrun, horovodrun or srun. Raises NotStarted where it did not start this process, and UserError
        where MASTER_ADDR is missing, and for too few GPUs."""
        names = LAUNCHERS[launcher]
        if missing := [name for name in names[:3] if name not in env]:
            text = f"{launcher} did not start this process: {', '.join(missing)} not set; "
            raise NotStarted(launcher, text + "the script's first lines have its launch command")
        rank, local_rank, world_size = (int(env[name]) for name in names[:3])
        if launcher == "srun":
            local_world_size = -(-world_size // int(env.get("SLURM_STEP_NUM_NODES") or 1))
        else:
            local_world_size = int(env.get(names[3]) or world_size)
        # on one machine launchers name a file, so that nothing listens
        path = env.get("RENDEZVOUS_FILE", "")
        if launcher == "srun" and not path and not env.get("MASTER_ADDR"):
            raise UserError(
                "MASTER_ADDR is not set, where ranks meet; export the name of the job's first node, and MASTER_PORT"
            )
        place = f"file://{os.path.realpath(path)}" if path else "env://"
        init_method = f"{place}?rank={rank}&world_size={world_size}"
        devices = rank_devices(local_rank, devices_per_rank)
        return cls(rank, local_rank, world_size, local_world_size, devices, init_method)

    @classmethod
    def alone(cls, num_devices: int = 1) -> "Rank":
        """On at most num_devices GPUs."""
        return cls(devices=rank_devices(0, max(1, min(num_devices, usable_gpus()))))

    @property
    def device(self) -> torch.device:
        return self.devices[0]

    @property
    def device_id(self) -> torch.device | None:
        """For init_process_group."""
        return self.device if self.device.type == "cuda" else None

    @property
    def device_ids(self) -> list[torch.device] | None:
        """For DistributedDataParallel."""
        return [self.device] if self.device.type == "cuda" else None

    @property
    def backend(self) -> str:
        return "nccl" if self.device.type == "cuda" else "gloo"

    @property
    def ddp_backend(self) -> str:
        """From torch 2.15 on `nccl` is a new implementation (pytorch pull request 192281) whose buckets do not overlap
        with the backward pass. TORCH_DIST_USE_NCCL2=1 asks for it."""
        has_legacy = any(each.name == "nccl-legacy" for each in entry_points(group="torch.distributed.backends"))
        asks_for_new = os.environ.get("TORCH_DIST_USE_NCCL2") == "1"
        return "nccl-legacy" if self.backend == "nccl" and has_legacy and not asks_for_new else self.backend

    @property
    def num_nodes(self) -> int:
        return -(-self.world_size // self.local_world_size)

    @property
    def reports(self) -> bool:
        """The one rank that writes results."""
        return self.rank == 0


def rank_devices(local_rank: int, devices_per_rank: int = 1) -> tuple[torch.device, ...]:
    """Raises UserError where there are too few, or none of those that the launcher counted (NUM_GPUS)."""
    num_gpus = usable_gpus()
    counted = number_from_env("NUM_GPUS", "a number of GPUs", least=0) or 0
    if not num_gpus and counted:
        raise UserError(
            f"the launcher counted {counted} GPUs, and this rank finds none; see nvidia-smi, or train on the CPU with "
            "DEVICE=cpu"
        )
    if not num_gpus:
        return (CPU,)
    gpus = range(local_rank * devices_per_rank, (local_rank + 1) * devices_per_rank)
    if gpus[-1] >= num_gpus:
        remedy = f"start {num_gpus // devices_per_rank} ranks a node (NPROC), or free CUDA_VISIBLE_DEVICES"
        if num_gpus == 1 and "SLURM_PROCID" in os.environ:
            remedy = "Slurm may bind one GPU to each task: use srun --gpu-bind=none, or set SLURM_GPU_BIND=none"
        wanted = " and ".join(map(str, gpus))
        raise UserError(f"local rank {local_rank} wants GPU {wanted}, but {num_gpus} can be seen; {remedy}")
    return tuple(torch.device("cuda", gpu) for gpu in gpus)


def prepare(config: Config, rank: Rank, scales_gradients: bool = False) -> Config:
    """Set threads, seed, TF32 and cuDNN; returns `config` with the global batch and every `auto` of the model resolved.
    Raises UserError for what this device cannot compute, and Unavailable where nothing can be compiled."""
    capability, on_gpu = None, rank.device.type == "cuda"
    if config.norm == "sync" and not on_gpu:
        raise UserError("norm sync (SyncBatchNorm) runs on GPUs only; use --norm group, or batch")
    if config.cuda_graphs and not (config.compile and on_gpu):
        raise UserError("cuda_graphs are of compiled kernels on GPUs: it goes with --compile, and not on a CPU")
    if config.compile:
        prepare_compiler(on_gpu)
    if on_gpu:
        capability = min(torch.cuda.get_device_capability(gpu) for gpu in range(torch.cuda.device_count()))
    precision = resolve_precision(config.precision, capability, scales_gradients)
    memory_format = resolve_memory_format(config.memory_format, precision)
    config = resolve_global_batch(config, rank.world_size * len(rank.devices))
    config = dataclasses.replace(config, precision=precision, memory_format=memory_format)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.deterministic = config.cudnn_deterministic
    threads = number_from_env("THREADS_PER_RANK", "a number of threads")
    is_bound = os.environ.get("SLURM_STEP_NUM_TASKS") == str(rank.world_size)  # srun gives each rank its own cores
    if not threads and rank.local_world_size > 1 and not is_bound:  # torchrun sets OMP_NUM_THREADS=1
        threads = max(1, num_cores() // rank.local_world_size)
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    return config


def synchronize(device: torch.device) -> None:
    for gpu in used_gpus(device):
        torch.cuda.synchronize(gpu)


def used_gpus(device: torch.device) -> list[int]:
    """To ask more of another GPU would start a context there."""
    if device.type != "cuda":
        return []
    return [gpu for gpu in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(gpu)]


def device_name(device: torch.device, num_used: int = 1) -> str:
    """And of others among the first num_used GPUs."""
    if device.type != "cuda":
        return processor_name()
    used = range(min(num_used, torch.cuda.device_count()) if num_used > 1 else 0)
    return " + ".join(dict.fromkeys(torch.cuda.get_device_name(gpu) for gpu in (device, *used)))
