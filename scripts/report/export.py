"""Export a result set as JSON, with intervals.

    ./bench export results/x --out set.json

Exit code: 1 where the set has no run, 2 for a mistake.
"""

import json
import math
import sys
from typing import Any

import numpy
import pandas

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from scripts.report.provenance import recorded
from scripts.results.accuracy import top1_accuracy
from scripts.results.intervals import CONFIDENCE, mean_interval
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
    others = group.rows[group.rows.status != "ok"]
    return {
        "label": group.label,
        "strategy": group.strategy,
        "is_parallel": group.is_parallel,
        "is_aa_copy": group.is_aa_copy,
        "settings": None if group.ok_runs.empty else {name: group.ok_runs[name].iloc[0] for name in SETTINGS},
        "runs": group.status_counts,
        "reasons": list(dict.fromkeys(filter(None, others.reason))),
        "images_per_s": rate and _interval(rate.value, rate.low, rate.high) | {"num_runs": rate.num_runs},
        "ratio_to_baseline": over
        and _interval(over.value, over.low, over.high)
        | {"baseline": results.baseline_label_of[group.label], "verdict": over.verdict},
        **{name: _mean(group.ok_runs[name]) for name in MEANS},
        "top1_percent": top1
        and _interval(top1.percent, top1.low, top1.high) | {"num_seeds": top1.num_seeds, "num_images": top1.num_images},
        "same_update": proof_text(group, results.table("equivalence")),
    }


def _interval(value: float, low: float | None, high: float | None) -> Document:
    return {"value": value, "low": low, "high": high}


def _mean(values: pandas.Series) -> Document | None:
    known = values.dropna().to_numpy(float)
    return _interval(*mean_interval(known)) | {"num_runs": len(known)} if len(known) else None


def plain(value: Any) -> Any:
    """What JSON can hold, as deep as it goes, with nine digits, as the tables have."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, numpy.integer) else value


def export_text(results: ResultSet) -> str:
    return json.dumps(plain(set_document(results)), indent=1, allow_nan=False) + "\n"


def main(options: ExportOptions) -> int:
    results = load_set(options.results)
    if not results.groups:
        print(f"error: {results.path}/runs.csv has no run, so there is nothing to export", file=sys.stderr)
        return 1
    if options.out is None:
        print(export_text(results), end="")
        return 0
    try:
        write_text_atomically(options.out, export_text(results))
    except OSError as error:
        raise UserError(f"cannot write {options.out}: {error.strerror}; name another file: --out") from None
    return 0
