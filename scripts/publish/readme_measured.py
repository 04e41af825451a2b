"""The figures of the READMEs that belong to no result set: from the CSV files in results/published/measured/.

from scripts.publish.readme_measured import measured_figures
"""

from pathlib import Path

import pandas

from scripts.publish.markdown_tables import describe_origin, markdown_table, read_cells
from scripts.publish.readme_false_alarms import false_alarm_figures, hostile_figures
from scripts.publish.readme_predicted import prediction_figures
from scripts.sets.frames import iterate_rows
from scripts.stats.formatting import format_number

TIMES = ("times_plain", "times_low", "times_high")
TIMES_BARE = ("times_bare", "times_bare_low", "times_bare_high")
ORIGIN = ("commit", "date", "machine")
LOADERS = ("cores", "loader", "n", "images_per_s", "low", "high", *TIMES, *TIMES_BARE, "image_size", *ORIGIN)
OURS = {"ours, nvimgcodec": "JPEGs", "ours, packed full": "packed pixels"}


def measured_figures(measured: Path) -> dict[str, str]:
    """What belongs to no result set. What has not been measured yet names the command that does it."""
    overhead = read_cells(measured / "overhead.csv", ("what", "quantity", "ratio", "ci_low", "ci_high"))
    by_the_wall = overhead[~overhead.quantity.str.contains("CPU")]
    planted = read_cells(measured / "planted.csv", ("fault", "strategy", "ranks", "steps", "max_relative_difference"))
    faults = read_cells(measured / "faults.csv", ("number", "fault", "ended", "seconds"))
    loaders = read_cells(measured / "loaders.csv", LOADERS)
    made = {
        "overhead.loop": _ratios(by_the_wall[by_the_wall.what == "loop"]),
        "overhead.instrumentation": _ratios(by_the_wall[by_the_wall.what == "instrumentation"]),
        "planted": markdown_table(
            ("planted fault", "in", "devices", "steps", "largest relative difference"),
            [
                (row.fault, f"`{row.strategy}`", row.ranks, row.steps, f"{float(row.max_relative_difference):.2g}")
                for row in iterate_rows(planted.drop_duplicates("fault", keep="last"))
            ],
        ),
        "faults": markdown_table(
            ("#", "fault", "ends with", "seconds"),
            [(row.number, row.fault, row.ended, row.seconds) for row in iterate_rows(faults)],
        ),
        "planted.origin": describe_origin(planted),
        "faults.origin": describe_origin(faults),
        "loaders": _loaders(loaders),
        "loaders.fast": _fast(loaders),
        "loaders.about": "".join(
            f"{row.image_size} px, {describe_origin(loaders[:1])}" for row in iterate_rows(loaders[:1])
        ),
        **prediction_figures(measured),
        **false_alarm_figures(measured),
        **hostile_figures(measured),
    }
    commands = {
        "overhead": "./bench study overhead",
        "planted": "make test-all",
        "faults": "make test-faults",
        "loaders": "./bench study loaders",
        "predictions": "./bench study predict-check",
        "false_alarms": "PYTHONPATH=.:tests .venv/bin/python tests/false_alarms.py",
        "hostile": "PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit.py",
        "allreduce": "./bench study allreduce",
        "published": ".venv/bin/python -m scripts.studies.predict.gradient_times",
    }
    return {name: text or f"(not measured yet: `{commands[name.split('.')[0]]}`)" for name, text in made.items()}


def _ratios(rows: pandas.DataFrame) -> str:
    shown = [
        f"{float(row.ratio):.3f} [{float(row.ci_low):.3f}, {float(row.ci_high):.3f}]" for row in iterate_rows(rows)
    ]
    return ", ".join(shown)


def _loaders(rows: pandas.DataFrame) -> str:
    """A row a loader on one core: images/s, over torchvision's own pipeline, and over its bare loop."""
    of_what = (("images_per_s", "low", "high"), TIMES, TIMES_BARE)
    lines = [
        (row.loader, row.n, *(_bounded(*(getattr(row, name) for name in names)) for names in of_what))
        for row in iterate_rows(rows[rows.cores == "1"])
    ]
    return markdown_table(("loader", "n", "images/s [95%]", "x torchvision [95%]", "x its bare loop [95%]"), lines)


def _fast(rows: pandas.DataFrame) -> str:
    """What our folder of JPEGs and our packed pixels are worth on one core."""
    one = rows[(rows.cores == "1") & rows.loader.isin(OURS)].set_index("loader")
    found = [(words, one.loc[name]) for name, words in OURS.items() if name in one.index]
    return ", ".join(f"{words} {_bounded(*row[list(TIMES)])}" for words, row in found)


def _bounded(value: str, low: str, high: str) -> str:
    if not value:
        return ""
    return format_number(float(value)) + (
        f" [{format_number(float(low))}, {format_number(float(high))}]" if low else ""
    )
