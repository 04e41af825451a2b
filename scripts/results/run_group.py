"""The runs of one strategy with equal settings, and which rows of runs.csv they are."""

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
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
    label: str
    strategy: str
    identity: Identity
    rows: pandas.DataFrame
    """Of runs.csv, ok or not."""
    windows_of_runs: list[Windows]
    """Of each ok run that was timed."""
    round_numbers: list[float]
    """Of each of these runs, `repeat` in runs.csv."""
    sessions: list[int]
    """Of each of these runs, from 0 on."""

    @property
    def settings(self) -> dict[str, Any]:
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
        """Raises ValueError where no run was timed."""
        if self.throughput is None:
            raise ValueError(f"{self.label} has no timed run")
        return self.throughput

    @functools.cached_property
    def log_by_round(self) -> dict[Hashable, float]:
        """The mean log of images/s of its runs by (session, round)."""
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
        """Whether it is another group's runs once more, under a second name: A/A."""
        return bool(self.identity.requested.get(AA_LABEL))

    @functools.cached_property
    def is_parallel(self) -> bool:
        """False where it ran with nothing to divide the work over."""
        return not (len(self.ok_runs) and (self.ok_runs.parallel == "no").all())

    @functools.cached_property
    def status_counts(self) -> dict[str, int]:
        """In the schema's order."""
        found = self.rows.status.value_counts()
        return {status: int(found[status]) for status in STATUSES if status in found}


def iterate_rows(table: pandas.DataFrame) -> Iterator[Any]:
    """Named tuples, typed loosely: pandas' stubs give every cell a union of a dozen types."""
    yield from table.itertuples()


def group_runs(
    runs: pandas.DataFrame, identities: Sequence[Identity], windows: Mapping[str, Windows], num_cores: int | None
) -> list[RunGroup]:
    """The baseline's first, then by the strategy's name.

    identities: of each row of runs.csv. windows: by run_id. num_cores: of the machine, which labels may name.
    """
    groups, sessions = [], session_numbers(runs)
    for strategy, rows in runs.groupby("strategy", sort=False):
        by_identity = _rows_by_identity(rows, [identities[index] for index in rows.index])
        others = [identities[index] for index in runs.index.difference(rows.index)]
        names = group_labels(str(strategy), [identity for identity, _ in by_identity], others, num_cores)
        for name, (identity, rows_of_group) in zip(names, by_identity, strict=True):
            timed = rows_of_group[(rows_of_group.status == "ok") & rows_of_group.run_id.isin(windows.keys())]
            rounds, of_sessions = timed["repeat"].tolist(), sessions.loc[timed.index].tolist()
            of_runs = [windows[run_id] for run_id in timed.run_id], rounds, of_sessions
            groups.append(RunGroup(printable(name), str(strategy), identity, rows_of_group, *of_runs))
    groups.sort(key=lambda group: (group.strategy != BASELINE, group.strategy, group.label != group.strategy))
    return groups


def session_numbers(runs: pandas.DataFrame) -> pandas.Series:
    """The number of each row's session, int [num_rows], from 0 on; a row without a time is of the first."""
    began = pandas.to_datetime(runs.started_at.astype(str), format="ISO8601", utc=True, errors="coerce")
    began_s = (began - began.min()).dt.total_seconds().dropna().sort_values(kind="stable")
    ended_s = (began_s + runs.wall_s[began_s.index].fillna(0)).cummax()
    return (began_s - ended_s.shift() > SESSION_PAUSE_S).cumsum().reindex(runs.index, fill_value=0).astype(int)


def _rows_by_identity(rows: pandas.DataFrame, found: list[Identity]) -> list[tuple[Identity, pandas.DataFrame]]:
    by_key: dict[str, tuple[Identity, list]] = {}
    waiting = []
    for index, status, identity in zip(rows.index, rows.status, found, strict=True):
        if status == "ok" or identity.has_resolved_settings:
            by_key.setdefault(identity.key, (identity, []))[1].append(index)
        else:
            waiting.append((index, identity))
    for index, identity in waiting:
        same = (indices for other, indices in by_key.values() if belongs_to(identity, other))
        (next(same, None) or by_key.setdefault(identity.key, (identity, []))[1]).append(index)
    return [(identity, rows.loc[sorted(indices)]) for identity, indices in by_key.values()]
