"""A set's throughputs as github-action-benchmark reads them: the JSON of its tool customBiggerIsBetter.

Format: https://github.com/benchmark-action/github-action-benchmark. It plots each name over commits.
"""

import json

from scripts.export.set_document import Document
from scripts.stats.formatting import format_number


def action_benchmark_text(document: Document) -> str:
    """An array with images/s of each timed group, and its ratio to its baseline where it has one."""
    entries = []
    for group in document["groups"]:
        rate, ratio = group["images_per_s"], group["ratio_to_baseline"]
        if rate:
            extra = f"{rate['num_runs']} runs; {_origin(document, group)}"
            entries.append(_entry(group["label"], "images/s", rate, extra))
        if ratio:
            entries.append(_entry(f"{group['label']} / {ratio['baseline']}", "ratio", ratio, ratio["verdict"]))
    return json.dumps(entries, indent=1, allow_nan=False) + "\n"


def _entry(name: str, unit: str, quantity: Document, extra: str) -> Document:
    entry = {"name": name, "unit": unit, "value": quantity["value"]}
    if quantity["low"] is not None and quantity["high"] is not None:
        entry["range"] = f"95 % interval {format_number(quantity['low'])} to {format_number(quantity['high'])}"
    return entry | {"extra": extra}


def _origin(document: Document, group: Document) -> str:
    """What ran on what."""
    settings = group["settings"]
    torch = "/".join(document["torch"]) or "unknown"
    return f"{settings['arch']}, {settings['precision']}; {settings['device_name']}; torch {torch}"
