"""A result set in memory: its tables, its runs grouped by what they measured, and the ratios of its groups.

Needs no torch.
"""

import dataclasses
import functools
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.rows import WARM_UP, read_table
from scripts.results.formatting import plural, printable
from scripts.results.identity import (
    LOST,
    Identity,
    comparable,
    compute_precision,
    identities_by_hash,
    same_request,
    same_share_of_machine,
    same_work,
)
from scripts.results.intervals import Pair, RatioEstimate, ratios_of_pairs
from scripts.results.run_group import RunGroup, group_runs, windows_by_run
from scripts.shared.strategy_list import BASELINE


@dataclasses.dataclass(frozen=True, eq=False)
class ResultSet:
    """One folder of results: its tables, and its groups of runs: the baseline's first, then by the strategy's name."""

    name: str
    path: Path
    groups: list[RunGroup]
    remarks: list[str]
    """A sentence for each gap in the settings of its runs."""
    environment: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """environment.json; {} where it is missing or broken."""
    tables: dict[str, pandas.DataFrame] = dataclasses.field(default_factory=dict, repr=False)
    """The tables that were read so far; `table` reads the others."""

    @functools.cached_property
    def ok_runs(self) -> pandas.DataFrame:
        rows = [group.ok_runs for group in self.groups]
        return pandas.concat(rows) if rows else pandas.DataFrame(columns=list(TABLES["runs"]))

    def table(self, name: str) -> pandas.DataFrame:
        """A table of the set, read when it is first asked for. Raises UserError where it cannot be read."""
        if name not in self.tables:
            self.tables[name] = _read(self.path, name)
        return self.tables[name]

    @property
    def timed_groups(self) -> list[RunGroup]:
        """The groups that have a throughput."""
        return [group for group in self.groups if group.windows_of_runs]

    def timed_groups_of(self, strategy: str) -> list[RunGroup]:
        """The same of one strategy."""
        return [group for group in self.timed_groups if group.strategy == strategy]

    @functools.cached_property
    def timed_groups_without_aa(self) -> list[RunGroup]:
        """The timed groups, but for second halves of A/A comparisons."""
        return [group for group in self.timed_groups if not group.is_aa_copy]

    @functools.cached_property
    def rankable_groups(self) -> list[RunGroup]:
        """The timed groups that may be called faster or slower than each other: of those in the precision of most, the
        most that are comparable with one of them."""
        timed = self.timed_groups_without_aa
        kinds = [compute_precision(group.identity) for group in timed]
        alike = [group for group, kind in zip(timed, kinds, strict=True) if kind == max(kinds, key=kinds.count)]
        families = ([each for each in alike if comparable(each.identity, of.identity)] for of in alike)
        return max(families, key=len, default=[])

    def baseline_of(self, group: RunGroup) -> RunGroup | None:
        """The group that this group's speed-up is over: the timed runs of BASELINE that differ in nothing but the
        strategy, in the same precision and share of the machine.

        Of several, it is the one with the same requested settings, if need be on other nodes. In fp16 one rank of a
        strategy with a gradient scaler replaces BASELINE. None for a baseline itself, and where none or several fit.
        """
        bases = self.timed_groups_of(BASELINE)
        if compute_precision(group.identity) == "fp16":
            bases = [other for other in self.timed_groups if other.identity.requested.get("ranks") == 1]
        found = [
            other
            for other in bases
            if not other.is_aa_copy
            and same_work(other.identity, group.identity)
            and same_share_of_machine(other.identity, group.identity)
        ]
        if group in found:
            return None
        same, elsewhere = (
            [other for other in found if same_request(other.identity, group.identity, but)]
            for but in ((), ("ranks", "nodes"))
        )
        return next((some[0] for some in (same, elsewhere, found) if len(some) == 1), None)

    @functools.cached_property
    def baseline_label_of(self) -> dict[str, str]:
        """Label of a group -> label of its baseline, for each timed group that has one."""
        bases = {group.label: self.baseline_of(group) for group in self.timed_groups}
        return {label: base.label for label, base in bases.items() if base}

    @property
    def plain_baselines(self) -> list[RunGroup]:
        """One process that may be ranked: on its share of the cores, and on a CPU with all of them."""
        return [group for group in self.rankable_groups if group.strategy == BASELINE]

    @functools.cached_property
    def ratios(self) -> dict[Pair, RatioEstimate]:
        """All ratios of the set, by labels, of one family: every pair of comparable groups, and each over its baseline;
        an A/A copy has no other pair."""
        bases = self.baseline_label_of.items()
        pairs = {
            (one.label, other.label)
            for one, other in itertools.combinations(self.timed_groups_without_aa, 2)
            if comparable(one.identity, other.identity)
        }
        pairs -= {(to, of) for of, to in bases}
        return ratios_of_pairs(
            {group.label: group.log_by_round for group in self.timed_groups}, sorted(pairs | {*bases})
        )

    def ratio(self, of: RunGroup, to: RunGroup) -> RatioEstimate | None:
        """How many times as fast `of` is as `to`; None where they may not be compared."""
        turned = self.ratios.get((to.label, of.label))
        return self.ratios.get((of.label, to.label)) or (turned.inverse() if turned else None)

    @functools.cached_property
    def speedups(self) -> dict[str, RatioEstimate]:
        """The ratio of each timed group over its own baseline, by label: the column `x single`."""
        return {of: self.ratios[of, to] for of, to in self.baseline_label_of.items()}


def load_set(path: Path) -> ResultSet:
    """The result set in folder `path`. Tables and columns that it lacks are empty; a run that is there twice counts
    once.

    Says on stderr what it does not know of the runs' settings. Raises UserError where the folder is missing or
    unreadable.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder of results; ./bench run makes one, results/latest is the newest")
    tables = {name: _read(path, name) for name in ("runs", "settings", "windows")}
    runs = tables["runs"].drop_duplicates("run_id")
    runs = tables["runs"] = runs[(runs.status != WARM_UP) & (runs["repeat"] != 0)].reset_index(drop=True)
    found, remarks = _identities_of_runs(path, runs, tables["settings"])
    environment = _read_environment(path / "environment.json")
    windows = windows_by_run(tables["windows"], path / "windows.csv")
    groups = group_runs(runs, found, windows, environment.get("num_cores"))
    for sentence in remarks:
        print(f"warning: {printable(sentence)}", file=sys.stderr)
    return ResultSet(path.resolve().name, path, groups, remarks, environment, tables)


def _identities_of_runs(
    path: Path, runs: pandas.DataFrame, table: pandas.DataFrame
) -> tuple[list[Identity], list[str]]:
    """The identity of each row of runs.csv, and a sentence for each hash that settings.csv, `table`, lacks."""
    known = identities_by_hash(table)
    found = [
        known.get(name) or Identity({"strategy": strategy, LOST: name}, {})
        for name, strategy in zip(runs.settings, runs.strategy, strict=True)
    ]
    lost = runs[~runs.settings.isin(known.keys())].groupby("settings", sort=False).run_id
    remarks = [
        f"{path}: settings.csv lacks the hash {name!r} ({plural(len(ids), 'run')}, such as {ids.iloc[0]})"
        for name, ids in lost
    ]
    return found, remarks


def _read(path: Path, name: str) -> pandas.DataFrame:
    try:
        return read_table(path, name)
    except OSError as error:
        raise UserError(f"cannot read the results in {path}: {error}") from None


def _read_environment(path: Path) -> dict[str, Any]:
    """An environment.json; {} where it is missing or broken, which is said on stderr."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        print(f"warning: {path} cannot be read: {printable(str(error))}", file=sys.stderr)
        return {}
