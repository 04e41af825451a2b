"""How sure a throughput is: intervals over repeats and windows, and the ratio of two strategies.

    from scripts.stats import load_set, strategy_throughput, ratio

A run is one process that timed several windows; a strategy in a set has several runs. Throughput is total
images over total seconds. Its interval comes from a hierarchical bootstrap (Davison & Hinkley 1997, section
3.8): draw runs with replacement, then windows within each. The plain percentile interval of three runs is far
too narrow, so only the standard error of log throughput is taken from the bootstrap, scaled by n / (n - 1)
runs, and the interval is Student's t with n - 1 degrees of freedom around the measured value (Welch's for a
ratio). `tests/test_stats.py` holds its error rate to account. Needs no torch.
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import pandas
from scipy.special import stdtrit

from benchmarks.common.errors import UserError
from benchmarks.common.results import STATUSES, read_table

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
MIN_PAIRED_ROUNDS = 5  # below, pairing loses more degrees of freedom than it removes noise
SETTINGS = (
    "arch", "image_size", "global_batch", "precision", "memory_format", "loader", "device_name", "world_size",
    "nodes", "threads_per_rank", "options",
)  # fmt: skip
PLAUSIBLE = (1e-9, 1e15)  # images, seconds and rates outside are no measurement

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


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """The runs of one strategy in one set, or of one of its settings where the set holds several."""

    label: str
    strategy: str
    rows: pandas.DataFrame
    """Rows of runs.csv, ok or not."""
    samples: list[Windows]
    """Windows of each ok run that has a throughput."""
    rounds: list[float]
    """`repeat` of each of these runs."""

    @functools.cached_property
    def throughput(self) -> Estimate | None:
        return strategy_throughput(self.samples) if self.samples else None

    @functools.cached_property
    def ok(self) -> pandas.DataFrame:
        return self.rows[self.rows.status == "ok"]

    @functools.cached_property
    def parallel(self) -> bool:
        """False where it ran with nothing to divide the work over."""
        return not (len(self.ok) and (self.ok.parallel == "no").all())

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """Rows of each status, in the schema's order."""
        found = self.rows.status.value_counts()
        return {status: int(found[status]) for status in (*STATUSES, *found.index) if status in found}


@dataclasses.dataclass(frozen=True, eq=False)
class ResultSet:
    """One folder of results, joined by run_id and grouped by strategy in the order of its first row."""

    name: str
    path: Path
    groups: list[Group]
    epochs: pandas.DataFrame

    @functools.cached_property
    def ok(self) -> pandas.DataFrame:
        rows = [group.ok for group in self.groups]
        return pandas.concat(rows) if rows else pandas.DataFrame(columns=list(SETTINGS))


def load_set(path: Path) -> ResultSet:
    """The result set in folder `path`. Tables and columns that it lacks are empty.

    Raises UserError where the folder is missing or unreadable.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder of results; `make bench-all` makes one, results/latest is the newest")
    try:
        runs, windows, epochs = (read_table(path, table) for table in ("runs", "windows", "epochs"))
    except OSError as error:
        raise UserError(f"cannot read the results in {path}: {error}") from None
    windows = _plausible(windows, ["images", "seconds"], path / "windows.csv")
    timed = {run_id: rows[["images", "seconds"]].to_numpy(float) for run_id, rows in windows.groupby("run_id")}
    groups = []
    for strategy, rows in runs.groupby("strategy", sort=False):
        for label, part in _by_settings(str(strategy), rows):
            samples = {index: _samples(row, timed) for index, row in part[part.status == "ok"].iterrows()}
            kept = [index for index, sample in samples.items() if sample is not None]
            rounds = [float(value) for value in part.loc[kept, "repeat"]]
            groups.append(Group(label, str(strategy), part, [samples[index] for index in kept], rounds))
    return ResultSet(path.resolve().name, path, groups, epochs)


def _plausible(rows: pandas.DataFrame, columns: list[str], path: Path) -> pandas.DataFrame:
    good = rows[columns].apply(lambda column: column.between(*PLAUSIBLE)).all(axis=1)
    if not good.all():
        print(f"warning: {path}: {(~good).sum()} rows without {' or '.join(columns)} are skipped", file=sys.stderr)
    return rows[good]


def _samples(row: pandas.Series, timed: dict[str, Windows]) -> Windows | None:
    """Windows of an ok run; its images_per_s as the only one where a set has no windows.csv."""
    if row.run_id in timed:
        return timed[row.run_id]
    lowest, highest = PLAUSIBLE
    return numpy.array([[row.images_per_s, 1.0]]) if lowest < row.images_per_s < highest else None


def _by_settings(strategy: str, rows: pandas.DataFrame) -> list[tuple[str, pandas.DataFrame]]:
    """`rows` of a strategy by the settings in which its ok rows differ: they measured different things."""
    name = strategy or "(no name)"
    ok = rows[rows.status == "ok"]
    differing = [setting for setting in SETTINGS if ok[setting].nunique(dropna=False) > 1]
    if not differing:
        return [(name, rows)]
    groups = []
    for values, part in rows.groupby(differing, sort=False, dropna=False):
        text = ", ".join(f"{key} {show(value)}" for key, value in zip(differing, values, strict=True))
        groups.append((f"{name}, {text}", part))
    return groups


def show(value: object) -> str:
    """A setting for a label: 64 for 64.0, `unknown` for an empty cell."""
    if value is None or value == "" or value != value:
        return "unknown"
    return f"{value:g}" if isinstance(value, float) else str(value)


def matched(of: Group, to: Group) -> bool:
    """Whether two groups of one set ran in the same rounds, each once, so that their runs are pairs."""
    rounds = of.rounds
    return rounds == to.rounds and len(set(rounds)) == len(rounds) and not numpy.isnan(rounds).any()
