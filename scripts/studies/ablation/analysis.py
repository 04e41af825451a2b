"""The ablation study: options that are turned on one at a time and all together, and their ratios to a baseline.

scripts/studies/ablation/plan.py plans the runs, scripts/studies/ablation/chart.py draws them. Needs no torch.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.rows import table_text
from scripts.results.families import ratios_to_baseline
from scripts.results.intervals import RatioEstimate
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.settings import READERS
from scripts.shared.commands import bench_command

BASELINE_OPTION, ALL_TOGETHER = "baseline", "all together"
CORES_OVER_RANKS = "cores / ranks"  # a value of threads_per_rank
ABLATE_COLUMNS = (
    "strategy", "option", "num_runs", "images_per_s", "ci_low", "ci_high", "ratio", "ratio_low", "ratio_high",
    "verdict", "why_not", "about", "torch", "commit", "date",
)  # fmt: skip


Fields = dict[str, object]
"""Values of requested settings: configuration fields, and threads_per_rank."""


@dataclasses.dataclass(frozen=True)
class Option:
    """Something that people turn on. `off` and `on` are the requested settings without it and with it."""

    name: str
    off: Fields
    on: Fields
    needs: str = ""
    """What not every machine or run has: see missing() in plan.py."""


# The baseline has every `off`.
OPTIONS = [
    Option("channels_last", {"memory_format": "contiguous"}, {"memory_format": "channels_last"}),
    Option("bf16", {"precision": "fp32"}, {"precision": "bf16"}, "bf16"),
    Option("fused optimizer", {"fused": False}, {"fused": True}),
    Option("torch.compile", {"compile": False}, {"compile": True}, "compiler"),
    Option("CUDA graphs (and compile)", {"cuda_graphs": False}, {"compile": True, "cuda_graphs": True}, "cuda"),
    Option("cudnn.benchmark", {"cudnn_benchmark": False}, {"cudnn_benchmark": True}, "cuda"),
    Option("buckets of 100 MiB", {"bucket_cap_mb": 0.0}, {"bucket_cap_mb": 100.0}, "ranks"),
    Option("static_graph", {"static_graph": False}, {"static_graph": True}, "ranks"),
    Option("gradient_as_bucket_view", {"gradient_as_bucket_view": False}, {"gradient_as_bucket_view": True}, "ranks"),
    Option("a thread a core", {"threads_per_rank": 1}, {"threads_per_rank": CORES_OVER_RANKS}),
    Option("fast decoder", {"decoder": "pillow"}, {"decoder": "auto"}, "files"),
    Option("packed images", {"loader": "folder"}, {"loader": "packed"}, "pack"),
    Option("a loader process", {"workers": 0}, {"workers": 1}, "files"),
    Option("a batch copied ahead", {"prefetch": 0}, {"prefetch": 1}, "copies"),
]


@dataclasses.dataclass(frozen=True)
class OptionResult:
    """The runs of the baseline, of one option, or of all together; or why there are none."""

    name: str
    group: RunGroup | None
    ratio: RatioEstimate | None
    """Throughput over the baseline's; None for the baseline itself."""
    why_not: str = ""


def requested_fields(options: list[Option]) -> Fields:
    """The requested settings of a run with these options, of all fields that any option has."""
    fields = {name: value for option in OPTIONS for name, value in option.off.items()}
    for option in options:
        fields |= option.on
    return fields


