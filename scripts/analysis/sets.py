"""A result set in memory: its runs joined with their windows, grouped by strategy, unlike settings kept apart.

    from scripts.analysis.sets import load_set

Needs no torch.
"""

import dataclasses
import functools
import sys
from pathlib import Path

import numpy
import pandas

from benchmarks.common.errors import UserError
from benchmarks.common.results import STATUSES, read_table
from scripts.analysis.stats import Estimate, Windows, strategy_throughput

SETTINGS = (
    "arch",
    "image_size",
    "global_batch",
    "precision",
    "memory_format",
    "loader",
    "device_name",
    "world_size",
    "nodes",
    "threads_per_rank",
    "options",
)
PLAUSIBLE = (1e-9, 1e15)  # images, seconds and rates outside are no measurement


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
