"""What limits each strategy of a set, and the one option to try next.

    ./bench why results/latest

Shares of a step come from the step breakdown; what else limits comes from counters of the runs. Needs no torch.
"""

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.common.config import FIELDS
from scripts.results.answer import table_groups
from scripts.results.device_use import device_use
from scripts.results.formatting import printable
from scripts.results.options import WhyOptions
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_failures
from scripts.results.step_breakdown import (
    COMMUNICATION,
    COMPUTE_AND_COMMUNICATION,
    LOADER,
    WAITING,
    StepShare,
    ideal_bubble,
    pipeline_bubbles,
    shares_text,
    step_shares,
)
from scripts.shared.strategy_list import BASELINE

LEAST = 0.10  # of a step: what costs less is not called the limit
NEIGHBOUR, BUBBLE, COMPUTE = "a busy neighbour", "the pipeline's bubble", "compute"
LIMIT_OF_PART = {COMMUNICATION: "communication", LOADER: "the loader", WAITING: BUBBLE, "copy": "copies to the device"}
DDP_LIKE = {"ddp", "ddp_spawn", "slurm", "ddp_amp", "ddp_compile", "zero1", "hybrid_parallel"}


@dataclasses.dataclass(frozen=True)
class WhyRow:
    """What limits one strategy."""

    label: str
    shares: list[StepShare]
    """The parts of a step, the largest first; [] where no step was accounted."""
    limit: str
    """In words, such as `communication`; '' where it was not measured."""
    detail: str
    """The numbers behind it, such as `33 % in theory`; may be empty."""
    command: str
    """The one thing to try next."""

    @property
    def text(self) -> str:
        """ddp: compute 71 %, exposed communication 24 % -> communication limits it: ./bench run ddp_compressed"""
        parts = shares_text(self.shares) or "no step was accounted"
        detail = f" ({self.detail})" if self.detail else ""
        limit = f"{self.limit} limits it{detail}" if self.limit else "not measured"
        return f"{self.label}: {parts} -> {limit}: {self.command}"


def why_rows(results: ResultSet) -> list[WhyRow]:
    """A row for each timed group, in the order of the table."""
    groups = [group for group in table_groups(results) if group.throughput and not group.is_aa_copy]
    return [_why(results, group) for group in groups]


def main(options: WhyOptions) -> int:
    results = load_set(options.results)
    rows = why_rows(results)
    for row in rows:
        print(printable(row.text))
    if not rows:
        reasons = " ".join(describe_failures(results)[:3])
        print(f"error: no run in {options.results} has a throughput. {printable(reasons)}", file=sys.stderr)
    return int(not rows)


def _why(results: ResultSet, group: RunGroup) -> WhyRow:
    shares = step_shares(group, results.table("steps"))
    if taken := neighbour_share(results, group):
        where, names = ("GPUs", "nvidia-smi") if _on_gpus(group) else ("cores", "top")
        detail = f"other programs on its {where}" + (f" took {100 * taken:.0f} %" if where == "cores" else "")
        return WhyRow(group.label, shares, NEIGHBOUR, detail, f"close it ({names} names it), and measure again")
    if not shares:
        return WhyRow(group.label, [], "", "", _run(group, "--account-steps", 10))
    costs = {LIMIT_OF_PART[part.name]: part.share for part in shares if part.name in LIMIT_OF_PART}
    if (ideal := ideal_bubble(group)) and BUBBLE not in costs and group.is_parallel:
        costs[BUBBLE] = ideal  # stages within one process take turns, which no mark can tell from compute
    limit = max(costs, key=lambda name: costs[name], default=COMPUTE)
    if costs.get(limit, 0.0) < LEAST:
        limit = COMPUTE
    if limit == COMPUTE and shares[0].name == COMPUTE_AND_COMMUNICATION:
        limit = COMPUTE_AND_COMMUNICATION
    return WhyRow(group.label, shares, limit, _detail(results, group, limit), _remedy(results, group, limit))


def neighbour_share(results: ResultSet, group: RunGroup) -> float:
    """What other programs cost a group: of the cores' time that it could have used, on GPUs 1; 0 below LEAST.

    They cost nothing where they use cores that it leaves idle.
    """
    if _on_gpus(group):
        return float((group.ok_runs.other_gpu_processes > 0).mean() > 0.5)
    taken = (group.ok_runs.other_cpu_pct.fillna(0.0) + group.ok_runs.steal_pct.fillna(0.0)).mean() / 100
    row, num_cores = group.ok_runs.iloc[0], results.environment.get("num_cores") or 0
    wanted = min(1.0, row.world_size * row.threads_per_rank / num_cores) if num_cores else 1.0
    cost = min(taken, wanted + taken - 1)
    return float(cost) if cost >= LEAST else 0.0


