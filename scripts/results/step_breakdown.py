"""Where the time of a step goes, by its step breakdown: parts, exposed communication, pipeline bubbles."""

import dataclasses
from collections.abc import Mapping

import pandas

from scripts.results.intervals import Estimate, mean_estimate
from scripts.results.run_group import RunGroup

PHASES = ("data", "copy", "forward", "backward", "exposed_comm", "wait", "optimizer", "other")
LEAST_SHOWN = 0.015  # of a step
MAY_LACK = {"exposed_comm", "wait"}
COMPUTE, COMMUNICATION, LOADER, COPY, WAITING = "compute", "exposed communication", "loader", "copy", "waiting"
COMPUTE_AND_COMMUNICATION = "compute with communication"
"""Where communication cannot be told from the forward and backward passes, as in fsdp."""
PART_OF_PHASE = {
    **dict.fromkeys(("forward", "backward", "optimizer"), COMPUTE),
    "data": LOADER,
    "copy": COPY,
    "exposed_comm": COMMUNICATION,
    "wait": WAITING,
    "other": "other",
}


@dataclasses.dataclass(frozen=True)
class PipelineBubble:
    """The share of its time that one rank of a pipeline waited, 0 to 1; ideal: with equal stages and no messages."""

    rank: int
    waited: Estimate
    ideal: float


def step_parts(group: RunGroup, steps: pandas.DataFrame, rank: int | None = None) -> pandas.DataFrame:
    """The accounted steps of a strategy's ok runs: a row a step, `run_id`, and `<phase>_ms` for each of PHASES.

    rank: None is the lowest. exposed_comm_ms: empty where communication cannot be told from forward and backward.
    """
    mine = _accounted_steps(group, steps)
    rank = mine["rank"].min() if rank is None else rank
    return mine[mine["rank"] == rank][["run_id", *(f"{phase}_ms" for phase in PHASES)]].fillna({"wait_ms": 0.0})


def step_shares(group: RunGroup, steps: pandas.DataFrame) -> dict[str, float]:
    """Of a step, 0 to 1, by part, the largest first; of a pipeline over all its ranks, else of the lowest. {} where no
    step was accounted."""
    ranks: list[int | None] = [bubble.rank for bubble in pipeline_bubbles(group, steps)]
    parts = pandas.concat([step_parts(group, steps, rank) for rank in ranks or [None]])
    if parts.empty:
        return {}
    means = parts[[f"{phase}_ms" for phase in PHASES]].mean()
    ms: dict[str, float] = {}
    for phase, part in PART_OF_PHASE.items():
        if means[f"{phase}_ms"] > 0:  # below 0 by noise
            ms[part] = ms.get(part, 0.0) + float(means[f"{phase}_ms"])
    several = (group.ok_runs.world_size > 1).any() and group.is_parallel
    if several and parts.exposed_comm_ms.isna().all() and WAITING not in ms:
        ms[COMPUTE_AND_COMMUNICATION] = ms.pop(COMPUTE, 0.0)
    whole = sum(ms.values())
    return {part: ms[part] / whole for part in sorted(ms, key=lambda part: -ms[part])}


def shares_text(shares: Mapping[str, float]) -> str:
    """compute 71 %, exposed communication 24 %, loader 5 %"""
    return ", ".join(f"{part} {100 * share:.0f} %" for part, share in shares.items() if share >= LEAST_SHOWN)


def exposed_communication(group: RunGroup, steps: pandas.DataFrame) -> Estimate | None:
    """Of the lowest rank, milliseconds a step; None where it was not measured."""
    parts = step_parts(group, steps)
    return mean_over_runs(parts.exposed_comm_ms, parts.run_id)


def ideal_bubble(group: RunGroup) -> float | None:
    """(p - 1) / (m + p - 1) of p stages and m micro-batches (GPipe, arXiv:1811.06965); None without stages."""
    num_stages, num_parts = (group.settings.get(name) or 0 for name in ("num_stages", "num_microbatches"))
    return (num_stages - 1) / (num_parts + num_stages - 1) if num_stages > 1 else None


def pipeline_bubbles(group: RunGroup, steps: pandas.DataFrame) -> list[PipelineBubble]:
    """Of each rank; [] for a strategy without stages on ranks of their own."""
    ideal, mine = ideal_bubble(group), _accounted_steps(group, steps)
    if ideal is None or not (mine.wait_ms > 0).any():
        return []
    found = []
    for rank in sorted({*map(int, mine["rank"])}):
        parts = step_parts(group, steps, rank)
        shares = parts.wait_ms / (parts.wait_ms + parts.forward_ms + parts.backward_ms)
        if waited := mean_over_runs(shares, parts.run_id):
            found.append(PipelineBubble(rank, waited, ideal))
    return found


def mean_over_runs(values: pandas.Series, run_ids: pandas.Series) -> Estimate | None:
    """Of each run's mean, with Student's interval; None without values."""
    means = values.groupby(run_ids).mean().dropna()
    return mean_estimate(means.to_numpy(float)) if len(means) else None


def _accounted_steps(group: RunGroup, steps: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of a group's ok runs that have phases."""
    mine = steps[steps.run_id.isin(group.ok_runs.run_id)]
    return mine.dropna(subset=[f"{phase}_ms" for phase in PHASES if phase not in MAY_LACK])
