"""Where the time of a step goes, in the step breakdown of a group: its parts, exposed communication, pipeline bubbles.

Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

import numpy
import pandas

from scripts.results.formatting import plural_of_several
from scripts.results.intervals import mean_interval
from scripts.results.run_group import RunGroup

PHASES = ("data", "copy", "forward", "backward", "exposed_comm", "wait", "optimizer", "other")
MAY_LACK = {"exposed_comm", "wait"}


@dataclasses.dataclass(frozen=True)
class StepMean:
    """A mean over the steps of some runs' breakdowns, and its 95 % interval, None where one run has no spread."""

    value: float
    low: float | None
    high: float | None
    num_steps: int
    num_runs: int

    def text(self, scale: float = 1.0) -> str:
        """54±22: the mean, and how far its interval reaches, if it has one."""
        reach = "" if self.high is None else f"±{scale * (self.high - self.value):.0f}"
        return f"{scale * self.value:.0f}{reach}"


@dataclasses.dataclass(frozen=True)
class PipelineBubble:
    """The share of a pipeline's time in which one rank waited, 0 to 1, and the one of equal stages without messages."""

    rank: int
    waited: StepMean
    ideal: float


def step_parts(group: RunGroup, steps: pandas.DataFrame, rank: int | None = None) -> pandas.DataFrame:
    """The steps of the breakdown of a strategy's ok runs: a row a step, `run_id`, and `<phase>_ms` for each of PHASES.

    rank: whose steps (default: the lowest that has a breakdown). exposed_comm_ms is empty where communication cannot be
    separated from forward and backward.
    """
    names = [f"{phase}_ms" for phase in PHASES]
    mine = steps[steps.run_id.isin(group.ok_runs.run_id)]
    mine = mine.dropna(subset=[f"{phase}_ms" for phase in PHASES if phase not in MAY_LACK])
    rank = mine["rank"].min() if rank is None else rank
    return mine[mine["rank"] == rank][["run_id", *names]].fillna({"wait_ms": 0.0})


def exposed_communication(group: RunGroup, steps: pandas.DataFrame) -> StepMean | None:
    """Exposed communication of the lowest rank, milliseconds a step; None where it was not measured."""
    parts = step_parts(group, steps).dropna(subset=["exposed_comm_ms"])
    return mean_over_steps([each.exposed_comm_ms.to_numpy(float) for _, each in parts.groupby("run_id")])


def describe_exposed(groups: Sequence[RunGroup], steps: pandas.DataFrame) -> str:
    """For below a table: whose steps these are, n, and what the ± is. '' without any."""
    found = [mean for group in groups if (mean := exposed_communication(group, steps))]
    if not found:
        return ""
    num_steps, num_runs = ({each.num_steps for each in found}, {each.num_runs for each in found})
    return (
        f"Exposed comm.: of the lowest rank, n = {plural_of_several(num_steps, 'accounted step')} of "
        f"{plural_of_several(num_runs, 'run')}; ±: Student's t, 95 %, over the runs."
    )


def pipeline_bubbles(group: RunGroup, steps: pandas.DataFrame) -> list[PipelineBubble]:
    """How long each rank of a pipeline waited; nothing for a strategy without stages on ranks of their own.

    Ideal: (p - 1) / (m + p - 1) for p equal stages and m micro-batches (GPipe, arXiv:1811.06965, section 2.3).
    """
    num_stages, num_parts = (group.settings.get(name) or 0 for name in ("num_stages", "num_microbatches"))
    mine = steps[steps.run_id.isin(group.ok_runs.run_id)]
    if num_stages < 2 or not (mine.wait_ms > 0).any():
        return []
    found = []
    for rank in sorted({int(rank) for rank in mine.loc[mine.data_ms.notna(), "rank"]}):
        parts = step_parts(group, steps, rank)
        shares = parts.wait_ms / (parts.wait_ms + parts.forward_ms + parts.backward_ms)
        waited = mean_over_steps([shares[each].to_numpy(float) for each in parts.groupby("run_id").groups.values()])
        if waited is not None:
            ideal = (num_stages - 1) / (num_parts + num_stages - 1)
            found.append(PipelineBubble(rank, waited, ideal))
    return found


def mean_over_steps(runs: Sequence[numpy.ndarray]) -> StepMean | None:
    """The mean of the runs' means, with Student's interval over runs; None without any."""
    means = numpy.array([values.mean() for values in runs if len(values)])
    if not len(means):
        return None
    mean, low, high = mean_interval(means)
    if low == high:  # runs that are all equal show no spread
        low = high = None
    return StepMean(mean, low, high, sum(map(len, runs)), len(means))
