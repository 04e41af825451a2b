"""What ran on what, on which images, and what failed. Needs no torch."""

import re
from collections.abc import Iterable

import pandas

from scripts.results.formatting import device_count, format_setting
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup

# benchmarks.common.listing: classes, training and validation images
COUNTS = re.compile(r"(\d{1,12})-(\d{1,12})-(\d{1,12})-", re.ASCII)
UNKNOWN = "unrecorded images"


def describe_sets(sets: list[ResultSet]) -> str:
    """What was run on what, from the ok rows: arch, image size, global batch, hardware, devices."""
    return describe_rows(pandas.concat([each.ok_runs for each in sets]))


def describe_rows(rows: pandas.DataFrame) -> str:
    """The same of some rows of runs.csv."""

    def values(column: str, unknown: str = "?") -> str:
        found = dict.fromkeys(map(format_setting, rows[column]))
        if len(found) > 3 and pandas.api.types.is_numeric_dtype(rows[column]):
            return f"{format_setting(rows[column].min())} to {format_setting(rows[column].max())}"
        return "/".join(text for text in found if text != "unknown") or unknown

    num_devices = sorted({value for value in rows.world_size if value > 0})
    device = rows.device.iloc[0] if rows.device.nunique() == 1 else ""
    devices = device_count(num_devices[-1], device) if num_devices else "? devices"
    if len(num_devices) > 1:
        devices = f"{num_devices[0]:.0f} to {devices}"
    images = ", synthetic images" if values("loader") == "synthetic" else ""
    batch = f"global batch {values('global_batch')}"
    if (rows.batch_per_device > 0).any():
        batch = f"{values('batch_per_device')} images a device (weak scaling: {batch})"
    return (
        f"{values('arch')}, {values('image_size')} px, {batch}{images}; "
        f"{values('device_name', 'hardware unknown')}, {devices}"
    )


def describe_images(groups: Iterable[RunGroup]) -> str:
    """Which images were trained on, such as "12 classes, 480 training and 132 validation images".

    By the fingerprint of the data: no name of a folder is believed. Several kinds are joined by "or".
    """
    return " or ".join(dict.fromkeys(_images_of(group) for group in groups)) or UNKNOWN


def _images_of(group: RunGroup) -> str:
    if {format_setting(loader) for loader in group.ok_runs.loader} == {"synthetic"}:
        return "synthetic images"
    found = COUNTS.match(str(group.identity.requested.get("fingerprint") or ""))
    if not found:
        return UNKNOWN
    classes, train, val = (f"{int(number):,}" for number in found.groups())
    return f"{classes} classes, {train} training and {val} validation images"


def describe_failures(results: ResultSet) -> list[str]:
    """A sentence for each cause of rows that are not ok, or that are ok without a throughput."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in results.groups:
        for status, number in group.status_counts.items():
            rows = group.rows[group.rows.status == status]
            of = f" ({number} of {len(group.rows)})" if number < len(group.rows) else ""
            reason = "; ".join(dict.fromkeys(filter(None, rows.reason))) or "no reason was recorded"
            if status == "ok" and not group.windows_of_runs:
                found.setdefault((status, "neither windows nor images_per_s"), []).append(group.label)
            elif status != "ok":
                found.setdefault((status or "no status", reason), []).append(group.label + of)
    return [f"{status}: {', '.join(labels)}: {reason}" for (status, reason), labels in found.items()]
