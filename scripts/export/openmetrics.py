"""A set's values as OpenMetrics text, version 1.0.0, which Prometheus and its node exporter read.

Specification: https://prometheus.io/docs/specs/om/open_metrics_spec/. All are gauges, in base units, without
timestamps; the time of the last run is a value of its own. The ends of an interval are metrics of their own, so that a
sum over labels mixes nothing. What was not measured has no sample.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from scripts.export.set_document import Document, parse_moment

PREFIX = "imagenet_bench"
BOUNDS = {"value": "", "low": "_ci_low", "high": "_ci_high"}
"""The ends of an interval and its value, and what each adds to a metric's name."""

Labels = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A value of the document with an interval, and the metric that it becomes."""

    key: str
    name: str
    unit: str
    meaning: str
    scale: float = 1.0
    """One unit of the document, in units of the metric: a value of the document times this is the metric's."""


QUANTITIES = (
    Quantity("images_per_s", "throughput", "images_per_second", "Training throughput, the geometric mean of the runs"),
    Quantity("ratio_to_baseline", "speed", "ratio", "Throughput over that of one process"),
    Quantity("epoch_s", "epoch", "seconds", "Training pass over the 1,281,167 images of ImageNet"),
    Quantity("energy_j_per_image", "energy", "joules_per_image", "What the devices of a run drew in its windows"),
    Quantity("peak_memory_mb", "peak_memory", "bytes", "Most memory of one rank", 1e6),
    Quantity("top1_percent", "top1", "ratio", "Top-1 accuracy of the last epoch", 0.01),
)
ENDS = {"value": "", "low": "; lower end of its 95 % interval", "high": "; upper end of its 95 % interval"}
PROOFS = {
    "proved": ("proof_passed", "1: the proof covers these settings and found the same weights"),
    "failed": ("proof_failed", "1: the proof found other weights, or failed"),
}


def openmetrics_text(document: Document) -> str:
    """The document of a set as OpenMetrics text; it ends with # EOF."""
    labels = {group["label"]: _labels(document, group) for group in document["groups"]}
    lines = [*_set_info(document)]
    for quantity in QUANTITIES:
        for end, suffix in BOUNDS.items():
            samples = [
                (labels[group["label"]], quantity.scale * group[quantity.key][end])
                for group in document["groups"]
                if group[quantity.key] and group[quantity.key][end] is not None
            ]
            name = f"{PREFIX}_{quantity.name}{suffix}_{quantity.unit}"
            lines += _family(name, quantity.unit, f"{quantity.meaning}{ENDS[end]}", samples)
    runs = [
        (labels[group["label"]] | {"status": status}, count)
        for group in document["groups"]
        for status, count in group["runs"].items()
    ]
    lines += _family(f"{PREFIX}_runs", "", "Rows of runs.csv by status", runs)
    for verdict, (name, meaning) in PROOFS.items():
        found = [(labels[each["label"]], int(each["proof"]["verdict"] == verdict)) for each in document["groups"]]
        lines += _family(f"{PREFIX}_{name}", "", meaning, found)
    return "\n".join([*lines, "# EOF", ""])


def _labels(document: Document, group: Document) -> Labels:
    return {"set": document["set"], "label": group["label"], "strategy": group["strategy"]}


def _set_info(document: Document) -> Iterator[str]:
    """What the set is of, and when its last run began, in seconds since 1970."""
    name = f"{PREFIX}_set"
    yield f"# TYPE {name} info"
    yield f"# HELP {name} Hardware, commit and torch of a result set"
    facts = {key: ", ".join(document[key]) for key in ("hardware", "commits", "torch")}
    yield _sample(f"{name}_info", {"set": document["set"], **facts}, 1)
    last = parse_moment(document["last_run_at"] or "")
    moments = [({"set": document["set"]}, last.timestamp())] if last else []
    yield from _family(f"{PREFIX}_last_run_timestamp_seconds", "seconds", "Start of the set's last ok run", moments)


def _family(name: str, unit: str, meaning: str, samples: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    """A gauge with all its samples; nothing where there are none."""
    if not samples:
        return
    yield f"# TYPE {name} gauge"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {meaning}"
    yield from (_sample(name, labels, value) for labels, value in samples)


def _sample(name: str, labels: Labels, value: float) -> str:
    named = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{named}}} {value:.12g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
