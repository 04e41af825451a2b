"""The runs of one strategy with equal settings, and which rows of runs.csv they are.

Needs no torch.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pandas

from benchmarks.common.rows import STATUSES
from scripts.results.families import ThroughputSample
from scripts.results.formatting import printable
from scripts.results.frames import iterate_rows
from scripts.results.identity import AA_LABEL, Identity, belongs_to, group_labels
from scripts.results.intervals import Estimate, Windows, log_throughput, strategy_throughput
from scripts.shared.strategy_list import BASELINE


@dataclasses.dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one strategy in one set with the same requested and resolved settings (results/identity.py)."""

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
    def sample(self) -> ThroughputSample:
        """Its timed runs, for comparisons with other groups."""
        return ThroughputSample(log_throughput(self.windows_of_runs), self.round_numbers, self.sessions)

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


def group_runs(
    runs: pandas.DataFrame, identities: Sequence[Identity], windows: Mapping[str, Windows], num_cores: int | None
) -> list[RunGroup]:
    """The groups of all rows: the baseline's first, then by the strategy's name.

    runs: runs.csv with a column `session`. identities: of each row. windows: by run_id. num_cores: of the
    machine, which labels may name.
    """
    groups = []
    for strategy, rows in runs.groupby("strategy", sort=False):
        by_identity = _rows_by_identity(rows, [identities[index] for index in rows.index])
        others = [identities[index] for index in runs.index.difference(rows.index)]
        names = group_labels(str(strategy), [identity for identity, _ in by_identity], others, num_cores)
        for name, (identity, rows_of_group) in zip(names, by_identity, strict=True):
            groups.append(_make_group(printable(name), str(strategy), identity, rows_of_group, windows))
    groups.sort(key=lambda group: (group.strategy != BASELINE, group.strategy, group.label != group.strategy))
    return groups


def _make_group(
    label: str, strategy: str, identity: Identity, rows: pandas.DataFrame, windows: Mapping[str, Windows]
) -> RunGroup:
    ok_rows = rows.loc[rows.status == "ok", ["run_id", "images_per_s"]]
    found = {row.Index: _windows_of(row, windows) for row in iterate_rows(ok_rows)}
    timed = {index: of_run for index, of_run in found.items() if of_run is not None}
    timed_rows = rows.loc[[*timed]]
    rounds, sessions = timed_rows["repeat"].astype(float).tolist(), timed_rows["session"].tolist()
    return RunGroup(label, strategy, identity, rows, [*timed.values()], rounds, sessions)


def windows_by_run(table: pandas.DataFrame, path: Path) -> dict[str, Windows]:
    """run_id -> its windows, (n, 2) of images and seconds. Says on stderr how many rows of `path` it leaves out."""
    windows = table[["images", "seconds"]]
    good = windows.gt(0).all(axis=1)
    if not good.all():
        print(f"warning: {path}: {(~good).sum()} rows without images or seconds are skipped", file=sys.stderr)
    by_run = windows[good].astype(float).groupby(table.run_id[good])
    return {str(run_id): rows.to_numpy() for run_id, rows in by_run}


def _windows_of(row: Any, timed: Mapping[str, Windows]) -> Windows | None:
    """Windows of an ok run; its images_per_s as the only one where a set has no windows.csv."""
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
