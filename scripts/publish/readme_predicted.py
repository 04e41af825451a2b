"""The READMEs' figures of the studies predict-check and allreduce, and the prediction beside what is published."""

from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.store.frames import iterate_rows
from scripts.publish.markdown_tables import describe_origin, markdown_table, read_cells
from scripts.studies.predict.prediction_error import CASE_COLUMNS, summarize_errors
from scripts.studies.predict.published_figures import published_rows

NUMBERS = (
    "predicted_ms",
    "predicted_low",
    "predicted_high",
    "measured_ms",
    "measured_low",
    "measured_high",
    "off",
    "plain_sum_off",
)
RATIOS = tuple(f"over_bare_{name}{end}" for name in ("all", "from_1_mb") for end in ("", "_low", "_high"))
LINK = ("latency_s", "bytes_per_s", "busy")


def prediction_figures(measured: Path) -> dict[str, str]:
    """By name; '' for what has not been measured yet."""
    predictions = read_cells(
        measured / "predictions.csv", ("network", *CASE_COLUMNS, *NUMBERS, "commit", "date", "machine")
    )
    paths = read_cells(measured / "allreduce.csv", ("path", "num_rounds", *LINK, *RATIOS, "commit", "date", "machine"))
    predictions = predictions.astype(dict.fromkeys(NUMBERS, float))
    return {
        "predictions": _cases(predictions),
        "predictions.said": _error_summary(predictions),
        "predictions.origin": describe_origin(predictions),
        "allreduce": markdown_table(
            ("path", "latency, us", "GB/s", "core busy, %", "n", "x a bare loop [95%]", "from 1 MB on [95%]"),
            map(_path, iterate_rows(paths)),
        ),
        "allreduce.origin": describe_origin(paths),
        "published": _published(measured / "gradients.csv"),
    }


def _cases(rows: pandas.DataFrame) -> str:
    """A row a case, with a column a network: predicted, measured with its interval, and the error."""
    networks = [*dict.fromkeys(rows.network)]
    lines = []
    for case, part in rows.groupby([*CASE_COLUMNS], sort=False):
        found = {
            row.network: f"{row.predicted_ms:.0f}; {row.measured_ms:.0f} [{row.measured_low:.0f}, "
            f"{row.measured_high:.0f}]; {round(100 * row.off):+d} %"
            for row in iterate_rows(part)
        }
        lines.append((*map(str, case), *(found.get(network, "") for network in networks)))
    return markdown_table(("model", "px", "strategy", *networks), lines)


def _error_summary(rows: pandas.DataFrame) -> str:
    """The errors of every network, in sentences."""
    found = (f"{network}: {summarize_errors(part)[1]}" for network, part in rows.groupby("network", sort=False))
    return "; ".join(line.replace("\n", "; ") for line in found)


def _path(row: Any) -> tuple[str, ...]:
    ratios = [[f"{float(getattr(row, name)):.3f}" for name in RATIOS[first : first + 3]] for first in (0, 3)]
    bounded = [f"{mean} [{low}, {high}]" for mean, low, high in ratios]
    latency, rate, busy = (float(getattr(row, name)) for name in LINK)
    return (row.path, f"{1e6 * latency:.0f}", f"{rate / 1e9:.2f}", f"{100 * busy:.0f}", row.num_rounds, *bounded)


def _published(gradients: Path) -> str:
    if not gradients.exists():
        return ""
    lines = []
    for row in published_rows(gradients):
        predicted = row["predicted"]
        bounds = f"{predicted.value:.3g} [{predicted.low:.3g}, {predicted.high:.3g}]"
        cells = (row["what"], f"{row['published']:.3g}", bounds, f"{100 * row['error']:+.0f} %")
        lines.append((*cells, f"{row['source']}: {row['why']}"))
    return markdown_table(
        ("published by others", "published", "predicted [95 % of draws]", "error", "source, and why"), lines
    )
