"""A result set in memory: all its tables, and its runs grouped by what they measured.

Needs no torch.
"""

import dataclasses
import functools
import itertools
import sys
from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.store.columns import TABLES
from benchmarks.common.store.environment_facts import read_environment
from benchmarks.common.store.results import WARM_UP, read_numbered_table
from benchmarks.common.store.safe_names import refuse_links
from benchmarks.common.system.errors import UserError
from scripts.sets.contradictions import find_contradictions
from scripts.sets.identity import compute_precision, same_request, same_share_of_machine, same_work
from scripts.sets.own_set import NO_SET
from scripts.sets.recorded_settings import counted_settings, identities_by_hash, identities_of_runs
from scripts.sets.run_group import RunGroup, group_runs, windows_by_run
from scripts.sets.sessions import session_numbers
from scripts.stats.families import ratios_to_own_baselines
from scripts.stats.formatting import printable
from scripts.stats.intervals import RatioEstimate
from scripts.strategies.strategy_list import BASELINE


@dataclasses.dataclass(frozen=True, eq=False)
class ResultSet:
    """One folder of results: its tables, and its groups of runs: the baseline's first, then by the strategy's name, not
    in the order of runs.csv, which rounds shuffle."""

    name: str
    path: Path
    groups: list[RunGroup]
    remarks: list[str]
    """A sentence for each gap in the settings of its runs, with what replaces them."""
    environment: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """environment.json; {} where it is missing or broken."""
    tables: dict[str, pandas.DataFrame] = dataclasses.field(default_factory=dict, repr=False)
    """The tables that were read so far; `table` reads the others."""
    contradictions: list[str] = dataclasses.field(default_factory=list)
    """Contradictions in its tables, such as a row that is there twice: a sentence each."""

    @functools.cached_property
    def ok_runs(self) -> pandas.DataFrame:
        rows = [group.ok_runs for group in self.groups]
        return pandas.concat(rows) if rows else pandas.DataFrame(columns=list(TABLES["runs"]))

    @functools.cached_property
    def loads_before(self) -> pandas.Series:
        """Load average before each ok run, in their order; before a warm-up too, which is part of the next run's.

        Of ranks that were no children of the suite, as under Slurm, there is none: the load is read where the job is
        submitted or supervised, and not on their nodes. Such a row has steal_pct, and no other_cpu_pct.
        """
        runs = _numbered(self.path, "runs")[0]
        elsewhere = runs.steal_pct.notna() & runs.other_cpu_pct.isna()
        ran = runs[((runs.status == "ok") | (runs.status == WARM_UP)) & ~elsewhere]
        return ran.sort_values("started_at", kind="stable").load_average.dropna()

    def refuse_contradictions(self) -> None:
        """Raise UserError where nothing can be concluded from the set."""
        if self.contradictions:
            more = f" (and {len(self.contradictions) - 1} more)" if len(self.contradictions) > 1 else ""
            raise UserError(
                f"no verdict, since the set contradicts itself: {self.contradictions[0]}{more}; undo what was "
                "added to it or changed in it, or measure again in a new set"
            )

    @functools.cached_property
    def other_peaks(self) -> list[dict]:
        """The peaks of the device that sets inside this one measured: how far the next measurement would be off."""
        found = (_read_environment(path).get("measured_peak") for path in sorted(self.path.glob("*/environment.json")))
        return [peak for peak in found if peak]

    def table(self, name: str) -> pandas.DataFrame:
        """A table of the set, read when it is first asked for. Raises UserError where it cannot be read."""
        if name not in self.tables:
            self.tables[name] = _numbered(self.path, name)[0]
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

        It has the timed runs of BASELINE that differ in nothing but the strategy, computed in the same precision, and
        had one rank's share of the machine. Of several, it is the one with the same requested settings, if need be on
        other nodes. In fp16, which needs a gradient scaler, one rank of a strategy that has one replaces BASELINE.

        None for a baseline itself, without a baseline, and where several fit. A run with a label is no baseline.
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
        """The timed groups that may be called faster or slower than each other: those that compute in the precision
        that most groups compute in. A gain from another arithmetic is not the strategy's, and an A/A run is none."""
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
        """Speed-up of each timed group that has a baseline, by label, with simultaneous 95 % intervals.

        Every table, chart and sentence takes it from here, so that a pair has one interval.
        """
        return ratios_to_own_baselines(
            {group.label: group.sample for group in self.compared_groups}, self.baseline_label_of
        )


def load_set(path: Path) -> ResultSet:
    """The result set in folder `path`. Tables and columns that it lacks are empty.

    Says on stderr what it does not know of the runs' settings. Raises UserError where the folder is missing or
    unreadable, or has a link inside: the folder itself may be one.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} {NO_SET}")
    refuse_links(path)
    read = {name: _numbered(path, name) for name in ("runs", "settings", "windows", "epochs", "steps")}
    tables = {name: table for name, (table, _) in read.items()}
    runs = tables["runs"] = _without_warm_up(tables["runs"])
    found, remarks = identities_of_runs(path, runs, tables["settings"])
    environment = _read_environment(path / "environment.json")
    windows = windows_by_run(tables["windows"], path / "windows.csv")
    groups = group_runs(runs, found, windows, environment.get("num_cores"))
    contradictions = find_contradictions(path, read, groups)
    remarks += contradictions
    for sentence in remarks:
        print(f"warning: {printable(sentence)}", file=sys.stderr)
    return ResultSet(path.resolve().name, path, groups, remarks, environment, tables, contradictions)


def same_hash_other_settings(sets: list[ResultSet]) -> list[str]:
    """A sentence for each two sets in which one hash means different settings. Groups go by the settings."""
    tables = [(results.path, identities_by_hash(results.table("settings"))[0]) for results in sets]
    return [
        f"{a} and {b} have different settings under one hash, {name}; the settings themselves are compared"
        for (a, in_a), (b, in_b) in itertools.combinations(tables, 2)
        for name in in_a.keys() & in_b.keys()
        if counted_settings(in_a[name]) != counted_settings(in_b[name])
    ]


def _without_warm_up(runs: pandas.DataFrame) -> pandas.DataFrame:
    """runs.csv without what only warmed the machine, and a column `session`."""
    runs = runs.assign(session=session_numbers(runs))
    return runs[(runs.status != WARM_UP) & (runs["repeat"] != 0)].reset_index(drop=True)


def _numbered(path: Path, name: str) -> tuple[pandas.DataFrame, list[int]]:
    """A table, and the line of each row. Raises UserError where it cannot be read."""
    try:
        return read_numbered_table(path, name)
    except OSError as error:
        raise UserError(f"cannot read the results in {path}: {error}") from None


def _read_environment(path: Path) -> dict[str, Any]:
    """An environment.json; {} where it is missing or broken, which is said on stderr."""
    try:
        return read_environment(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        print(f"warning: {path} cannot be read: {printable(str(error))}", file=sys.stderr)
        return {}
