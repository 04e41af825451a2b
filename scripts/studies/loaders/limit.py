"""Is the loader the limit? From loaders.csv and the sweep of the loader in a set. Needs no torch."""

import math

import pandas

from scripts.results.formatting import format_number, format_with_interval, plural
from scripts.results.intervals import RatioEstimate
from scripts.results.result_set import ResultSet
from scripts.studies.sweep.points import TimedPoint, results_of_sweeps

NO_LOADING = "synthetic"
PLAIN = "torchvision, pillow"
MAX_LOSS = 0.05  # of training's speed, that loading may cost before it is called the limit
FILE = "loaders.csv"


def known(value: float | None) -> float | None:
    """None for the NaN that a table has in its place."""
    return None if value is None or math.isnan(value) else value


def rates_cells(rates: pandas.DataFrame) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = [("loader", "cores", "images/s [95 %]", "a core", "x torchvision [95 %]", "n")]
    for row in rates.to_dict("records"):
        speed = format_with_interval(row["images_per_s"], known(row["low"]), known(row["high"]), format_number)
        times = ""
        if (value := known(row.get("times_plain"))) is not None and row["loader"] != PLAIN:
            times = format_with_interval(value, known(row["times_low"]), known(row["times_high"]), "{:.2f}".format)
        per_core = format_number(row["per_core"])
        lines.append((row["loader"], str(row["cores"]), speed, per_core, times, str(row["n"])))
    return lines


def limit_points(results: ResultSet) -> tuple[TimedPoint, TimedPoint] | None:
    """(without loading, with it) of the set's last sweep of the loader; None where one was not timed."""
    for result in reversed(results_of_sweeps(results)):
        if result.sweep.key == "loader" and result.sweep.to == NO_LOADING:
            without = [each for each in result.timed if each.label == NO_LOADING]
            loading = [each for each in result.timed if each.label != NO_LOADING]
            return (without[0], loading[0]) if without and loading else None
    return None


def describe_limit(results: ResultSet) -> list[str]:
    """Whether loading limits training, and how many cores each loader needs to keep up."""
    points = limit_points(results)
    if points is None or points[1].ratio is None:
        return ["not decided: training was not timed both with and without loading"]
    without, strategy = points[0], points[0].group.strategy
    lines = [limit_sentence(strategy, points[1].ratio)]
    path = results.path / FILE
    if path.exists():
        rates = pandas.read_csv(path)
        needed = [
            f"{math.ceil(without.speed / row['per_core'])} with {row['loader'].removeprefix('ours, ')}"
            for row in rates.to_dict("records")
            if row["loader"] != PLAIN
        ]
        speed, here = format_number(without.speed), plural(int(rates.cores.max()), "core")
        lines.append(f"to load the {speed} images/s of {strategy} takes cores: {', '.join(needed)}; here are {here}")
    return lines


def limit_sentence(strategy: str, kept: RatioEstimate) -> str:
    """kept: the speed of training with loading over that without."""
    ends = "" if kept.low is None or kept.high is None else f" [{100 * kept.low:.0f}, {100 * kept.high:.0f}]"
    keeps = f"with loading {strategy} keeps {100 * kept.value:.0f} %{ends} of its speed"
    if kept.low is None or kept.high is None or kept.low <= 1 - MAX_LOSS <= kept.high:
        return f"not decided whether the loader is the limit: {keeps}"
    return f"the loader is {'the limit' if kept.high < 1 - MAX_LOSS else 'not the limit'}: {keeps}"
