"""How sure a throughput is: intervals over repeats and windows, and the ratio of two strategies.

    from scripts.analysis.stats import strategy_throughput, ratio

A run is one process that timed several windows; a strategy in a set has several runs. Throughput is total
images over total seconds. Its interval comes from a hierarchical bootstrap (Davison & Hinkley 1997, section
3.8): draw runs with replacement, then windows within each. The plain percentile interval of three runs is far
too narrow, so only the standard error of log throughput is taken from the bootstrap, scaled by n / (n - 1)
runs, and the interval is Student's t with n - 1 degrees of freedom around the measured value (Welch's for a
ratio). `tests/analysis/test_stats.py` holds its error rate to account. Needs numpy and scipy only.
"""

import dataclasses
from collections.abc import Sequence

import numpy
from scipy.special import stdtrit

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
MIN_PAIRED_ROUNDS = 5  # below, pairing loses more degrees of freedom than it removes noise

Windows = numpy.ndarray
"""float64 [num_windows, 2]: images and seconds of each timed window of one run."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Images/s with its 95 % interval; low and high are None where one sample says nothing of the spread."""

    value: float
    low: float | None
    high: float | None
    num_runs: int
    num_windows: int


@dataclasses.dataclass(frozen=True)
class RatioEstimate:
    """How many times as fast one is as the other, with the 95 % interval and what can be said of it.

    verdict: faster, slower, no difference seen, or no verdict (one repeat). smallest_difference: the least
    difference, as a fraction, that this data could have shown: half the interval's width.
    """

    value: float
    low: float | None
    high: float | None
    verdict: str
    smallest_difference: float | None
    paired: bool


def run_interval(windows: Sequence[tuple[float, float]]) -> Estimate:
    """Throughput of one run and its interval over that run's windows, each (images, seconds)."""
    windows = numpy.asarray(windows, dtype=float).reshape(-1, 2)
    # every window as a run of one window: the same bootstrap without its second level
    interval = strategy_throughput([window[None] for window in windows])
    return dataclasses.replace(interval, num_runs=1)


def strategy_throughput(runs: Sequence[Windows]) -> Estimate:
    """Throughput of a strategy over its runs, and its interval over runs and the windows in them."""
    value = _throughput(runs)
    error = _log_error(runs)
    low, high = _interval(value, error, len(runs) - 1)
    return Estimate(value, low, high, len(runs), sum(len(run) for run in runs))


def ratio(of: Sequence[Windows], to: Sequence[Windows], paired: bool = False) -> RatioEstimate:
    """Throughput of `of` over that of `to`: 2.0 is twice as fast.

    paired: the n-th run of both ran in the same round, one after the other; used from 5 rounds on.
    """
    paired = paired and len(of) == len(to) >= MIN_PAIRED_ROUNDS
    value = _throughput(of) / _throughput(to)
    if min(len(of), len(to)) < 2:
        return RatioEstimate(value, None, None, "no verdict", None, False)
    if paired:
        error, df = _log_error(of, to), len(of) - 1.0
    else:
        parts = numpy.array([_log_error(of) ** 2, _log_error(to) ** 2])
        weights = numpy.array([len(of) - 1, len(to) - 1])
        error = numpy.sqrt(parts.sum())
        df = parts.sum() ** 2 / (parts**2 / weights).sum() if error > 0 else 1.0  # Welch-Satterthwaite
    low, high = _interval(value, error, df)
    verdict = "faster" if low > 1 else "slower" if high < 1 else "no difference seen"
    with numpy.errstate(over="ignore"):
        return RatioEstimate(value, low, high, verdict, float(high / value - 1), paired)


def _throughput(runs: Sequence[Windows]) -> float:
    images, seconds = numpy.concatenate(list(runs)).sum(axis=0)
    return float(images / seconds)


def _interval(value: float, log_error: float | None, df: float) -> tuple[float | None, float | None]:
    if log_error is None:
        return None, None
    with numpy.errstate(over="ignore"):
        factor = numpy.exp(stdtrit(df, (1 + CONFIDENCE) / 2) * log_error)
    return float(value / factor), float(value * factor)


def _log_error(runs: Sequence[Windows], partners: Sequence[Windows] | None = None) -> float | None:
    """Bootstrap standard error of log throughput, or of the log ratio to partners that ran in the same rounds."""
    num_runs = len(runs)
    if num_runs < 2:
        return None
    rng = numpy.random.default_rng(0)
    picks = rng.integers(num_runs, size=(NUM_RESAMPLES, num_runs))
    resampled = _resample(runs, picks, rng)
    if partners is not None:
        resampled = resampled - _resample(partners, picks, rng)
    # the mean square of n draws from n values is (n - 1) / n of the variance it stands for
    return float(numpy.std(resampled) * numpy.sqrt(num_runs / (num_runs - 1)))


def _resample(runs: Sequence[Windows], picks: numpy.ndarray, rng: numpy.random.Generator) -> numpy.ndarray:
    """Log throughput [num_resamples] of the picked runs [num_resamples, num_runs], windows redrawn in each."""
    sizes = numpy.array([len(run) for run in runs])
    padded = numpy.zeros((len(runs), sizes.max(), 2))
    for run, windows in enumerate(runs):
        padded[run, : len(windows)] = windows
    totals = numpy.zeros((len(picks), 2))
    for picked in picks.T:
        num_drawn = sizes[picked][:, None]
        drawn = (rng.random((len(picks), sizes.max())) * num_drawn).astype(int)
        counted = numpy.arange(sizes.max()) < num_drawn
        totals += (padded[picked[:, None], drawn] * counted[..., None]).sum(axis=1)
    return numpy.log(totals[:, 0] / totals[:, 1])
