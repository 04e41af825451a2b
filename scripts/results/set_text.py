"""What ran on what, and what failed."""

import pandas

from scripts.results.formatting import device_count, format_setting
from scripts.results.result_set import ResultSet


def describe_rows(rows: pandas.DataFrame) -> str:
    """What was run on what, of ok rows of runs.csv: arch, image size, global batch, hardware, devices."""

    def values(column: str) -> str:
        return "/".join(dict.fromkeys(map(format_setting, rows[column]))) or "?"

    few, most = rows.world_size.min(), rows.world_size.max()
    devices = device_count(most, values("device")) if len(rows) else "? devices"
    if few < most:
        devices = f"{few:.0f} to {devices}"
    images = ", synthetic images" if values("loader") == "synthetic" else ""
    batch = f"global batch {values('global_batch')}"
    if (rows.batch_per_device > 0).any():
        batch = f"{values('batch_per_device')} images a device (weak scaling: {batch})"
    return f"{values('arch')}, {values('image_size')} px, {batch}{images}; {values('device_name')}, {devices}"


def describe_failures(results: ResultSet) -> list[str]:
    """A sentence for each cause of rows that are not ok."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in results.groups:
        for status, rows in group.rows[group.rows.status != "ok"].groupby("status"):
            of = f" ({len(rows)} of {len(group.rows)})" if len(rows) < len(group.rows) else ""
            reason = "; ".join(dict.fromkeys(filter(None, rows.reason))) or "no reason was recorded"
            found.setdefault((str(status), reason), []).append(group.label + of)
    return [f"{status}: {', '.join(labels)}: {reason}" for (status, reason), labels in found.items()]
