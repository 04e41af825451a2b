"""The figures of the READMEs that belong to no result set: from the CSV files in results/published/measured/."""

from pathlib import Path

import numpy
import pandas

from benchmarks.common.store.frames import iterate_rows
from scripts.publish.markdown_tables import describe_origin, markdown_table, read_cells
from scripts.publish.readme_false_alarms import simulated_figures
from scripts.stats.formatting import format_number, plural_of_several
from scripts.studies.ab.sequential import last_look

TIMES = ("times_plain", "times_low", "times_high")
TIMES_BARE = ("times_bare", "times_bare_low", "times_bare_high")
ORIGIN = ("commit", "date", "machine")
LOADERS = ("cores", "loader", "n", "images_per_s", "low", "high", *TIMES, *TIMES_BARE, "image_size", *ORIGIN)
OVERHEAD = ("what", "quantity", "ratio", "ci_low", "ci_high", "num_pairs", "num_launches", *ORIGIN)
START_UP = ("when", "num_images", "fingerprint_s", "contents_s", *ORIGIN)
PIPELINE = ("commit", "images_per_s", "before_images_per_s")
OURS = {
    "ours, nvimgcodec": "JPEGs with nvimgcodec",
    "ours, Pillow": "JPEGs with Pillow",
    "ours, packed full": "packed pixels",
}


def measured_figures(measured: Path) -> dict[str, str]:
    """What belongs to no result set. What has not been measured yet names the command that does it."""
    overhead = read_cells(measured / "overhead.csv", OVERHEAD)
    by_the_wall = overhead[~overhead.quantity.str.contains("CPU")]
    planted = read_cells(measured / "planted.csv", ("fault", "strategy", "ranks", "steps", "max_relative_difference"))
    faults = read_cells(measured / "faults.csv", ("number", "fault", "ended", "seconds"))
    loaders = read_cells(measured / "loaders.csv", LOADERS)
    start_up = read_cells(measured / "start_up.csv", START_UP)
    made = {
        "overhead.loop": _ratios(by_the_wall[by_the_wall.what == "loop"]),
        "overhead.same_decoder": _ratios(by_the_wall[by_the_wall.what == "same-decoder"]),
        "overhead.instrumentation": _ratios(by_the_wall[by_the_wall.what == "instrumentation"]),
        "overhead.origin": describe_origin(overhead),
        "planted": markdown_table(
            ("planted fault", "in", "devices", "steps", "difference nearest its tolerance"),
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
        "start_up": _start_up(start_up),
        "faults.origin": describe_origin(faults),
        "loaders": _loaders(loaders),
        "loaders.fast": _fast(loaders),
        "loaders.bare_all_cores": _bare_all_cores(loaders),
        "loaders.about": "".join(
            f"{row.image_size} px, {describe_origin(loaders[:1])}" for row in iterate_rows(loaders[:1])
        ),
        **simulated_figures(measured),
        "pipeline": _whole_runs(read_cells(measured / "pipeline.csv", PIPELINE)),
    }
    commands = {
        "overhead": "./bench study overhead",
        "overhead.same_decoder": "./bench study overhead --what same-decoder",
        "overhead.instrumentation": "./bench study overhead --what instrumentation",
        "start_up": "PYTHONPATH=. .venv/bin/python tests/start_up_times.py",
        "planted": "make test-all",
        "faults": "make test-faults",
        "loaders": "./bench study loaders",
        "false_alarms": "PYTHONPATH=.:tests .venv/bin/python tests/false_alarms.py",
        "ab": "PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit_3.py",
        "pipeline": "./bench ab 251189a1 03b5e43 --strategy pipeline_parallel --fail-over 9.1% --repeats 40",
        "hostile": "PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit.py",
        "hostile_2": "PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit_2.py",
        "hostile_3": "PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit_3.py",
    }
    missing = {name: commands.get(name, commands[name.split(".")[0]]) for name, text in made.items() if not text}
    return made | {name: f"(not measured yet: `{command}`)" for name, command in missing.items()}


def _ratios(rows: pandas.DataFrame) -> str:
    """Each ratio with its interval, and over what that is."""
    shown = []
    for row in iterate_rows(rows):
        unit = "samples" if row.what == "instrumentation" else "pairs of windows"
        of_one = f"{row.num_pairs} {unit} of one launch, assumed independent; it covers no other launch"
        over = f"{row.num_launches} launches" if row.num_launches != "1" else of_one
        digits = 4 if row.what == "instrumentation" else 3  # whether 1 is inside shows in the fourth
        bounds = f"[{float(row.ci_low):.{digits}f}, {float(row.ci_high):.{digits}f}]"
        shown.append(f"{float(row.ratio):.{digits}f} {bounds} (95 % over {over})")
    return ", ".join(shown)


def _start_up(rows: pandas.DataFrame) -> str:
    """The seconds that naming the images of a folder takes the first time and later, and where that was measured."""
    seconds = {row.when: float(row.fingerprint_s) + float(row.contents_s) for row in iterate_rows(rows)}
    if not seconds:
        return ""
    images = f"{int(rows.num_images.iloc[0]):,} images in memory"
    times = f"{format_number(seconds['first'])} s the first time, {format_number(seconds['later'])} s later"
    return f"{images}: {times} ({describe_origin(rows)})"


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
    if not found:
        return ""
    num_windows = plural_of_several({int(str(row["n"])) for _, row in found}, "window")
    shown = ", ".join(f"{words} {_bounded(*row[list(TIMES)])}" for words, row in found)
    return f"{shown}; 95 % intervals over {num_windows}, each in a process of its own"


def _bare_all_cores(rows: pandas.DataFrame) -> str:
    """Our loaders over their bare loops, where all cores were used."""
    found = rows[(rows.cores != "1") & rows.loader.isin(OURS) & (rows[TIMES_BARE[0]] != "")].set_index("loader")
    return ", ".join(f"{OURS[str(name)]} {_bounded(*row[list(TIMES_BARE)])}" for name, row in found.iterrows())


def _whole_runs(rows: pandas.DataFrame) -> str:
    """Of the newest comparison, which ran to its last round: the old commit's throughput over the new one's, and the
    inverse."""
    newest = rows[rows.commit == rows.commit.iloc[-1]] if len(rows) else rows
    logs = numpy.log(newest.before_images_per_s.astype(float) / newest.images_per_s.astype(float)).tolist()
    found = last_look(logs, max(1, len(logs))).estimate
    if found.low is None or found.high is None:
        return ""
    return (
        f"after all {len(logs)} rounds B/A is {found.value:.3f} [{found.low:.3f}, {found.high:.3f}], so that the new "
        f"commit is {1 / found.value:.3f} [{1 / found.high:.3f}, {1 / found.low:.3f}] times as fast"
    )


def _bounded(value: str, low: str, high: str) -> str:
    if not value:
        return ""
    return format_number(float(value)) + (
        f" [{format_number(float(low))}, {format_number(float(high))}]" if low else ""
    )
