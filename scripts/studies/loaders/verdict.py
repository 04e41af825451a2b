"""Is the loader the limit? From windows of the loader alone, training alone, and both together, by turns.

    from scripts.studies.loaders.verdict import rates, verdict

The three of a round follow one another, so that what slows the machine slows all of them: ratios are of a round, and
their intervals are Student's on logarithms, over rounds. All windows are of one process and in that order, so that
intervals know nothing of what another launch would do. Needs no torch.
"""

import dataclasses

import numpy
import pandas
from scipy.special import stdtrit

from scripts.stats.intervals import CONFIDENCE, SMALLEST_SD

ALONE, TRAINING, BOTH = WHATS = "loader alone", "training alone", "both together"
WORTH = 0.05  # what the loader may cost of training's throughput before it is called a limit


@dataclasses.dataclass(frozen=True)
class Rate:
    """A geometric mean over windows, and its 95 % interval; None where one window says nothing of the spread."""

    value: float
    low: float | None
    high: float | None
    num_windows: int


def rates(rows: pandas.DataFrame) -> dict[str, Rate]:
    """Images/s of each work that a loader.csv has."""
    return {what: _rate(_logs(rows, what)) for what in dict.fromkeys(rows.what)}


def verdict(rows: pandas.DataFrame) -> str:
    """One sentence of all three. rows: of loader.csv, a row a window; a round that lacks one of the three is left out.

    What counts is what training loses by loading; how fast the loader is by itself says why.
    """
    by_round = rows[rows.images_per_s > 0].pivot_table(index="window", columns="what", values="images_per_s")
    loader, training, both = numpy.log(by_round.reindex(columns=WHATS).dropna().to_numpy(float)).T
    if len(training) < 2 or None in ((speed := _rate(loader - training)).low, (kept := _rate(both - training)).low):
        return "no verdict: fewer than two rounds of windows say nothing of the spread; run make loader"
    return f"{_said(rows, speed, kept)}; in this one launch, over {len(training)} windows of each"


def _said(rows: pandas.DataFrame, speed: Rate, kept: Rate) -> str:
    """speed: the loader's over training's; kept: what training keeps of its own with the loader."""
    alone = f"alone it is {speed.value:.2f} [{speed.low:.2f}, {speed.high:.2f}] times as fast as training"
    reach = f"with it training keeps {_percent(kept.value, kept.low, kept.high)} of its throughput"
    if kept.high < 1 - WORTH and speed.low > 1:
        workers = rows.workers.iloc[0]
        why = "they take turns in one process: --workers 0" if not workers else "they share cores, or memory"
        cost = _percent(1 - kept.value, 1 - kept.high, 1 - kept.low)
        return f"loading costs {cost} of training's throughput, though {alone} ({why})"
    if kept.high < 1 - WORTH:
        return f"the loader is the limit: {reach}; {alone}"
    if kept.low > 1 - WORTH:
        return f"the loader is not the limit: {reach}; {alone}"
    return f"no verdict, the windows differ too much: {reach}; {alone}"


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _logs(rows: pandas.DataFrame, what: str) -> numpy.ndarray:
    """Logarithms of the images/s of its windows, in their order."""
    return numpy.log(rows[rows.what == what].images_per_s.to_numpy(float))


def _rate(logs: numpy.ndarray) -> Rate:
    value, num_windows = float(numpy.exp(logs.mean())), len(logs)
    if num_windows < 2 or (error := logs.std(ddof=1) / numpy.sqrt(num_windows)) < SMALLEST_SD:
        return Rate(value, None, None, num_windows)
    factor = float(numpy.exp(stdtrit(num_windows - 1, (1 + CONFIDENCE) / 2) * error))
    return Rate(value, value / factor, value * factor, num_windows)
