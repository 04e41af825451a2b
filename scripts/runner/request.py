"""What a person asks of a suite of runs: the options of a command, checked, with their defaults."""

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.results.formatting import parse_percent
from scripts.shared.nodes import node_rank

GPU_CONFIG, CPU_CONFIG = "configs/imagenet-bench.yaml", "configs/smoke.yaml"
NO_IMAGES = """\
warning: there are GPUs and no images are named: all runs repeat one SYNTHETIC batch.
warning: They time training alone, and have no accuracy. With images: --data /path/to/imagenet"""


@dataclasses.dataclass(frozen=True)
class Request:
    flags: list[str]
    """The configuration file, the data, then the user's own, which win."""
    own_flags: tuple[str, ...] = ()
    results: Path | None = None
    """None: a new set."""
    names_config: bool = False
    ranks_here: int = 2
    """On this machine."""
    repeats: int = 5
    until: float | None = None
    """Half-width of the intervals at which no more rounds are added."""
    budget_s: float | None = None
    """For everything after the first round."""
    num_seeds: int = 0
    """Rounds take so many seeds in turn; 0: all have the configuration's."""
    with_aa: bool = False
    retry: str = ""
    """A status."""
    strategies: str = ""
    """Their names; '': the core strategies."""
    plan: bool = False

    @property
    def own_text(self) -> str:
        return shlex.join(self.own_flags)

    @property
    def has_rows(self) -> bool:
        return self.results is not None and (self.results / "runs.csv").exists()


def read_request(options: Any, own_flags: Sequence[str] = ()) -> Request:
    """own_flags: of the configuration. Sets NPROC. Raises UserError."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    if "nproc" in given:
        os.environ["NPROC"] = str(given["nproc"])
    node_rank()
    flags = ["--config", str(given.get("config", default_config()))]
    flags += ["--data", str(given["data"])] if "data" in given else []
    results = given.get("results")
    if results and results.is_symlink():  # results/latest is about to be linked anew
        results = Path(os.path.relpath(results.resolve()))
    for name in ("repeats", "seeds"):
        if given.get(name, 1) < 1:
            raise UserError(f"--{name} is {given[name]}, but must be at least 1")
    return Request(
        flags=[*flags, *own_flags],
        own_flags=tuple(own_flags),
        results=results,
        names_config="config" in given,
        ranks_here=machine.num_ranks(),
        until=_until(given.get("until", "")),
        budget_s=_budget_s(given.get("budget", "")),
        num_seeds=given.get("seeds", 0),
        with_aa=given.get("aa", False),
        strategies=" ".join(given.get("strategies", ())),
        **{name: given[name] for name in ("repeats", "retry", "plan") if name in given},
    )


def with_images(request: Request) -> Request:
    """With synthetic ones and a warning, where there are GPUs and nobody named images or a configuration."""
    if request.names_config or names_images(request) or default_config() == CPU_CONFIG:
        return request
    print(NO_IMAGES, file=sys.stderr)
    flags = [*request.flags[:2], "--loader", "synthetic", *request.flags[2:]]
    return dataclasses.replace(request, flags=flags)


def names_images(request: Request) -> bool:
    return bool({"--data", "--loader"} & {word.split("=")[0] for word in request.flags[2:]})


def default_config() -> str:
    return GPU_CONFIG if machine.num_gpus() else CPU_CONFIG


def _until(text: str) -> float | None:
    width = parse_percent(text, "--until") if text else None
    if width == 0:
        raise UserError("--until is 0%, which no number of rounds reaches; give a width such as 5%")
    return width


def _budget_s(text: str) -> float | None:
    if not text:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smh])", text.strip())
    if not found or not float(found[1]):
        raise UserError(f"--budget is {text!r}, but must be a time such as 90s, 20m or 1.5h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
