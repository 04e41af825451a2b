"""What limits each strategy of a set, and the one option to try next.

    ./bench why results/latest

By shares of a step from the step breakdown, and counters of the runs.
"""

import dataclasses
import re
import shlex
import sys
from collections.abc import Sequence

from benchmarks.common.config import FIELDS
from scripts.results.answer import table_groups
from scripts.results.device_use import device_use
from scripts.results.options import WhyOptions
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_failures
from scripts.results.settings import DDP
from scripts.results.step_breakdown import (
    COMMUNICATION,
    COMPUTE,
    COMPUTE_AND_COMMUNICATION,
    COPY,
    LOADER,
    WAITING,
    ideal_bubble,
    pipeline_bubbles,
    shares_text,
    step_shares,
)
from scripts.shared.strategy_list import BASELINE

LEAST = 0.15  # of a step: what costs less is not called the limit
NEIGHBOUR = "a busy neighbour"
LOSSES = (COMMUNICATION, LOADER, WAITING, COPY)
"""Parts of a step in which nothing is computed."""
DEFAULT_CONFIGS = {False: "configs/smoke.yaml", True: "configs/imagenet-bench.yaml"}
"""Of ./bench run, without GPUs and with."""


@dataclasses.dataclass(frozen=True)
class WhyRow:
    """What limits one strategy."""

    label: str
    parts: str
    """Of a step, such as `compute 71 %, loader 20 %`; may be empty."""
    limit: str
    """A part of a step, such as `loader`; '' where it was not measured."""
    detail: str
    """The numbers behind it, such as `MFU 33 %`; may be empty."""
    command: str
    """The one thing to try next."""

    @property
    def text(self) -> str:
        """ddp: compute 71 %, loader 24 % -> loader limits it: ./bench run ddp -- --workers 4"""
        detail = f" ({self.detail})" if self.detail else ""
        limit = f"{self.limit} limits it{detail}" if self.limit else "not measured"
        return f"{self.label}: {self.parts or 'no step was accounted'} -> {limit}: {self.command}"


def why_rows(results: ResultSet) -> list[WhyRow]:
    """A row for each timed group, in the order of the table."""
    groups = [group for group in table_groups(results) if group.throughput and not group.is_aa_copy]
    return [_why(results, group) for group in groups]


def main(options: WhyOptions) -> int:
    results = load_set(options.results)
    rows = why_rows(results)
    for row in rows:
        print(row.text)
    if not rows:
        reasons = describe_failures(results)[:3]
        print(" ".join([f"error: no run in {options.results} has a throughput.", *reasons]), file=sys.stderr)
    return int(not rows)


def _why(results: ResultSet, group: RunGroup) -> WhyRow:
    shares = step_shares(group, results.table("steps"))
    if not shares:
        return WhyRow(group.label, "", "", "", _run(group, "--account-steps", 10))
    costs = {NEIGHBOUR: neighbour_share(results, group)}
    costs |= {part: share for part, share in shares.items() if part in LOSSES}
    if (ideal := ideal_bubble(group)) and WAITING not in costs and group.is_parallel and _on_gpus(group):
        costs[WAITING] = ideal  # stages within one process take turns, which no mark can tell from compute
    limit = max(costs, key=lambda name: costs[name])
    if costs[limit] < LEAST:
        limit = COMPUTE_AND_COMMUNICATION if COMPUTE_AND_COMMUNICATION in shares else COMPUTE
    detail, remedy = _detail(results, group, limit), _remedy(results, group, limit)
    return WhyRow(group.label, shares_text(shares), limit, detail, remedy)


def neighbour_share(results: ResultSet, group: RunGroup) -> float:
    """What other programs cost a group: of the cores' time that it could have used; on GPUs 1 or 0."""
    if _on_gpus(group):
        return float((group.ok_runs.other_gpu_processes > 0).mean() > 0.5)
    taken = float((group.ok_runs.other_cpu_pct.fillna(0.0) + group.ok_runs.steal_pct.fillna(0.0)).mean()) / 100
    row, num_cores = group.ok_runs.iloc[0], results.environment.get("num_cores") or 1
    wanted = min(1.0, row.world_size * row.threads_per_rank / num_cores)
    return min(taken, wanted + taken - 1)


