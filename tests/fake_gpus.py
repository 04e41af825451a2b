"""A machine with GPUs that are not there: tensors without data, which know their device all the same.

see_gpus(monkeypatch, 8)                                     # what torch and the suite's one predicate say
train_on_nothing(monkeypatch, "ddp", config, rank=1, num_ranks=8)
"""

import contextlib
import dataclasses
import importlib
import types
from importlib.metadata import entry_points

import numpy
import torch
import torch.distributed as dist
from stand_ins import WithoutDriver, backward, checked, deepcopy, done, fused_sgd, put_bare, start_fake_group, to
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from benchmarks.common import engine, machine, stages
from benchmarks.common import loader as loaders
from benchmarks.common import phases as phase_recorder
from benchmarks.common import rank as devices
from benchmarks.common.errors import UserError
from benchmarks.common.loader import Batch
from benchmarks.common.rank import Rank, rank_devices

NCCL_BACKENDS = {backend.name for backend in entry_points(group="torch.distributed.backends")}
NOT_USABLE = "driver 470.1 is too old for this torch; update it"
STEPS = {"steps": 3, "warmup_steps": 0, "windows": 1, "window_steps": 1, "account_steps": 1, "workers": 0}
RANK_VARIABLES = (  # rank, local_rank, ranks, ranks of a node
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_TASKS"),
)

# --- the machine --------------------------------------------------------------------------------------------------


def see_gpus(patch, num_gpus: int, usable: bool = True) -> None:
    """Where the GPUs are not usable, the runtime does not start, as with an old driver."""

    def usable_gpus() -> int:
        if num_gpus and not usable:
            raise UserError(NOT_USABLE)
        return num_gpus

    for module in (machine, devices):
        patch.setattr(module, "usable_gpus", usable_gpus)
    for name in ("NUM_GPUS", "NPROC", "CONFIG", "CUDA_VISIBLE_DEVICES"):
        patch.delenv(name, raising=False)
    current = torch.device("cuda", 0)
    reported = {
        "_lazy_init": lambda: None,
        "is_available": lambda: bool(num_gpus) and usable,
        "device_count": lambda: num_gpus,
        "set_device": lambda device: None,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "a GPU that is not there",
        "get_device_properties": lambda device: types.SimpleNamespace(
            uuid=f"GPU-{torch.device(device).index}", total_memory=192 << 30, multi_processor_count=80, major=8, minor=0
        ),
        "get_device_capability": lambda *_: (8, 0),
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *_: True,
        "memory_reserved": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "synchronize": lambda *_: None,
        "Event": Moment,
        "Stream": Stream,
        "current_stream": lambda device=current: Stream(device),
        "stream": lambda stream: contextlib.nullcontext(),
    }
    for name, value in reported.items():
        patch.setattr(torch.cuda, name, value)
    # torch 2.10 puts a real tensor on a GPU that torch.cuda calls available; later ones ask the driver
    patch.setattr(fake_tensor, "init_gpu_context", lambda device: None)


class Moment:
    """Stands for a CUDA event."""

    def __init__(self, enable_timing=False):
        pass

    def record(self, stream=None) -> None:
        pass

    def elapsed_time(self, other: "Moment") -> float:
        return 1.0


class Stream:
    """Stands for a CUDA stream, which waits for streams only."""

    def __init__(self, device):
        self.device = torch.device(device)

    def wait_stream(self, other: "Stream") -> None:
        assert isinstance(other, Stream)


# --- training ---------------------------------------------------------------------------------------------------------


def check_group(options: dict, strategy) -> None:
    """From torch 2.15 on `nccl` takes tensors of one GPU alone: that of device_id, else of LOCAL_RANK."""
    devices = {*strategy.rank.devices}
    if strategy.rank.device.type == "cuda":
        assert options["backend"].startswith("nccl")
        if options["backend"] == "nccl" and "nccl-legacy" in NCCL_BACKENDS:
            assert {options.get("device_id")} == devices, f"nccl is bound to {options.get('device_id')}, not {devices}"
        else:
            assert len(devices) == 1 or not options.get("device_id")


class Decoded:
    """What a loader's workers hand over: uint8 images on the CPU."""

    def __init__(self, config, batches, device):
        num_images = config.global_batch // batches.num_shards
        images = torch.zeros(num_images, 3, config.image_size, config.image_size, dtype=torch.uint8)
        self.batches, self.batch = batches, Batch(images, torch.zeros(num_images, dtype=torch.int64))

    def __iter__(self):
        return iter([self.batch] * len(self.batches))


def fit_on_nothing(strategy) -> None:
    """A sum over the ranks comes back as real zeros, which the host may look at, as at nothing else."""
    val = strategy.val

    def real_zeros(tensor):
        shape = strategy.all_reduce(tensor).shape
        with unset_fake_temporarily():
            return torch.zeros(shape, dtype=torch.float64)

    val.sampler.num_steps = 2  # in the second, this rank has no image
    val.host_batches = [Decoded(strategy.config, val.sampler, strategy.rank.device).batch]
    engine.fit(dataclasses.replace(strategy, all_reduce=real_zeros))


def train_on_nothing(patch, name: str, config, rank: int = 0, num_ranks: int = 2, drive=fit_on_nothing) -> None:
    """drive(benchmarks.<name>.build(config)) as one rank on the machine of see_gpus, with the stand-ins."""
    script = importlib.import_module(f"benchmarks.{name}")
    for variables in RANK_VARIABLES:
        for variable, value in zip(variables, (rank, rank, num_ranks, num_ranks), strict=True):
            patch.setenv(variable, str(value))
    for variable, value in {"MASTER_ADDR": "localhost", "NPROC": num_ranks}.items():
        patch.setenv(variable, str(value))
    spawned = [Rank(rank, rank, num_ranks, num_ranks, rank_devices(rank))] if hasattr(script, "spawn_ranks") else []
    put_bare(patch, script)
    if hasattr(script, "usable_gpus"):
        patch.setattr(script, "usable_gpus", machine.usable_gpus)
    patch.setattr(loaders, "SyntheticBatches", Decoded)
    patch.setattr(nn.Module, "to", to)
    patch.setattr(torch, "_fused_sgd_", fused_sgd)
    patch.setattr(stages, "copy", types.SimpleNamespace(deepcopy=deepcopy))

    def zeros_of_all(values, rank, all_reduce):
        return numpy.zeros((rank.world_size, len(values)))

    for module in (engine, phase_recorder):
        patch.setattr(module, "gather", zeros_of_all)
    patch.setattr(engine, "count_devices", lambda strategy: len(strategy.rank.devices))
    if torch.cuda.is_available():
        patch.setattr(torch.autograd, "backward", backward)
    start_group = dist.init_process_group
    groups: list[dict] = []

    def start(backend, *_, **options):
        groups.append({"backend": backend} | options)
        start_fake_group(start_group, rank, num_ranks)

    patch.setattr(dist, "init_process_group", start)
    for collective in ("all_reduce", "broadcast"):
        patch.setattr(dist, collective, lambda tensor, *_, **__: done(checked(tensor)))
    patch.setattr(dist, "barrier", lambda *_, **__: None)
    try:
        with WithoutDriver(allow_non_fake_inputs=True):
            strategy = script.build(config, *spawned)
            for options in groups:
                check_group(options, strategy)
            drive(strategy)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
