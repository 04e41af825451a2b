"""A result set in memory: its tables, its runs grouped by what they measured, and the ratios of its groups."""

import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.errors import UserError
from benchmarks.common.rows import WARM_UP, read_table
from scripts.results.identity import (
    comparable,
    compute_precision,
    read_identity,
    same_request,
    same_share_of_machine,
    same_work,
)
from scripts.results.intervals import Pair, RatioEstimate, ratios_of_pairs
from scripts.results.run_group import RunGroup, group_runs, iterate_rows
from scripts.shared.strategy_list import BASELINE


@dataclasses.dataclass(frozen=True, eq=False)
class ResultSet:
    """One folder of results."""

    name: str
    path: Path
    groups: list[RunGroup]
    """The baseline's first, then by the strategy's name."""
    environment: dict[str, Any] = dataclasses.field(repr=False)
    """environment.json; {} where it is missing."""
    tables: dict[str, pandas.DataFrame] = dataclasses.field(repr=False)
    """Those that were read so far; `table` reads the others."""

    @functools.cached_property
    def ok_runs(self) -> pandas.DataFrame:
        runs = self.table("runs")
        return runs[runs.status == "ok"]

    def table(self, name: str) -> pandas.DataFrame:
        """Raises OSError."""
        if name not in self.tables:
            self.tables[name] = read_table(self.path, name)
        return self.tables[name]

    @property
    def timed_groups(self) -> list[RunGroup]:
        """Those that have a throughput."""
        return [group for group in self.groups if group.windows_of_runs]

    def timed_groups_of(self, strategy: str) -> list[RunGroup]:
        return [group for group in self.timed_groups if group.strategy == strategy]

    @functools.cached_property
    def timed_groups_without_aa(self) -> list[RunGroup]:
        return [group for group in self.timed_groups if not group.is_aa_copy]

    @functools.cached_property
    def rankable_groups(self) -> list[RunGroup]:
        """Those that may be called faster or slower than each other: of those in the precision of most, the most that
        are comparable with one of them."""
        timed = self.timed_groups_without_aa
        kinds = [compute_precision(group.identity) for group in timed]
        alike = [group for group, kind in zip(timed, kinds, strict=True) if kind == max(kinds, key=kinds.count)]
        families = ([each for each in alike if comparable(each.identity, of.identity)] for of in alike)
        return max(families, key=len, default=[])

    def baseline_of(self, group: RunGroup) -> RunGroup | None:
        """What its speed-up is over: BASELINE in the same precision, with the same share of the machine.

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
        """Of each timed group that has one."""
        bases = {group.label: self.baseline_of(group) for group in self.timed_groups}
        return {label: base.label for label, base in bases.items() if base}

    @property
    def plain_baselines(self) -> list[RunGroup]:
        """One process on its share of the cores, and on a CPU with all of them."""
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
        """`of` over `to`; None where they may not be compared."""
        turned = self.ratios.get((to.label, of.label))
        return self.ratios.get((of.label, to.label)) or (turned.inverse() if turned else None)

    @functools.cached_property
    def speedups(self) -> dict[str, RatioEstimate]:
        """Over each timed group's own baseline, by label: the column `x single`."""
        return {of: self.ratios[of, to] for of, to in self.baseline_label_of.items()}


def load_set(path: Path) -> ResultSet:
    """Tables that it lacks are empty. Raises UserError for a missing folder."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder of results; ./bench run makes one, results/latest is the newest")
    tables = {name: read_table(path, name) for name in ("runs", "settings", "windows")}
    identities = {row.settings: read_identity(row.asked, row.met) for row in iterate_rows(tables["settings"])}
    runs = tables["runs"] = tables["runs"][tables["runs"].status != WARM_UP].reset_index(drop=True)
    file = path / "environment.json"
    environment = json.loads(file.read_bytes()) if file.exists() else {}
    windows = tables["windows"].groupby("run_id")[["images", "seconds"]]
    windows_of = {str(run_id): rows.to_numpy(float) for run_id, rows in windows}
    groups = group_runs(runs, [identities[name] for name in runs.settings], windows_of, environment.get("num_cores"))
    return ResultSet(path.resolve().name, path, groups, environment, tables)
