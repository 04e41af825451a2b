"""A result set in memory: all its tables, and its runs grouped by what they measured.

Needs no torch.
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.rows import WARM_UP, read_table
from scripts.results.families import ratios_to_own_baselines
from scripts.results.formatting import plural, printable
from scripts.results.identity import compute_precision, same_request, same_share_of_machine, same_work
from scripts.results.intervals import RatioEstimate
from scripts.results.recorded_settings import identities_of_runs
from scripts.results.run_group import RunGroup, group_runs, windows_by_run
from scripts.results.sessions import session_numbers
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
    contradictions: list[str] = dataclasses.field(default_factory=list)
    """Why nothing can be concluded from it, such as a run that is there twice: a sentence each."""

    @functools.cached_property
    def ok_runs(self) -> pandas.DataFrame:
        rows = [group.ok_runs for group in self.groups]
        return pandas.concat(rows) if rows else pandas.DataFrame(columns=list(TABLES["runs"]))

    def refuse_contradictions(self) -> None:
        """Raise UserError where nothing can be concluded from the set."""
        if self.contradictions:
            more = f" (and {len(self.contradictions) - 1} more)" if len(self.contradictions) > 1 else ""
            raise UserError(
                f"no verdict, since the set contradicts itself: {self.contradictions[0]}{more}; take out what was "
                "added, or measure again in a new set"
            )

    @functools.cached_property
    def other_peaks(self) -> list[dict]:
        """The peaks of the device that sets inside this one measured."""
        found = (_read_environment(path).get("measured_peak") for path in sorted(self.path.glob("*/environment.json")))
        return [peak for peak in found if peak]

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

    def baseline_of(self, group: RunGroup) -> RunGroup | None:
        """The group that this group's speed-up is over.

        It has the timed runs of BASELINE that differ in nothing but the strategy, in the same precision and share of
        the machine. Of several, it is the one with the same requested settings, if need be on other nodes. In fp16 one
        rank of a strategy with a gradient scaler replaces BASELINE. None for a baseline itself, and where none or
        several fit.
        """
        bases = self.timed_groups_of(BASELINE)
        if compute_precision(group.identity) == "fp16":
            bases = [other for other in self.timed_groups if other.identity.requested.get("ranks") == 1]
        bases = [other for other in bases if not other.is_aa_copy]
        found = [
            other
            for other in bases
            if same_work(other.identity, group.identity) and same_share_of_machine(other.identity, group.identity)
        ]
        if group in found:
            return None
        same, elsewhere = (
            [other for other in found if same_request(other.identity, group.identity, but)]
            for but in ((), ("ranks", "nodes"))
        )
        return next((some[0] for some in (same, elsewhere, found) if len(some) == 1), None)

    @functools.cached_property
    def timed_groups_without_aa(self) -> list[RunGroup]:
        """The timed groups, but for second halves of A/A comparisons."""
        return [group for group in self.timed_groups if not group.is_aa_copy]

    @functools.cached_property
    def aa_comparisons(self) -> dict[str, RatioEstimate]:
        """The speed-ups that have to be 1, by label: of a group's runs under a second name over that group."""
        labels = [group.label for group in self.groups if group.is_aa_copy]
        return {label: self.speedups[label] for label in labels if label in self.speedups}

    @functools.cached_property
    def speedups_without_aa(self) -> dict[str, RatioEstimate]:
        """The speed-ups that are no A/A comparisons, by label: each is over the group's own baseline."""
        return {label: speedup for label, speedup in self.speedups.items() if label not in self.aa_comparisons}

    @functools.cached_property
    def rankable_groups(self) -> list[RunGroup]:
        """The timed groups that may be called faster or slower than each other: those in the precision of most."""
        timed = self.timed_groups_without_aa
        kinds = [compute_precision(group.identity) for group in timed]
        return [group for group, kind in zip(timed, kinds, strict=True) if kind == max(kinds, key=kinds.count)]

    @functools.cached_property
    def baseline_label_of(self) -> dict[str, str]:
        """Label of a group -> label of its baseline, for each timed group that has one."""
        bases = {group.label: self.baseline_of(group) for group in self.timed_groups}
        return {label: base.label for label, base in bases.items() if base}

    @functools.cached_property
    def compared_groups(self) -> list[RunGroup]:
        """The timed groups that have a baseline, or are one."""
        labels = {*self.baseline_label_of, *self.baseline_label_of.values()}
        return [group for group in self.groups if group.label in labels]

    @functools.cached_property
    def speedups(self) -> dict[str, RatioEstimate]:
        """Speed-up of each timed group with a baseline, by label, with simultaneous 95 % intervals: the one interval
        of a pair, for all tables, charts and sentences."""
        return ratios_to_own_baselines(
            {group.label: group.sample for group in self.compared_groups}, self.baseline_label_of
        )


def load_set(path: Path) -> ResultSet:
    """The result set in folder `path`. Tables and columns that it lacks are empty.

    Says on stderr what it does not know of the runs' settings. Raises UserError where the folder is missing or
    unreadable.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder of results; ./bench run makes one, results/latest is the newest")
    tables = {name: _read(path, name) for name in ("runs", "settings", "windows")}
    runs = tables["runs"] = _without_warm_up(tables["runs"])
    found, remarks = identities_of_runs(path, runs, tables["settings"])
    environment = _read_environment(path / "environment.json")
    windows = windows_by_run(tables["windows"], path / "windows.csv")
    groups = group_runs(runs, found, windows, environment.get("num_cores"))
    contradictions = find_contradictions(path, runs, groups)
    remarks += contradictions
    for sentence in remarks:
        print(f"warning: {printable(sentence)}", file=sys.stderr)
    return ResultSet(path.resolve().name, path, groups, remarks, environment, tables, contradictions)


def find_contradictions(path: Path, runs: pandas.DataFrame, groups: list[RunGroup]) -> list[str]:
    """Runs that count twice, as where tables were joined: a sentence for each kind."""
    again = {"a run more than once": runs[runs.duplicated("run_id")].run_id}
    for group in groups:
        ok = group.ok_runs.dropna(subset=["repeat"])
        # a group may have a round twice, requested in two ways
        twice = ok[ok.duplicated(["repeat", "settings"]) & ~ok.duplicated("run_id")]
        again[f"two ok runs of {group.label} with the same settings in a round"] = twice.run_id
    return [
        f"{path}/runs.csv has {what} ({plural(len(ids), 'row')}, such as {ids.iloc[0]})"
        for what, ids in again.items()
        if len(ids)
    ]


def _without_warm_up(runs: pandas.DataFrame) -> pandas.DataFrame:
    runs = runs.assign(session=session_numbers(runs))
    return runs[(runs.status != WARM_UP) & (runs["repeat"] != 0)].reset_index(drop=True)


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