def option_results(results: ResultSet, strategy: str) -> list[OptionResult]:
    """The baseline, each option in the order of OPTIONS, and all together, by the requested settings of a set's runs.

    The intervals of the ratios are simultaneous. Raises UserError where the baseline was not timed, or the
    set has one option's runs in several settings.
    """
    groups: dict[str, RunGroup] = {}
    for group in results.groups:
        name = option_name(group.identity.requested) if group.strategy == strategy else ""
        if name and (group.windows_of_runs or name not in groups):
            if name in groups and groups[name].windows_of_runs:
                raise UserError(
                    f"{results.path} has {name} in several settings: {groups[name].label}, and {group.label}; "
                    f"measure into a set of its own: --results results/new"
                )
            groups[name] = group
    baseline = groups.get(BASELINE_OPTION)
    if baseline is None or not baseline.windows_of_runs:
        ablate = bench_command("study ablation", strategy=strategy)
        reasons = [text for text in baseline.rows.reason if text] if baseline else []
        why = f" ({reasons[-1]})" if reasons else ""
        raise UserError(f"{results.path} has no timed baseline of {strategy}{why}; {ablate} makes one")
    timed = {name: group.sample for name, group in groups.items() if group.windows_of_runs}
    ratios = ratios_to_baseline(BASELINE_OPTION, timed)
    names = [BASELINE_OPTION, *(option.name for option in OPTIONS), ALL_TOGETHER]
    unread = {each.name for each in OPTIONS if any(strategy not in READERS.get(key, [strategy]) for key in each.on)}
    not_run = "not run: here it comes to what the baseline has"
    whys = {name: f"{strategy} has no such option" if name in unread else not_run for name in names}
    return [_result(name, groups.get(name), ratios.get(name), whys[name]) for name in names]


def studied_strategies(results: ResultSet) -> list[str]:
    """The strategies with a timed baseline."""
    timed = (group for group in results.timed_groups if option_name(group.identity.requested) == BASELINE_OPTION)
    return [*dict.fromkeys(group.strategy for group in timed)]


def _result(name: str, group: RunGroup | None, ratio: RatioEstimate | None, not_run: str) -> OptionResult:
    """not_run: why there is no row of it, not even a skipped one."""
    if group is not None and group.windows_of_runs:
        return OptionResult(name, group, ratio)
    reasons = [] if group is None else [text for text in dict.fromkeys(group.rows.reason) if text]
    why_not = "; ".join(reasons) or not_run
    return OptionResult(name, None, None, why_not.removeprefix("skipped: "))


def option_name(requested: Mapping[str, object]) -> str:
    """Which one a run with these requested settings is: BASELINE_OPTION, the name of an option, or ALL_TOGETHER.

    '' for a run that does not belong to the study.
    """
    off = requested_fields([])
    if not off.keys() <= requested.keys():
        return ""
    requested = dict(requested)
    if requested["loader"] == "synthetic":
        requested["loader"] = "folder"  # both are the baseline's value: synthetic images are the user's choice
    different = {name: requested[name] for name, value in off.items() if requested[name] != value}
    if not different:
        return BASELINE_OPTION
    for option in OPTIONS:
        if different.keys() == option.on.keys() and all(
            value in (different[name], CORES_OVER_RANKS) for name, value in option.on.items()
        ):
            return option.name
    on = requested_fields(OPTIONS)
    all_on = all(on[name] in (value, CORES_OVER_RANKS) for name, value in different.items())
    return ALL_TOGETHER if all_on and len(different) > 1 else ""


def write_csv(results: ResultSet, strategy: str, options: Sequence[OptionResult], about: str) -> Path:
    """Write ablate.csv of the set: a row per option, also of those that were not run. about: model, machine and
    batch."""
    path = results.path / "ablate.csv"
    rows: list[dict[str, object]] = []
    baseline = options[0].group
    assert baseline is not None
    run = baseline.ok_runs.iloc[0]
    origin = {"about": about, "torch": run.torch, "commit": run.commit, "date": str(run.started_at)[:10]}
    for option in options:
        row: dict[str, object] = {"strategy": strategy, "option": option.name, "why_not": option.why_not} | origin
        if option.group is not None and (speed := option.group.throughput) is not None:
            row |= {"num_runs": speed.num_runs, "images_per_s": speed.value, "ci_low": speed.low, "ci_high": speed.high}
        if ratio := option.ratio:
            row |= {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "verdict": ratio.verdict}
        rows.append(row)
    write_text_atomically(path, table_text(ABLATE_COLUMNS, rows))
    return path
