"""Where the time of a step goes, in the step breakdown of a group: its parts, exposed communication, pipeline bubbles.

Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

import numpy
import pandas

from scripts.results.formatting import format_with_interval
from scripts.results.intervals import mean_interval
from scripts.results.run_group import RunGroup

PHASES = ("data", "copy", "forward", "backward", "exposed_comm", "wait", "optimizer", "other")
MAY_LACK = {"exposed_comm", "wait"}
COMPUTE, COMMUNICATION, LOADER, WAITING = "compute", "exposed communication", "loader", "waiting"
COMPUTE_AND_COMMUNICATION = "compute with communication"
"""Of a strategy whose communication cannot be told from its forward and backward passes, such as fsdp."""
PART_OF_PHASE = {
    **dict.fromkeys(("forward", "backward", "optimizer"), COMPUTE),
    "data": LOADER,
    "copy": "copy",
    "exposed_comm": COMMUNICATION,
    "wait": WAITING,
    "other": "other",
}


@dataclasses.dataclass(frozen=True)
class StepMean:
    """A mean over the steps of some runs' breakdowns, and its 95 % interval, None below three runs."""

    value: float
    low: float | None
    high: float | None
    num_steps: int
    num_runs: int

    def text(self, scale: float = 1.0) -> str:
        """54 [32, 76]"""
        low, high = (None if bound is None else scale * bound for bound in (self.low, self.high))
        return format_with_interval(scale * self.value, low, high, "{:.0f}".format)


@dataclasses.dataclass(frozen=True)
class PipelineBubble:
    """The share of a pipeline's time in which one rank waited, 0 to 1, and the one of equal stages without messages."""

    rank: int
    waited: StepMean
    ideal: float


@dataclasses.dataclass(frozen=True)
class StepShare:
    """A part of a step: its name in words, milliseconds, and the fraction of the step."""

    name: str
    ms: float
    share: float

    @property
    def text(self) -> str:
        """compute 71 %"""
        return f"{self.name} {100 * self.share:.0f} %"


def step_parts(group: RunGroup, steps: pandas.DataFrame, rank: int | None = None) -> pandas.DataFrame:
    """The steps of the breakdown of a strategy's ok runs: a row a step, `run_id`, and `<phase>_ms` for each of PHASES.

    rank: whose steps (default: the lowest that has a breakdown). exposed_comm_ms is empty where communication cannot be
    separated from forward and backward.
    """
    mine = _accounted_steps(group, steps)
    rank = mine["rank"].min() if rank is None else rank
    return mine[mine["rank"] == rank][["run_id", *(f"{phase}_ms" for phase in PHASES)]].fillna({"wait_ms": 0.0})


def step_shares(group: RunGroup, steps: pandas.DataFrame) -> list[StepShare]:
    """The parts of a step in words, the largest first; of a pipeline over all its ranks, else of the lowest. Empty
    where no step was accounted."""
    ranks: list[int | None] = [bubble.rank for bubble in pipeline_bubbles(group, steps)]
    parts = pandas.concat([step_parts(group, steps, rank) for rank in ranks or [None]])
    if parts.empty:
        return []
    means = parts[[f"{phase}_ms" for phase in PHASES]].mean().clip(lower=0.0)  # below 0 by noise
    ms: dict[str, float] = {}
    for phase, part in PART_OF_PHASE.items():
        if means[f"{phase}_ms"] > 0:
            ms[part] = ms.get(part, 0.0) + float(means[f"{phase}_ms"])
    several = (group.ok_runs.world_size > 1).any() and group.is_parallel
    if several and parts.exposed_comm_ms.isna().all() and WAITING not in ms:
        ms[COMPUTE_AND_COMMUNICATION] = ms.pop(COMPUTE, 0.0)
    whole = sum(ms.values())
    shares = [StepShare(name, each, each / whole) for name, each in ms.items()]
    return sorted(shares, key=lambda part: -part.ms)


def shares_text(shares: Sequence[StepShare], least: float = 0.015) -> str:
    """compute 71 %, exposed communication 24 %, loader 5 %; without parts below `least`."""
    return ", ".join(part.text for part in shares if part.share >= least)


def exposed_communication(group: RunGroup, steps: pandas.DataFrame) -> StepMean | None:
    """Exposed communication of the lowest rank, milliseconds a step; None where it was not measured."""
    parts = step_parts(group, steps).dropna(subset=["exposed_comm_ms"])
    return mean_over_steps([each.exposed_comm_ms.to_numpy(float) for _, each in parts.groupby("run_id")])


def ideal_bubble(group: RunGroup) -> float | None:
    """(p - 1) / (m + p - 1) of p equal stages and m micro-batches (GPipe, arXiv:1811.06965); None without stages."""
    num_stages, num_parts = (group.settings.get(name) or 0 for name in ("num_stages", "num_microbatches"))
    return (num_stages - 1) / (num_parts + num_stages - 1) if num_stages > 1 else None


def pipeline_bubbles(group: RunGroup, steps: pandas.DataFrame) -> list[PipelineBubble]:
    """How long each rank of a pipeline waited; nothing for a strategy without stages on ranks of their own."""
    ideal, mine = ideal_bubble(group), _accounted_steps(group, steps)
    if ideal is None or not (mine.wait_ms > 0).any():
        return []
    found = []
    for rank in sorted({*map(int, mine["rank"])}):
        parts = step_parts(group, steps, rank)
        shares = parts.wait_ms / (parts.wait_ms + parts.forward_ms + parts.backward_ms)
        waited = mean_over_steps([each.to_numpy(float) for _, each in shares.groupby(parts.run_id)])
        if waited is not None:
            found.append(PipelineBubble(rank, waited, ideal))
    return found


def mean_over_steps(runs: Sequence[numpy.ndarray]) -> StepMean | None:
    """The mean of the runs' means, with Student's interval over runs; None without any."""
    means = numpy.array([values.mean() for values in runs if len(values)])
    return StepMean(*mean_interval(means), sum(map(len, runs)), len(means)) if len(means) else None


def _accounted_steps(group: RunGroup, steps: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of a group's ok runs that have phases."""
    mine = steps[steps.run_id.isin(group.ok_runs.run_id)]
    return mine.dropna(subset=[f"{phase}_ms" for phase in PHASES if phase not in MAY_LACK])