def _detail(results: ResultSet, group: RunGroup, limit: str) -> str:
    if limit == NEIGHBOUR:
        taken = f"cores took {100 * neighbour_share(results, group):.0f} %"
        return f"other programs on its {'GPUs' if _on_gpus(group) else taken}"
    if limit == WAITING:
        num_stages, num_parts = (group.settings.get(name) for name in ("num_stages", "num_microbatches"))
        parts = f"{num_stages} stages and {num_parts} micro-batch{'es' * (num_parts != 1)}"
        theory = f"{100 * (ideal_bubble(group) or 0):.0f} % in theory, of {parts}"
        waited = [bubble.waited.value for bubble in pipeline_bubbles(group, results.table("steps"))]
        return f"up to {100 * max(waited):.0f} % of a rank's time, {theory}" if waited else theory
    use = device_use(group, results.environment)
    return f"MFU {100 * use.mfu:.0f} %" if use and use.mfu and limit == COMPUTE else ""


def _remedy(results: ResultSet, group: RunGroup, limit: str) -> str:
    settings, row = group.settings, group.ok_runs.iloc[0]
    if limit == NEIGHBOUR:
        return f"close it ({'nvidia-smi' if _on_gpus(group) else 'top'} names it), and measure again"
    if limit == COMMUNICATION:
        return _less_communication(results, group)
    if limit == LOADER and settings.get("loader") == "folder":
        data = _words("--data", group.identity.requested.get("data"), FIELDS["data"].default)
        return f"{shlex.join(['./bench', 'data', 'pack', *data])} && {_run(group, '--loader', 'packed')}"
    if limit == LOADER:
        return _run(group, "--workers", 2 * max(1, int(settings.get("workers") or 0)))
    if limit == WAITING:
        num_parts = 2 * int(settings["num_microbatches"])
        if group.strategy == "pipeline_parallel":
            return _run(group, "--microbatches", num_parts)
        return _run(group, "--split-size", max(1, int(row.global_batch) // max(4, num_parts)))
    if limit == COPY:
        return _run(group, "--prefetch", 2)
    if limit == COMPUTE_AND_COMMUNICATION and group.strategy != "dataparallel":
        return _with_options(group, ["./bench", "study", "profile", "--strategy", group.strategy])
    return _faster_arithmetic(results, group)


def _less_communication(results: ResultSet, group: RunGroup) -> str:
    measured = [results.ratio(each, group) for each in results.timed_groups_of("ddp_compressed")]
    no_help = any(ratio and ratio.verdict in ("slower", "no difference seen") for ratio in measured)
    if group.strategy not in DDP or group.strategy == "ddp_compressed" or no_help:
        return _larger_batch(group)
    return _run(group, with_strategy="ddp_compressed")


def _faster_arithmetic(results: ResultSet, group: RunGroup) -> str:
    row = group.ok_runs.iloc[0]
    if group.strategy == "dataparallel" or (group.strategy == BASELINE and not _on_gpus(group)):
        return _run(group, with_strategy="ddp")
    # a CPU that only emulates bf16 has no timed run in it
    has_bf16 = _on_gpus(group) or any((each.ok_runs.precision == "bf16").any() for each in results.timed_groups)
    if row.precision in ("fp32", "tf32") and has_bf16:
        return _run(group, with_strategy="ddp_amp") if group.family == "ddp" else _run(group, "--precision", "bf16")
    if row.memory_format == "contiguous":
        return _run(group, "--memory-format", "channels_last")
    compiled = group.settings.get("compile") or group.strategy == "ddp_compile"
    return _larger_batch(group) if compiled else _run(group, "--compile")


def _larger_batch(group: RunGroup) -> str:
    return _run(group, "--global-batch", 2 * int(group.ok_runs.global_batch.iloc[0]))


def _on_gpus(group: RunGroup) -> bool:
    return bool((group.ok_runs.device == "cuda").any())


def _run(group: RunGroup, *flags: object, with_strategy: str = "") -> str:
    """The command that runs the group again with these flags, or beside another strategy."""
    return _with_options(group, ["./bench", "run", *filter(None, [group.strategy, with_strategy])], flags)


def _with_options(group: RunGroup, words: list[str], flags: Sequence[object] = ()) -> str:
    """A command with the configuration, images and flags of the group's runs, and these flags, which win."""
    row = group.ok_runs.iloc[0]
    config = _words("--config", row.config, DEFAULT_CONFIGS[_on_gpus(group)])
    data = _words("--data", group.identity.requested.get("data"), FIELDS["data"].default)
    replaced = "|".join(["--label", "--config", "--data", *map(str, flags[:1])])
    own = [*shlex.split(re.sub(rf"({replaced})[ =]('[^']*'|\S+)", "", row.options)), *map(str, flags)]
    return shlex.join([*words, *config, *data, *(["--", *own] if own else [])])


def _words(option: str, value: object, default: object) -> list[str]:
    return [option, str(value)] if value and value != default else []
