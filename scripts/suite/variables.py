"""Make's variables, read once, each checked and each default settled. The machine's own are in common/machine.py."""

import dataclasses
import os
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.results import STATUSES


@dataclasses.dataclass(frozen=True)
class Given:
    """What the user set in Make's variables, and the machine's word for what was not."""

    flags: list[str]
    """Of the configuration: the file, the data, then the user's own, which win."""
    args: str
    """The user's own, as typed."""
    results: Path | None
    """None: a new set."""
    ranks_here: int
    """On this machine."""
    repeats: int
    repeat: int
    """The round of a launcher that is started by hand."""
    limit_s: float | None
    """None: the configuration's."""
    retry: str
    strategies: str
    strategy: str
    key: str
    values: str
    ranks: str
    """For scaling."""


def read_variables() -> Given:
    """The one reader of Make's variables. Raises UserError for a number that is none, or an unknown status."""
    text = {name: os.environ.get(name, "").strip() for name in ("ARGS", "DATA", "RESULTS", "RETRY", "STRATEGIES")}
    text |= {name: os.environ.get(name, "").strip() for name in ("STRATEGY", "KEY", "VALUES", "RANKS")}
    again = [status for status in STATUSES if status != "ok"]  # a round has one good run of each
    if text["RETRY"] and text["RETRY"] not in again:
        raise UserError(f"RETRY is {text['RETRY']!r}; it takes {', '.join(again)}")
    flags = ["--config", os.environ.get("CONFIG") or default_config()]
    flags += ["--data", os.environ["DATA"]] if text["DATA"] else []
    results = Path(os.environ["RESULTS"]) if text["RESULTS"] else None
    if results and results.is_symlink():  # results/latest is about to be linked anew
        results = Path(os.path.relpath(results.resolve()))
    return Given(
        flags=[*flags, *text["ARGS"].split()],
        args=text["ARGS"],
        results=results,
        ranks_here=machine.num_ranks(),
        repeats=_at_least_one("REPEATS", 3),
        repeat=_at_least_one("REPEAT", 1),
        limit_s=_limit_s(),
        retry=text["RETRY"],
        strategies=text["STRATEGIES"],
        strategy=text["STRATEGY"],
        key=text["KEY"],
        values=text["VALUES"],
        ranks=text["RANKS"],
    )


def default_config() -> str:
    """A smoke test where neither this machine nor a job's nodes have GPUs."""
    num_gpus = machine.number("GPUS_PER_NODE", "a number of GPUs", least=0)
    num_gpus = machine.num_gpus() if num_gpus is None else num_gpus
    return "configs/imagenet-bench.yaml" if num_gpus else "configs/smoke.yaml"


def _at_least_one(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise UserError(f"{name} is {text}, but must be at least 1")
    return int(text)


def _limit_s() -> float | None:
    text = os.environ.get("TIMEOUT") or "nan"
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = -1.0
    if limit_s < 0:
        raise UserError(f"TIMEOUT is {text!r}, but must be seconds, 0 or more; 0 is no limit")
    return None if limit_s != limit_s else limit_s
