"""The runs of one strategy with equal settings, and which rows of runs.csv they are. Needs no torch."""

import dataclasses
import functools
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pandas

from benchmarks.common.rows import STATUSES
from scripts.results.formatting import printable
from scripts.results.identity import AA_LABEL, Identity, belongs_to, group_labels
from scripts.results.intervals import Estimate, Windows, log_throughput, strategy_throughput
from scripts.shared.strategy_list import BASELINE

FAMILIES = {"ddp_spawn": "ddp", "slurm": "ddp"}
"""Strategies that are the same training as another one, started differently."""
SESSION_PAUSE_S = 3600  # runs with a longer pause between them are of two sessions, which are as two days


@dataclasses.dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one strategy in one set with the same requested and resolved settings (identity.py)."""

    label: str
    strategy: str
    identity: Identity
    rows: pandas.DataFrame
    """Rows of runs.csv, ok or not."""
    windows_of_runs: list[Windows]
    """Windows of each ok run that has a throughput."""
    round_numbers: list[float]
    """The round of each of these runs, `repeat` in runs.csv."""
    sessions: list[int]
    """The number of the session of each."""

    @property
    def settings(self) -> dict[str, Any]:
        """All fields that count, of both halves."""
        return self.identity.fields

    @property
    def family(self) -> str:
        """The strategy whose training this is, however it was started."""
        return FAMILIES.get(self.strategy, self.strategy)

    @functools.cached_property
    def throughput(self) -> Estimate | None:
        return strategy_throughput(self.windows_of_runs) if self.windows_of_runs else None

    @property
    def timed_throughput(self) -> Estimate:
        """The throughput of a group that has timed runs. Raises ValueError for a group without."""
        if self.throughput is None:
            raise ValueError(f"{self.label} has no timed run")
        return self.throughput

    @functools.cached_property
    def log_by_round(self) -> dict[Hashable, float]:
        """The mean log of images/s of its runs in each round, (session, round), for comparisons with other groups."""
        found: dict[Hashable, list[float]] = {}
        runs = zip(log_throughput(self.windows_of_runs), self.round_numbers, self.sessions, strict=True)
        for log, round_number, session in runs:
            found.setdefault((session, round_number), []).append(float(log))
        return {key: float(numpy.mean(logs)) for key, logs in found.items()}

    @functools.cached_property
    def ok_runs(self) -> pandas.DataFrame:
        return self.rows[self.rows.status == "ok"]

    @property
    def is_aa_copy(self) -> bool:
        """Whether it is the second half of an A/A comparison: another group's runs once more, under a second name."""
        return bool(self.identity.requested.get(AA_LABEL))

    @functools.cached_property
    def is_parallel(self) -> bool:
        """False where it ran with nothing to divide the work over."""
        return not (len(self.ok_runs) and (self.ok_runs.parallel == "no").all())

    @functools.cached_property
    def status_counts(self) -> dict[str, int]:
        """Rows of each status, in the schema's order."""
        found = self.rows.status.value_counts()
        return {status: int(found[status]) for status in (*STATUSES, *found.index) if status in found}


def iterate_rows(table: pandas.DataFrame) -> Iterator[Any]:
    """The rows as named tuples, typed loosely: pandas' stubs give every cell a union of a dozen types."""
    yield from table.itertuples()


def group_runs(
    runs: pandas.DataFrame, identities: Sequence[Identity], windows: Mapping[str, Windows], num_cores: int | None
) -> list[RunGroup]:
    """The groups of all rows: the baseline's first, then by the strategy's name.

    identities: of each row of runs.csv. windows: by run_id. num_cores: of the machine, which labels may name.
    """
    groups, sessions = [], session_numbers(runs)
    for strategy, rows in runs.groupby("strategy", sort=False):
        by_identity = _rows_by_identity(rows, [identities[index] for index in rows.index])
        others = [identities[index] for index in runs.index.difference(rows.index)]
        names = group_labels(str(strategy), [identity for identity, _ in by_identity], others, num_cores)
        for name, (identity, rows_of_group) in zip(names, by_identity, strict=True):
            found = {row.Index: _windows_of(row, windows) for row in iterate_rows(rows_of_group)}
            timed = {index: of_run for index, of_run in found.items() if of_run is not None}
            rounds = rows_of_group["repeat"].loc[[*timed]].astype(float).tolist()
            of_runs = [*timed.values()], rounds, sessions.loc[[*timed]].tolist()
            groups.append(RunGroup(printable(name), str(strategy), identity, rows_of_group, *of_runs))
    groups.sort(key=lambda group: (group.strategy != BASELINE, group.strategy, group.label != group.strategy))
    return groups


def windows_by_run(table: pandas.DataFrame, path: Path) -> dict[str, Windows]:
    """run_id -> its windows. Says on stderr how many rows of `path` it leaves out."""
    windows = table[["images", "seconds"]]
    good = windows.gt(0).all(axis=1)
    if not good.all():
        print(f"warning: {path}: {(~good).sum()} rows without images or seconds are skipped", file=sys.stderr)
    by_run = windows[good].astype(float).groupby(table.run_id[good])
    return {str(run_id): rows.to_numpy() for run_id, rows in by_run}


def session_numbers(runs: pandas.DataFrame) -> pandas.Series:
    """The number of each row's session, int [num_rows], from 0 on; a row without a time is of the first."""
    began = pandas.to_datetime(runs.started_at.astype(str), format="ISO8601", utc=True, errors="coerce")
    began_s = (began - began.min()).dt.total_seconds().dropna().sort_values(kind="stable")
    ended_s = (began_s + runs.wall_s[began_s.index].fillna(0).clip(lower=0)).cummax()
    return (began_s - ended_s.shift() > SESSION_PAUSE_S).cumsum().reindex(runs.index, fill_value=0).astype(int)


def _windows_of(row: Any, timed: Mapping[str, Windows]) -> Windows | None:
    if row.status != "ok":
        return None
    if row.run_id in timed:
        return timed[row.run_id]
    return numpy.array([[row.images_per_s, 1.0]]) if row.images_per_s > 0 else None


def _rows_by_identity(rows: pandas.DataFrame, found: list[Identity]) -> list[tuple[Identity, pandas.DataFrame]]:
    by_key: dict[str, tuple[Identity, list]] = {}
    waiting = []
    for index, status, identity in zip(rows.index, rows.status, found, strict=True):
        if status == "ok" or identity.has_resolved_settings:
            by_key.setdefault(identity.key, (identity, []))[1].append(index)
        else:
            waiting.append((index, identity))
    for index, identity in waiting:
        of_its_kind = (indices for other, indices in by_key.values() if belongs_to(identity, other))
        indices = next(of_its_kind, None)
        if indices is None:
            indices = by_key.setdefault(identity.key, (identity, []))[1]
        indices.append(index)
    return [(identity, rows.loc[sorted(indices)]) for identity, indices in by_key.values()]
