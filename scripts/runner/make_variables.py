"""The variables by which make, ./bench or a job says what to run, checked, with their defaults."""

import dataclasses
import os
import re
import shlex
import sys
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.rows import STATUSES
from scripts.shared.nodes import node_rank
from scripts.shared.options_as_typed import option_as_typed
from scripts.stats.formatting import parse_percent

GPU_CONFIG, CPU_CONFIG = "configs/imagenet-bench.yaml", "configs/smoke.yaml"
NO_IMAGES = """\
warning: there are GPUs and no images are named: all runs repeat one SYNTHETIC batch.
warning: They time training alone, and have no accuracy. With images: {}."""


@dataclasses.dataclass(frozen=True)
class MakeVariables:
    flags: list[str]
    """The file, the data, then the user's own, which win."""
    args: str
    """The user's own, as typed."""
    results: Path | None
    """None: a new set."""
    ranks_here: int
    """On this machine."""
    repeats: int
    round_number: int
    """The round of a launcher that is started by hand."""
    limit_s: float | None
    """None: the configuration's."""
    until: float | None
    """Half-width of the intervals at which no more rounds are added; None: REPEATS rounds."""
    budget_s: float | None
    """Seconds in which another round has to fit; None: no limit."""
    num_seeds: int
    """Rounds take so many seeds in turn; 0: all have the configuration's."""
    with_aa: bool
    """The baseline runs twice a round, under two names."""
    retry: str
    strategies: str
    strategy: str
    key: str
    values: str
    ranks: str
    """For scaling."""


def read_variables() -> MakeVariables:
    """Raises UserError for a number that is none, or an unknown status."""
    text = {name: os.environ.get(name, "").strip() for name in ("ARGS", "DATA", "RESULTS", "RETRY", "STRATEGIES")}
    text |= {name: os.environ.get(name, "").strip() for name in ("STRATEGY", "KEY", "VALUES", "RANKS")}
    retried = [status for status in STATUSES if status != "ok"]  # a round has one good run of each
    if text["RETRY"] and text["RETRY"] not in retried:
        raise UserError(f"{option_as_typed('RETRY')} is {text['RETRY']!r}; choose one of {', '.join(retried)}")
    flags = ["--config", os.environ.get("CONFIG") or default_config()]
    if text["DATA"]:
        flags += ["--data", os.environ["DATA"]]
    node_rank()
    machine.number_from_env("CPUS_PER_TASK", "a number of cores")
    results = Path(os.environ["RESULTS"]) if text["RESULTS"] else None
    if results and results.is_symlink():  # results/latest is about to be linked anew
        results = Path(os.path.relpath(results.resolve()))
    return MakeVariables(
        flags=[*flags, *_split_args(text["ARGS"])],
        args=text["ARGS"],
        results=results,
        ranks_here=machine.num_ranks(),
        repeats=_positive_number("REPEATS", 5),
        round_number=_positive_number("REPEAT", 1),
        limit_s=_limit_s(),
        until=_until(),
        budget_s=_budget_s(),
        num_seeds=_positive_number("SEEDS", 0) if os.environ.get("SEEDS") else 0,
        with_aa=bool(os.environ.get("AA")),
        retry=text["RETRY"],
        strategies=text["STRATEGIES"],
        strategy=text["STRATEGY"],
        key=text["KEY"],
        values=text["VALUES"],
        ranks=text["RANKS"],
    )


def _split_args(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"ARGS is {text[:80]!r}: {error}") from None


def with_images(variables: MakeVariables) -> MakeVariables:
    """The variables, with synthetic images, and a warning, where there are GPUs and nobody has named images or a
    configuration: imagenet-mini has 480 training images, which is no work for a GPU."""
    if os.environ.get("CONFIG") or names_images(variables) or default_config() == CPU_CONFIG:
        return variables
    print(NO_IMAGES.format(option_as_typed("DATA", "/path/to/imagenet")), file=sys.stderr)
    flags = [*variables.flags[:2], "--loader", "synthetic", *variables.flags[2:]]
    return dataclasses.replace(variables, flags=flags)


def names_images(variables: MakeVariables) -> bool:
    """Whether the user named a data set or a loader."""
    return bool({"--data", "--loader"} & {word.split("=")[0] for word in variables.flags[2:]})


def default_config() -> str:
    """The benchmark's configuration where this machine or the job's nodes have GPUs, else that of a smoke test."""
    num_gpus = machine.number_from_env("GPUS_PER_NODE", "a number of GPUs", least=0)
    num_gpus = machine.num_gpus() if num_gpus is None else num_gpus
    return GPU_CONFIG if num_gpus else CPU_CONFIG


def _positive_number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UserError(f"{option_as_typed(name)} is {text}, but must be at least 1")
    return int(text)


def _until() -> float | None:
    text = os.environ.get("UNTIL", "").strip()
    width = parse_percent(text, option_as_typed("UNTIL")) if text else None
    if width == 0:
        raise UserError(f"{option_as_typed('UNTIL')} is 0%, which no number of rounds reaches; give a width such as 5%")
    return width


def _budget_s() -> float | None:
    text = os.environ.get("BUDGET", "").strip()
    if not text:
        return None
    seconds = {"s": 1, "m": 60, "h": 3600}
    number, unit = text[:-1].strip(), text[-1:]
    if unit not in seconds or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) or not float(number):
        raise UserError(f"{option_as_typed('BUDGET')} is {text!r}, but must be a time such as 90s, 20m or 1.5h")
    return float(number) * seconds[unit]


def _limit_s() -> float | None:
    if not (text := os.environ.get("TIMEOUT")):
        return None
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = -1.0
    if not 0 <= limit_s < float("inf"):  # also nan
        raise UserError(f"{option_as_typed('TIMEOUT')} is {text!r}, but must be seconds, 0 or more; 0 is no limit")
    return limit_s
