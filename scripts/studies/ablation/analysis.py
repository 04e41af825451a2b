"""What each option is worth, one at a time from a baseline and all together: the options, and a set's runs of them.

    from scripts.studies.ablation.analysis import OPTIONS, points_of

scripts/studies/ablation/plan.py plans the runs, scripts/studies/ablation/chart.py draws them. Needs no torch.
"""

import csv
import dataclasses
import io
from pathlib import Path

from benchmarks.common.store.results import format_cell, write_text_atomically
from benchmarks.common.system.errors import UserError
from scripts.sets.result_set import Group, ResultSet
from scripts.stats.families import ratios_to_baseline
from scripts.stats.intervals import RatioEstimate

BASELINE, TOGETHER = "baseline", "all together"
SHARE = "share"  # of threads: a rank's share of the cores
COLUMNS = (
    "strategy", "option", "num_runs", "images_per_s", "ci_low", "ci_high", "ratio", "ratio_low", "ratio_high",
    "verdict", "why_not", "about", "torch", "commit", "date",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Option:
    """Something people turn on. off, on: fields of what a run is asked. needs: what not every machine or run has."""

    name: str
    off: dict[str, object]
    on: dict[str, object]
    needs: str = ""


# The one table. The baseline has every `off`.
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
    Option("a thread a core", {"threads_per_rank": 1}, {"threads_per_rank": SHARE}),
    Option("fast decoder", {"decoder": "pillow"}, {"decoder": "auto"}, "files"),
    Option("packed images", {"loader": "folder"}, {"loader": "packed"}, "pack"),
    Option("a loader process", {"workers": 0}, {"workers": 1}, "files"),
    Option("a batch copied ahead", {"prefetch": 0}, {"prefetch": 1}, "copies"),
]


@dataclasses.dataclass(frozen=True)
class Point:
    """An option, the baseline or all together: its runs and what they are worth, or why there are none."""

    name: str
    group: Group | None
    worth: RatioEstimate | None
    why_not: str = ""


def fields_of(options: list[Option]) -> dict[str, object]:
    """What a run with these options is asked, of the fields that any option has; of threads SHARE stays."""
    found = {name: value for option in OPTIONS for name, value in option.off.items()}
    for option in options:
        found |= option.on
    return found


def points_of(results: ResultSet, strategy: str) -> list[Point]:
    """The baseline, each option in the table's order, and all together. A set's runs are told by what they were asked.

    Raises UserError where the baseline was not timed, or a place has runs in several settings.
    """
    found: dict[str, Group] = {}
    for group in results.groups:
        if group.strategy == strategy and (name := name_of(group.settings)) and (group.samples or name not in found):
            if name in found and found[name].samples:
                raise UserError(
                    f"{results.path} has {name} in several settings: {found[name].label}, and {group.label}; "
                    "measure into a set of its own: RESULTS=results/new"
                )
            found[name] = group
    base = found.get(BASELINE)
    if base is None or not base.samples:
        raise UserError(
            f"{results.path} has no timed baseline of {strategy}; make ablate STRATEGY={strategy} makes one"
        )
    timed = {name: group.sample for name, group in found.items() if group.samples}
    worth = ratios_to_baseline(BASELINE, timed)
    names = [BASELINE, *(option.name for option in OPTIONS), TOGETHER]
    return [_point(name, found.get(name), worth.get(name)) for name in names]


def studied(results: ResultSet) -> list[str]:
    """The strategies with a timed baseline."""
    timed = (group for group in results.groups if group.samples and name_of(group.settings) == BASELINE)
    return [*dict.fromkeys(group.strategy for group in timed)]


def _point(name: str, group: Group | None, worth: RatioEstimate | None) -> Point:
    if group is not None and group.samples:
        return Point(name, group, worth)
    reasons = [] if group is None else [text for text in dict.fromkeys(group.rows.reason) if text]
    why = "; ".join(reasons) or "not run: here it comes to what the baseline has"
    return Point(name, None, None, why.removeprefix("skipped: "))


def name_of(asked: dict) -> str:
    """Which point a run with these settings is; empty for one that has nothing to do with the table."""
    known = fields_of([])
    if not known.keys() <= asked.keys():
        return ""
    asked = asked | {"loader": "folder"} if asked["loader"] == "synthetic" else asked  # whoever asks for it has it off
    different = {name: asked[name] for name, value in known.items() if asked[name] != value}
    if not different:
        return BASELINE
    for option in OPTIONS:
        if different.keys() == option.on.keys() and all(different[n] == v for n, v in option.on.items() if v != SHARE):
            return option.name
    wanted = fields_of(OPTIONS)
    all_on = all(
        value in (wanted[name], asked[name]) and wanted[name] in (value, SHARE) for name, value in different.items()
    )
    return TOGETHER if all_on and len(different) > 1 else ""


def write_csv(results: ResultSet, strategy: str, points: list[Point], about: str) -> Path:
    """ablate.csv of the set: a row a point, also of those that were not run. about: what was run on what."""
    path, out = results.path / "ablate.csv", io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    base = points[0].group.ok.iloc[0]
    origin = {"about": about, "torch": base.torch, "commit": base.commit, "date": str(base.started_at)[:10]}
    for point in points:
        row = {"strategy": strategy, "option": point.name, "why_not": point.why_not} | origin
        if point.group is not None:
            speed = point.group.throughput
            row |= {"num_runs": speed.num_runs, "images_per_s": speed.value, "ci_low": speed.low, "ci_high": speed.high}
        if worth := point.worth:
            row |= {"ratio": worth.value, "ratio_low": worth.low, "ratio_high": worth.high, "verdict": worth.verdict}
        writer.writerow({name: format_cell(value) for name, value in row.items()})
    write_text_atomically(path, out.getvalue())
    return path