def _detail(results: ResultSet, group: RunGroup, limit: str) -> str:
    if limit == BUBBLE:
        stages, parts = (group.settings.get(name) for name in ("num_stages", "num_microbatches"))
        theory = f"{100 * (ideal_bubble(group) or 0):.0f} % in theory, of {stages} stages and {parts} micro-batches"
        bubbles = pipeline_bubbles(group, results.table("steps"))
        waited = max((bubble.waited.value for bubble in bubbles), default=None)
        return theory if waited is None else f"up to {100 * waited:.0f} % of a rank's time, {theory}"
    if limit == "the loader" and (times := _times_without_loading(results, group)):
        return f"{times:.1f} x as fast on synthetic images"
    use = device_use(group, results.environment)
    return f"MFU {100 * use.mfu:.0f} %" if use and use.mfu and limit == COMPUTE else ""


def _times_without_loading(results: ResultSet, group: RunGroup) -> float | None:
    """The speed on synthetic images over that with loading, where the set, or its folder loaders/, has both."""
    nested = results.path / "loaders"
    for found in [results, *([load_set(nested)] if nested.is_dir() else [])]:
        speeds = {each.settings.get("loader") == "synthetic": each.timed_throughput.value
                  for each in found.timed_groups_of(group.strategy)}  # fmt: skip
        if len(speeds) == 2:
            return speeds[True] / speeds[False]
    return None


def _remedy(results: ResultSet, group: RunGroup, limit: str) -> str:
    """The one command to try next."""
    settings = group.settings
    larger = _run(group, "--global-batch", int(2 * group.ok_runs.global_batch.iloc[0]))
    if limit == "communication":
        return _less_communication(group, larger)
    if limit == "the loader":
        data = group.identity.requested.get("data") or ""
        named = "" if data == FIELDS["data"].default else f" --data {shlex.quote(str(data))}"
        more_workers = _run(group, "--workers", 2 * int(group.ok_runs.world_size.iloc[0]))
        packed = f"./bench data pack{named} && {_run(group, '--loader', 'packed')}"
        return packed if settings.get("loader") == "folder" else more_workers
    if limit == BUBBLE:
        num_parts = 2 * int(settings.get("num_microbatches") or 1)
        if group.strategy == "pipeline_parallel":
            return _run(group, "--microbatches", num_parts)
        return _run(group, "--split-size", max(1, int(group.ok_runs.global_batch.iloc[0]) // max(4, num_parts)))
    if limit == "copies to the device":
        return _run(group, "--prefetch", 2)
    if limit == COMPUTE_AND_COMMUNICATION:
        return (
            "./bench run ddp"
            if group.strategy == "dataparallel"
            else f"./bench study profile --strategy {group.strategy}"
        )
    return _faster_arithmetic(results, group, settings, larger)


def _less_communication(group: RunGroup, larger: str) -> str:
    if group.strategy == "horovod_ddp" and group.settings.get("compression") == "none":
        return _run(group, "--compression", "fp16")
    if group.strategy == "local_sgd":
        return _run(group, "--local-period", 2 * int(group.settings.get("local_period") or 4))
    return f"./bench run {group.strategy} ddp_compressed" if group.strategy in DDP_LIKE else larger


def _faster_arithmetic(results: ResultSet, group: RunGroup, settings: Mapping[str, Any], larger: str) -> str:
    row = group.ok_runs.iloc[0]
    if row.device == "cpu" and group.strategy == BASELINE:
        return "./bench run single ddp"
    if row.precision in ("fp32", "tf32") and _on_gpus(group):
        return f"./bench run {group.strategy} ddp_amp"
    if row.memory_format == "contiguous":
        return _run(group, "--memory-format", "channels_last")
    return larger if settings.get("compile") or group.strategy == "ddp_compile" else _run(group, "--compile")


def _on_gpus(group: RunGroup) -> bool:
    return bool((group.ok_runs.device == "cuda").any())


def _run(group: RunGroup, *flags: object) -> str:
    return f"./bench run {group.strategy} -- {' '.join(map(str, flags))}"
