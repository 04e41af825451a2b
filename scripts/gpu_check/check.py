"""What a check of `./bench gpu-check` is, and how large the checks are."""

import dataclasses
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from scripts.gpu_check import verdicts
from scripts.shared.commands import shell_word

PRECISIONS = ("fp32", "tf32", "bf16")
OF_PRECISION = {"fp32": (), "tf32": ("cuda", "ampere"), "bf16": ("bf16_or_cpu",), "fp16": ("cuda",)}  # keys of NEEDS


@dataclasses.dataclass(frozen=True)
class Scale:
    """images: flags of a step; many_images: of a larger one; short: of what times nothing."""

    config: str
    images: str
    many_images: str
    short: str
    proof_steps: int
    too_many_images: str
    """Flags of a batch that no device has memory for."""
    power: str
    """Flags of windows long enough for a power reading."""
    loader_workers: int = 0
    """Of the check that times the loader: what workers read ahead is used up before each window."""
    data: str = ""
    """A folder of images; default: imagenet-mini, which the first check makes."""
    patience: float = 1.0
    """By which each check's time limit is longer."""


GPU = Scale(
    "configs/gpu-check.yaml",
    images="--batch-per-device 256",
    many_images="--batch-per-device 1024 --steps 11 --warmup-steps 3 --window-steps 2",
    short="--batch-per-device 32 --steps 20 --warmup-steps 2 --windows 1 --window-steps 10",
    proof_steps=20,
    too_many_images="--global-batch 4096",  # 86 MB of activations each in fp32: 352 GB
    power="--steps 170 --windows 8 --window-steps 20",
    loader_workers=8,
)
# The CPU in the GPU's place.
DRY = Scale(
    "configs/gpu-check-dry.yaml",
    images="--global-batch 8",
    many_images="--global-batch 16",
    short="--global-batch 8",
    proof_steps=4,
    too_many_images="--global-batch 10000000000",  # 276 TB of images: more than a process can address
    power="--steps 2",
    patience=4.0,  # no deadline, few cores
)


@dataclasses.dataclass(frozen=True)
class Here:
    """capability: the least of its GPUs, None without GPUs."""

    num_gpus: int
    capability: tuple[int, int] | None
    has_compiler: bool


# What `needs` of a check may name: what that is in words, and whether this machine has it.
NEEDS: dict[str, tuple[str, Callable[[Here], bool]]] = {
    "cuda": ("an NVIDIA GPU", lambda here: here.num_gpus > 0),
    "two_gpus": ("two NVIDIA GPUs or more", lambda here: here.num_gpus > 1),
    "two_nccl_groups": (
        "torch 2.15 or newer, which has two process groups for NCCL",
        lambda here: "nccl-legacy" in {backend.name for backend in entry_points(group="torch.distributed.backends")},
    ),
    "ampere": ("a GPU of compute capability 8 or newer", lambda here: (here.capability or (0, 0)) >= (8, 0)),
    "bf16_or_cpu": (
        "a GPU of compute capability 8 or newer, or a CPU",
        lambda here: (here.capability or (8, 0)) >= (8, 0),
    ),
    "compiler": (
        "g++ (or CXX), on GPUs gcc (or CC) and triton, Python's headers",
        lambda here: here.has_compiler,
    ),
}


@dataclasses.dataclass(frozen=True)
class Check:
    """needs: keys of NEEDS; after: the check that must have passed before."""

    name: str
    claim: str
    argv: tuple[str, ...]
    find_verdict: verdicts.FindVerdict
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()
    timed: bool = False
    """Its rows go to the set of what is timed. Nothing runs beside it."""
    alone: bool = False
    """Nothing runs beside it, though it times nothing."""
    estimate_s: float = 25.0
    """It starts where as much is left before the deadline."""
    limit_s: float = 240.0
    after: str = ""
    precision: str = ""

    @property
    def command(self) -> str:
        """As a person types it in the repository."""
        variables = [f"{name}={shell_word(value)}" for name, value in self.variables.items()]
        return " ".join([*variables, *map(shell_word, self.argv)])

    @property
    def results(self) -> Path:
        """The set of its rows."""
        return Path(self.variables["RESULTS"])


def launched(
    name: str,
    claim: str,
    strategy: str,
    flags: str,
    scale: Scale,
    results: Path,
    find_verdict: verdicts.FindVerdict,
    **other: Any,
) -> Check:
    """A check that is one run by its launcher. other: fields of Check."""
    variables = {"RESULTS": str(results), "CONFIG": scale.config, "ARGS": flags}
    variables |= other.pop("variables", {})
    return Check(name, claim, (f"launchers/{strategy}.sh",), find_verdict, variables, **other)
