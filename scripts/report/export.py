"""Print a result set as JSON, with intervals.

    ./bench export results/x >set.json

Exit code: 1 where the set has no run, 2 for a mistake.
"""

import dataclasses
import sys
from typing import Any

import pandas

from scripts.report.provenance import recorded
from scripts.results.accuracy import top1_accuracy
from scripts.results.intervals import CONFIDENCE, mean_estimate
from scripts.results.options import ExportOptions
from scripts.results.proofs import proof_text
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup

SCHEMA_VERSION = 2
MEANS = ("energy_j_per_image", "peak_memory_mb", "step_ms_p50", "step_ms_p95")
"""Columns of runs.csv whose mean over runs is exported."""
SETTINGS = (
    "arch", "image_size", "global_batch", "precision", "memory_format", "loader", "device_name", "world_size", "nodes",
)  # fmt: skip
Document = dict[str, Any]


def set_document(results: ResultSet) -> Document:
    started = sorted(filter(None, results.ok_runs.started_at))
    return {
        "schema": SCHEMA_VERSION,
        "set": results.name,
        "confidence": CONFIDENCE,
        "first_run_at": started[0] if started else None,
        "last_run_at": started[-1] if started else None,
        "hardware": recorded(results, "device_name"),
        "commits": recorded(results, "commit"),
        "torch": recorded(results, "torch"),
        "groups": [_group(results, group) for group in results.groups],
    }


def _group(results: ResultSet, group: RunGroup) -> Document:
    """None where something was not measured."""
    rate, over, top1 = group.throughput, results.speedups.get(group.label), top1_accuracy(group)
    return {
        "label": group.label,
        "strategy": group.strategy,
        "is_parallel": group.is_parallel,
        "is_aa_copy": group.is_aa_copy,
        "settings": None if group.ok_runs.empty else {name: group.ok_runs[name].iloc[0] for name in SETTINGS},
        "runs": group.status_counts,
        "reasons": [reason for reason in group.rows.reason.unique() if reason],
        "images_per_s": rate and dataclasses.asdict(rate),
        "ratio_to_baseline": over
        and dataclasses.asdict(over) | {"baseline": results.baseline_label_of[group.label], "verdict": over.verdict},
        **{name: _mean(group.ok_runs[name]) for name in MEANS},
        "top1_percent": top1 and dataclasses.asdict(top1),
        "same_update": proof_text(group, results.table("equivalence")),
    }


def _mean(values: pandas.Series) -> Document | None:
    known = values.dropna().to_numpy(float)
    return dataclasses.asdict(mean_estimate(known)) if len(known) else None


def export_text(results: ResultSet) -> str:
    return pandas.Series(set_document(results)).to_json(indent=1, double_precision=12) + "\n"


def main(options: ExportOptions) -> int:
    results = load_set(options.results)
    if not results.groups:
        print(f"error: {results.path}/runs.csv has no run, so there is nothing to export", file=sys.stderr)
        return 1
    print(export_text(results), end="")
    return 0
