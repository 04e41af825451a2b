"""What the GPU tests do: build a strategy in this process, take a step, time it."""

import contextlib
import dataclasses
import importlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch
import torch.distributed as dist
from PIL import Image

from benchmarks.common import engine
from benchmarks.common.checkpoint import save_state, sync_state
from benchmarks.common.clock import Clock
from benchmarks.common.config import Config
from benchmarks.common.errors import Unavailable
from benchmarks.common.model import build_model
from benchmarks.common.strategy import Strategy

SMALL = Config(
    arch="resnet18",
    image_size=64,
    global_batch=16,
    loader="synthetic",
    workers=0,
    steps=4,
    warmup_steps=1,
    windows=1,
    window_steps=2,
)
Weights = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device, and how much work tests give it. timed: with windows long enough to believe."""

    device: torch.device
    small: Config
    timed: Config
    loader_workers: int | str

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


# 10 + 4 windows x 8 steps of 256 images: 2.3 s at 3,500 images/s
GPU = Machine(
    torch.device("cuda", 0),
    SMALL,
    Config(arch="resnet50", precision="bf16", loader="synthetic", steps=44, warmup_steps=10, windows=4, window_steps=8),
    loader_workers="auto",
)
FEW_IMAGES = dataclasses.replace(SMALL, image_size=32, global_batch=8)
CPU = Machine(torch.device("cpu"), FEW_IMAGES, FEW_IMAGES, loader_workers=1)

# --- strategies in this process ------------------------------------------------------------------------------------


@contextlib.contextmanager
def built(name: str, config: Config, rank: int = 0, num_ranks: int = 1, folder: str = "") -> Iterator[Strategy]:
    """Skips the test where the strategy cannot run here. folder: in which several ranks meet."""
    script = importlib.import_module(f"benchmarks.{name}")
    with tempfile.TemporaryDirectory() as own:
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
        if name == "slurm":
            variables = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NUM_TASKS": num_ranks}
        texts = {key: str(value) for key, value in variables.items()}
        texts["RENDEZVOUS_FILE"] = f"{folder or own}/ranks"
        with mock.patch.dict(os.environ, texts):
            try:
                yield script.build(config)
            except Unavailable as error:
                pytest.skip(str(error))
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()


def take_step(name: str, config: Config, *, on_cpu: bool) -> tuple[float, Weights]:
    """Loss, weights and statistics of one step."""
    variables = {"DEVICE": "cpu"} if on_cpu else {}
    with mock.patch.dict(os.environ, variables), built(name, config) as strategy:
        strategy.train.set_epoch(0)
        loss, _ = strategy.step(*next(iter(strategy.train)))
        assert loss is not None
        sync_state(strategy)
        state = save_state(strategy)["model"]
        return loss.item(), {key: value.detach().double().cpu() for key, value in state.items()}


def difference(found: Weights, expected: Weights) -> tuple[float, float]:
    """How far apart two updates are, over the expected one's length: of the last layer and BatchNorm's statistics, and
    of all weights, which rounding changes more where it flips a ReLU."""
    model = build_model(SMALL, 1000)
    initial = {name: value.double() for name, value in model.state_dict().items()}
    assert found.keys() == expected.keys() == initial.keys()

    def distance(names: Iterable[str]) -> float:
        apart = sum(float((found[name] - expected[name]).square().sum()) for name in names)
        length = sum(float((expected[name] - initial[name]).square().sum()) for name in names)
        return (apart / length) ** 0.5

    of_statistics = distance([name for name in initial if "running_" in name])
    return max(of_statistics, distance(["fc.weight", "fc.bias"])), distance([*dict(model.named_parameters())])


@dataclasses.dataclass(frozen=True)
class Timed:
    images_per_s: float
    step_ms: float
    memory_gb: float


class KeptClock(Clock):
    seconds = 0.0

    def stop(self) -> tuple[float, list[float]]:
        seconds, step_ms = super().stop()
        self.seconds += seconds
        self.step_ms = [*getattr(self, "step_ms", []), *step_ms]
        return seconds, step_ms


def time_run(name: str, config: Config, **rank: object) -> Timed:
    """A whole run. rank: as for `built`."""
    with built(name, dataclasses.replace(config, account_steps=3), **rank) as strategy:
        clock = KeptClock(strategy.rank.devices)
        engine.fit(strategy, clock)
        images = strategy.config.global_batch * len(clock.step_ms)
        memory_gb = engine.peak_memory_mb(strategy.rank.device) / 1000
        return Timed(images / clock.seconds, statistics.median(clock.step_ms), memory_gb)


def draw_photographs(folder: Path, number: int, seed: int) -> None:
    """500 x 375 pixels, about 100 KB each."""
    random = numpy.random.default_rng(seed)
    for index in range(number):
        colours = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=numpy.uint8))
        smooth = numpy.asarray(colours.resize((500, 375), Image.Resampling.BICUBIC))
        pixels = smooth + random.normal(0, 8, smooth.shape)
        path = folder / f"class{index % 4}" / f"{index}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8)).save(path, quality=90)


# --- two ranks -------------------------------------------------------------------------------------------------------


def backends(machine: Machine) -> list[str]:
    """Of torch.distributed. From torch 2.15 on there are two for NCCL."""
    known = {each.name for each in entry_points(group="torch.distributed.backends")}
    return ["nccl", *({"nccl-legacy"} & known)] if machine.on_gpu else ["gloo"]


def on_two_ranks(work: Callable[..., object], *arguments: object) -> dict:
    """What `work(rank, folder, *arguments)` writes to folder/found.json."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (folder, *arguments), nprocs=2)
        return json.loads(Path(folder, "found.json").read_text())


def time_ddp(rank: int, folder: str, backend: str, config: Config) -> None:
    os.environ["TORCH_DIST_USE_NCCL2"] = str(int(backend == "nccl"))
    timed = time_run("ddp", config, rank=rank, num_ranks=2, folder=folder)
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(dataclasses.asdict(timed)))
