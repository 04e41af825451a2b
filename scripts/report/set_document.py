"""What ./bench export says of a set. export.schema.json in this folder describes it.

Text is on one line, without control characters. Numbers have nine significant digits, as the tables have. Needs no
torch.
"""

import datetime
import math
from collections.abc import Iterable
from typing import Any

import numpy
import pandas

from benchmarks.common.rows import STATUSES
from scripts.results.accuracy import top1_accuracy
from scripts.results.epoch_time import epoch_time
from scripts.results.formatting import printable
from scripts.results.identity import compute_precision
from scripts.results.intervals import CONFIDENCE, mean_interval
from scripts.results.proofs import proof_text
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_images

SCHEMA_VERSION = 1
MEANS = ("energy_j_per_image", "peak_memory_mb", "step_ms_p50", "step_ms_p95")
"""Columns of runs.csv whose mean over runs is exported."""

Document = dict[str, Any]
"""What export.schema.json describes, or a part of it."""


def set_document(results: ResultSet) -> Document:
    """The document of a set. Raises UserError where the set contradicts itself."""
    results.refuse_contradictions()
    ok = results.ok_runs
    moments = sorted(filter(None, map(parse_moment, ok.started_at)))
    return {
        "schema": SCHEMA_VERSION,
        "set": plain(results.name),
        "confidence": CONFIDENCE,
        "first_run_at": moments[0].isoformat() if moments else None,
        "last_run_at": moments[-1].isoformat() if moments else None,
        "hardware": _distinct(ok.device_name),
        "commits": _distinct(ok.commit),
        "torch": _distinct(ok.torch),
        "images": plain(describe_images(results.timed_groups)),
        "groups": [_group(results, group) for group in results.groups],
    }


def plain(text: object) -> str:
    """Text on one line that controls no terminal."""
    return printable(str(text))


def parse_moment(text: str) -> datetime.datetime | None:
    """A time of runs.csv; None for what is none. One without a zone is UTC, as the suite writes it."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted({plain(value) for value in values if value})


def _group(results: ResultSet, group: RunGroup) -> Document:
    """One strategy with one choice of settings."""
    counts = group.status_counts
    known = sum(counts.get(status, 0) for status in STATUSES)
    return {
        "label": plain(group.label),
        "strategy": plain(group.strategy),
        "is_parallel": group.is_parallel,
        "is_aa_copy": group.is_aa_copy,
        "settings": _settings(group),
        "runs": {status: counts.get(status, 0) for status in STATUSES} | {"other": len(group.rows) - known},
        "reasons": list(dict.fromkeys(plain(text) for text in group.rows[group.rows.status != "ok"].reason if text)),
        "images_per_s": _throughput(group),
        "epoch_s": _epoch(results, group),
        "ratio_to_baseline": _ratio(results, group),
        **{name: _mean(group.ok_runs[name]) for name in MEANS},
        "top1_percent": _accuracy(group),
        "proof": _proof(results, group),
    }


def _settings(group: RunGroup) -> Document | None:
    """Of its ok runs, which have them in common; None without one."""
    if group.ok_runs.empty:
        return None
    first = group.ok_runs.iloc[0]
    return {
        "arch": plain(first.arch),
        "image_size": _count(first.image_size),
        "global_batch": _count(first.global_batch),
        "precision": plain(compute_precision(group.identity) or first.precision),
        "memory_format": plain(first.memory_format),
        "loader": plain(first.loader),
        "device_name": plain(first.device_name),
        "num_devices": _count(first.world_size),
        "num_nodes": _count(first.nodes),
    }


def _number(value: float | None) -> float | None:
    """None for what is no finite number, which JSON cannot hold."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")


def _count(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def _interval(value: float, low: float | None, high: float | None) -> Document:
    return {"value": _number(value), "low": _number(low), "high": _number(high)}


def _throughput(group: RunGroup) -> Document | None:
    rate = group.throughput
    if rate is None:
        return None
    return _interval(rate.value, rate.low, rate.high) | {"num_runs": rate.num_runs, "num_windows": rate.num_windows}


def _epoch(results: ResultSet, group: RunGroup) -> Document | None:
    if group.throughput is None:
        return None
    epoch = epoch_time(results, group)
    return _interval(epoch.value, epoch.low, epoch.high) | {
        "num_runs": len(epoch.windows_of_runs),
        "is_measured": epoch.measured,
    }


def _ratio(results: ResultSet, group: RunGroup) -> Document | None:
    speedup = results.speedups.get(group.label)
    if speedup is None:
        return None
    return _interval(speedup.value, speedup.low, speedup.high) | {
        "baseline": plain(results.baseline_label_of[group.label]),
        "verdict": speedup.verdict,
        "why": speedup.why,
    }


def _mean(values: pandas.Series) -> Document | None:
    """The mean over runs with Student's interval; None where nothing was measured."""
    known = values[numpy.isfinite(values)].to_numpy(float)
    return _interval(*mean_interval(known)) | {"num_runs": len(known)} if len(known) else None


def _accuracy(group: RunGroup) -> Document | None:
    top1 = top1_accuracy(group)
    if top1 is None:
        return None
    counts = {"num_seeds": top1.num_seeds, "num_images": top1.num_images}
    return _interval(top1.percent, top1.low, top1.high) | counts


def _proof(results: ResultSet, group: RunGroup) -> Document:
    """The verdict in one word, and the report's cell, which says more."""
    text = plain(proof_text(group, results.table("equivalence")))
    if not text:
        return {"verdict": "none", "text": text}
    verdicts = {"yes": "proved", "no proof": "none", "not proved": "not proved", "skipped": "skipped"}
    found = next((verdict for start, verdict in verdicts.items() if text.startswith(start)), "failed")
    return {"verdict": found, "text": text}
