"""Is the loader the limit? From launches that time the loader alone, training alone, and both together by turns.

    from scripts.studies.loaders.loader_limit import describe_limit, rates

Windows of one launch follow one another and share its luck, so that a launch is one number: its mean log throughput.
Ratios are of one launch; their intervals are Student's on logarithms, over launches. Needs no torch.
"""

import dataclasses

import numpy
import pandas

from scripts.stats.intervals import MIN_ROUNDS, RatioEstimate, mean_interval, ratio_of_rounds

ALONE, TRAINING, BOTH = WHATS = "loader alone", "training alone", "both together"
MAX_COST = 0.05  # the fraction of training's throughput that loading may cost before the loader is called the limit


@dataclasses.dataclass(frozen=True)
class Rate:
    """Images/s: a geometric mean over launches and its 95 % interval, None with one launch."""

    value: float
    low: float | None
    high: float | None
    num_windows: int


def rates(rows: pandas.DataFrame) -> dict[str, Rate]:
    """Images/s of each kind of window in a loader.csv."""
    logs, counts = _logs(rows), rows.what.value_counts()
    return {
        str(what): _rate(logs[what].dropna().to_numpy(float), int(counts[what])) for what in dict.fromkeys(rows.what)
    }


def describe_limit(rows: pandas.DataFrame) -> str:
    """One sentence on all three. rows: of loader.csv, a row per window; a launch without all three is left out.

    The verdict depends on how much throughput training loses by loading. How fast the loader is by itself says why.
    """
    loader, training, both = _logs(rows).reindex(columns=list(WHATS)).dropna().to_numpy(float).T
    num_launches = len(training)
    if num_launches < MIN_ROUNDS:
        return f"no verdict: {num_launches} of at least {MIN_ROUNDS} launches; run ./bench study loader-limit"
    found = _sentence(rows, ratio_of_rounds(loader - training), ratio_of_rounds(both - training))
    return f"{found}; n = {num_launches} launches"


def _sentence(rows: pandas.DataFrame, speed: RatioEstimate, kept: RatioEstimate) -> str:
    """speed: the loader's images/s over training's. kept: training's images/s with the loader over those without."""
    if speed.low is None or speed.high is None or kept.low is None or kept.high is None:
        return f"no verdict: {speed.why or kept.why}"
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
    return f"no verdict, the launches differ too much: {reach}; {alone}"


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _logs(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Mean log of the images/s of each kind of window (a column) in each launch (a row)."""
    timed = rows[rows.images_per_s > 0]
    logs = timed.assign(log=numpy.log(timed.images_per_s))
    return logs.pivot_table(index="run_id", columns="what", values="log", aggfunc="mean")


def _rate(logs: numpy.ndarray, num_windows: int) -> Rate:
    mean, low, high = mean_interval(logs)
    low, high = (None if end is None else float(numpy.exp(end)) for end in (low, high))
    return Rate(float(numpy.exp(mean)), low, high, num_windows)
