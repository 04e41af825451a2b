"""Is the loader the limit? From interleaved windows of the loader alone, training alone, and both together.

    from scripts.studies.loaders.verdict import rates, verdict

The three windows of a round follow one another, so that what slows the machine slows all of them. Ratios are of windows
of one round; their intervals are Student's on logarithms, over rounds. All windows are of one process, so that the
intervals do not contain the differences between launches. Needs no torch.
"""

import dataclasses

import numpy
import pandas
from scipy.special import stdtrit

from scripts.stats.intervals import CONFIDENCE, SMALLEST_SD

ALONE, TRAINING, BOTH = WHATS = "loader alone", "training alone", "both together"
MAX_COST = 0.05  # the fraction of training's throughput that loading may cost before the loader is called the limit


@dataclasses.dataclass(frozen=True)
class Rate:
    """Images/s: a geometric mean over windows and its 95 % interval, None with one window."""

    value: float
    low: float | None
    high: float | None
    num_windows: int


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio of two rates with its 95 % interval."""

    value: float
    low: float
    high: float


def rates(rows: pandas.DataFrame) -> dict[str, Rate]:
    """Images/s of each kind of window in a loader.csv."""
    return {what: _rate(_logs(rows, what)) for what in dict.fromkeys(rows.what)}


def verdict(rows: pandas.DataFrame) -> str:
    """One sentence on all three. rows: of loader.csv, a row per window; a round without all three is left out.

    The verdict depends on how much throughput training loses by loading. How fast the loader is by itself says why.
    """
    by_round = rows[rows.images_per_s > 0].pivot_table(index="window", columns="what", values="images_per_s")
    loader, training, both = numpy.log(by_round.reindex(columns=WHATS).dropna().to_numpy(float)).T
    speed = _interval(_rate(loader - training)) if len(training) > 1 else None
    kept = _interval(_rate(both - training)) if len(training) > 1 else None
    if speed is None or kept is None:
        return "no verdict: fewer than two rounds of windows say nothing of the spread; run ./bench study loader-limit"
    return f"{_sentence(rows, speed, kept)}; in this one launch, over {len(training)} windows of each"


def _sentence(rows: pandas.DataFrame, speed: Ratio, kept: Ratio) -> str:
    """speed: the loader's images/s over training's. kept: training's images/s with the loader over those without."""
    alone = f"alone it is {speed.value:.2f} [{speed.low:.2f}, {speed.high:.2f}] times as fast as training"
    reach = f"with it training keeps {_percent(kept.value, kept.low, kept.high)} of its throughput"
    if kept.high < 1 - MAX_COST and speed.low > 1:
        workers = rows.workers.iloc[0]
        why = "they take turns in one process: --workers 0" if not workers else "they share cores, or memory"
        cost = _percent(1 - kept.value, 1 - kept.high, 1 - kept.low)
        return f"loading costs {cost} of training's throughput, though {alone} ({why})"
    if kept.high < 1 - MAX_COST:
        return f"the loader is the limit: {reach}; {alone}"
    if kept.low > 1 - MAX_COST:
        return f"the loader is not the limit: {reach}; {alone}"
    return f"no verdict, the windows differ too much: {reach}; {alone}"


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _interval(rate: Rate) -> Ratio | None:
    if rate.low is None or rate.high is None:
        return None
    return Ratio(rate.value, rate.low, rate.high)


def _logs(rows: pandas.DataFrame, what: str) -> numpy.ndarray:
    """Logarithms of the images/s of one kind of window, in their order."""
    return numpy.log(rows[rows.what == what].images_per_s.to_numpy(float))


def _rate(logs: numpy.ndarray) -> Rate:
    value, num_windows = float(numpy.exp(logs.mean())), len(logs)
    if num_windows < 2 or (error := logs.std(ddof=1) / numpy.sqrt(num_windows)) < SMALLEST_SD:
        return Rate(value, None, None, num_windows)
    factor = float(numpy.exp(stdtrit(num_windows - 1, (1 + CONFIDENCE) / 2) * error))
    return Rate(value, value / factor, value * factor, num_windows)
