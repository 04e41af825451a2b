"""Sets by the day on which each was measured, with the versions that each had: for pages that show many sets.

A day is that of a set's first ok run, in UTC. Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

from scripts.sets.result_set import ResultSet
from scripts.sets.run_group import RunGroup
from scripts.sets.set_text import describe_images
from scripts.stats.formatting import format_setting, printable

UNKNOWN_DAY = "unknown day"
VERSIONS = ("torch", "python", "gpu_driver", "nccl", "kernel")
"""Resolved settings that a page marks where they change. Commits change with every set, and stand beside its day."""


@dataclasses.dataclass(frozen=True, eq=False)
class DatedSet:
    """A set with its day, and its versions by name."""

    results: ResultSet
    day: str
    """As ISO 8601 writes it; UNKNOWN_DAY where no run says."""
    commit: str
    versions: dict[str, str]


def in_order_of_days(sets: Sequence[ResultSet]) -> list[DatedSet]:
    """The sets that have a timed group besides copies of A/A: the oldest first, those of an unknown day last."""
    timed = [results for results in sets if results.timed_groups_without_aa]
    return [_dated(results) for results in sorted(timed, key=lambda each: (_first_start(each) or "~", each.name))]


def _first_start(results: ResultSet) -> str:
    """The start of the set's first ok run; '' where none says."""
    return min(filter(None, results.ok_runs.started_at), default="")


def _dated(results: ResultSet) -> DatedSet:
    resolved = [group.identity.resolved for group in results.timed_groups_without_aa]
    versions = {
        name: "/".join(sorted({printable(format_setting(each[name])) for each in resolved if each.get(name)}))
        for name in VERSIONS
    }
    commits = "/".join(sorted({printable(commit)[:7] for commit in results.ok_runs.commit if commit}))
    return DatedSet(results, printable(_first_start(results)[:10]) or UNKNOWN_DAY, commits, versions)


def groups_by_hardware_and_work(dated: Sequence[DatedSet]) -> dict[str, list[tuple[DatedSet, RunGroup]]]:
    """The timed groups of all sets, by what they ran on and on what images: only these may share an axis."""
    found: dict[str, list[tuple[DatedSet, RunGroup]]] = {}
    for each in dated:
        for group in each.results.timed_groups_without_aa:
            first = group.ok_runs.iloc[0]
            work = f"{format_setting(first.arch)}, {format_setting(first.image_size)} px, {describe_images([group])}"
            found.setdefault(printable(f"{format_setting(first.device_name)}; {work}"), []).append((each, group))
    return found
