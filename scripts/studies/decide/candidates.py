"""The candidates for 90 ImageNet epochs: what these take and cost with each strategy on each machine; which compare.

A result set is one day on one machine. An interval of hours or of a cost covers the runs of that set: not another day,
and not another machine of the kind. Needs no torch.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy

from benchmarks.common.config import IMAGE_FIELDS
from benchmarks.common.errors import UserError
from scripts.results.epoch_time import epoch_time
from scripts.results.families import ThroughputSample
from scripts.results.formatting import format_setting, printable
from scripts.results.identity import ALL_CORES, DERIVED_FIELDS, MACHINE_FIELDS, RESOLVED_SUFFIX, differing_fields
from scripts.results.intervals import log_throughput, mean_interval
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.set_text import UNKNOWN, describe_images
from scripts.studies.compare.analysis import FIELDS_THAT_MAY_DIFFER
from scripts.studies.decide.training_cost import NUM_EPOCHS, num_machines

MACHINE_SETTINGS = {
    *MACHINE_FIELDS,
    *("device", "device_name", "ranks", "nodes", "threads_per_rank", "workers", "shard_ranks"),
    *("cpus_per_task", "gpus_per_node", "partition"),  # of a Slurm job
    *DERIVED_FIELDS,
}
"""Fields that belong to a machine, or follow from its number of devices: they differ at equal settings, too."""
SOFTWARE = {*FIELDS_THAT_MAY_DIFFER, "horovod", "apex"}
"""Versions and commits. They may differ, and the command says in which."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval; None for both ends where one run says nothing of the spread."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> "Interval":
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Interval(factor * self.value, low, high)


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """What `./bench decide` chooses from: a strategy with its settings, on a machine that has a price."""

    machine: str
    """The name of the machine's set."""
    group: RunGroup
    money_per_hour: float
    """Of all machines that a run occupies."""
    hours: Interval
    """Of NUM_EPOCHS training passes, without evaluation and start-up."""
    is_measured: bool
    """Whether whole epochs were run; else `hours` are computed from images/s."""
    sample: ThroughputSample
    """The runs behind `hours`."""

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def name(self) -> str:
        return f"{self.machine} with {self.label}"

    @property
    def money(self) -> Interval:
        """In the currency of the prices."""
        return self.hours.times(self.money_per_hour)

    @property
    def images_per_s(self) -> Interval:
        rate = self.group.timed_throughput
        return Interval(rate.value, rate.low, rate.high)

    @functools.cached_property
    def joules_per_image(self) -> Interval | None:
        """Of the devices of a run; None where one reported no power."""
        values = self.group.ok_runs["energy_j_per_image"]
        known = values[numpy.isfinite(values)].to_numpy(float)
        return Interval(*mean_interval(known)) if len(known) else None

    @property
    def num_runs(self) -> int:
        return len(self.sample.log_throughputs)


def candidates_by_machine(
    sets: Sequence[ResultSet], prices: dict[str, float], strategy: str
) -> dict[str, list[Candidate]]:
    """The candidates of each set, by its name; strategy: of one alone. Raises UserError where a set has none."""
    found = {}
    for results in sets:
        groups = [each for each in results.timed_groups_without_aa if strategy in ("", each.strategy, each.label)]
        if not groups:
            timed = ", ".join(dict.fromkeys(group.label for group in results.timed_groups_without_aa))
            raise UserError(
                f"{results.path} has no timed run of {strategy}; it has {timed}"
                if strategy and timed
                else f"{results.path} has no ok run with a throughput; measure that machine, or leave its set out"
            )
        found[results.name] = [make_candidate(results, group, prices[results.name]) for group in groups]
    return found


def make_candidate(results: ResultSet, group: RunGroup, price: float) -> Candidate:
    """price: of one machine for one hour. The group has a throughput."""
    epoch = epoch_time(results, group)
    hours = Interval(epoch.value, epoch.low, epoch.high).times(NUM_EPOCHS / 3600)
    sample = group.sample
    if len(epoch.windows_of_runs) == len(group.round_numbers):
        sample = dataclasses.replace(sample, log_throughputs=log_throughput(epoch.windows_of_runs))
    return Candidate(results.name, group, price * num_machines(group), hours, epoch.measured, sample)


# --- equal work ---------------------------------------------------------------------------------------------------


REMEDIES = {
    "model": "the other's --arch and --norm",
    "image size": "the other's --image-size",
    "data": "the other's images, or both with --loader synthetic",
}
"""What has to be equal, and with what one of two machines is measured again where it is not."""


def refuse_unequal_work(machines: dict[str, list[Candidate]]) -> None:
    """Raises UserError, in one line, where models, image sizes or data differ, or data are unknown."""
    differences: dict[str, str] = {}
    for kind in REMEDIES:
        works = {
            name: sorted({_work(each.group, kind) for each in candidates}) for name, candidates in machines.items()
        }
        unknown = [name for name, found in works.items() if any(UNKNOWN in work for work in found)]
        if unknown and not differences:
            raise UserError(
                f"{printable(unknown[0])} does not say on which images it was measured, so that its data may differ; "
                "measure it again, or leave it out"
            )
        if len({*map(tuple, works.values())}) > 1 or any(len(found) > 1 for found in works.values()):
            differences[kind] = "; ".join(f"{printable(name)}: {' and '.join(found)}" for name, found in works.items())
    if differences:
        named = ", and in ".join(f"{kind} ({text})" for kind, text in differences.items())
        remedies = ", and ".join(REMEDIES[kind] for kind in differences)
        raise UserError(
            f"the sets differ in {named}, so that their hours do not compare; measure one of them again with {remedies}"
        )


def _work(group: RunGroup, kind: str) -> str:
    first, requested = group.ok_runs.iloc[0], group.identity.requested
    if kind == "model":
        norm = requested.get("norm", "batch")
        return format_setting(first.arch) + ("" if norm == "batch" else f" with norm {format_setting(norm)}")
    if kind == "image size":
        return f"{format_setting(first.image_size)} px"
    images, fingerprint = describe_images([group]), requested.get("fingerprint")
    if first.loader == "synthetic":
        return images
    packed = requested.get("pack") if requested.get("loader") == "packed" else "full"
    shrunk = "" if packed in ("full", None) else f", packed as {format_setting(packed)}"
    return printable(f"{images}, fingerprint {fingerprint}{shrunk}" if fingerprint else images)


# --- equal settings -----------------------------------------------------------------------------------------------


def settings_that_differ(one: Candidate, other: Candidate) -> list[str]:
    """The fields that keep two candidates on two machines from having equal settings."""
    names = differing_fields([one.group.identity, other.group.identity])
    allowed = MACHINE_SETTINGS | SOFTWARE | {*IMAGE_FIELDS}  # images are compared by refuse_unequal_work
    found = [name for name in names if not {name, name.removesuffix(RESOLVED_SUFFIX)} & allowed]
    return [*found, ALL_CORES] if _has_all_cores(one) != _has_all_cores(other) else found


def _has_all_cores(candidate: Candidate) -> bool:
    """Whether it is the second baseline of a CPU, one process on all cores (scripts/runner/plan.py)."""
    return candidate.label.endswith(ALL_CORES)


def shared_candidates(machines: dict[str, list[Candidate]]) -> list[list[Candidate]]:
    """Candidates with equal settings on all machines: a list for each strategy, with one candidate of each machine.

    Where a machine has several of equal settings, as a study of scaling has, the one with the most devices is taken.
    """
    first, *_ = machines.values()
    found: dict[str, list[Candidate]] = {}
    for candidate in first:
        alike = [[other for other in each if not settings_that_differ(candidate, other)] for each in machines.values()]
        if all(alike):
            row = [max(each, key=lambda other: float(other.group.ok_runs.iloc[0].world_size)) for each in alike]
            found.setdefault(row[0].label, row)
    return [*found.values()]


def describe_left_out(machines: dict[str, list[Candidate]], shared: list[list[Candidate]]) -> list[str]:
    """Why each candidate that is not among `shared` is left out at equal settings: a phrase for each reason."""
    kept = {id(candidate) for row in shared for candidate in row}
    reasons: dict[str, str] = {}
    for machine, candidates in machines.items():
        for candidate in candidates:
            if id(candidate) not in kept:
                reasons.setdefault(candidate.label, _why_left_out(candidate, machine, machines))
    labels: dict[str, list[str]] = {}
    for label, why in reasons.items():
        labels.setdefault(why, []).append(label)
    return [f"{'; '.join(names)} ({why})" for why, names in labels.items()]


def _why_left_out(candidate: Candidate, machine: str, machines: dict[str, list[Candidate]]) -> str:
    for other_machine, others in machines.items():
        same = [other for other in others if other.group.strategy == candidate.group.strategy]
        if other_machine == machine or any(not settings_that_differ(candidate, other) for other in same):
            continue
        if not same:
            return f"not timed on {other_machine}"
        nearest = min(same, key=lambda other: len(settings_that_differ(candidate, other)))
        texts = [
            f"{name.removesuffix(RESOLVED_SUFFIX)} {_setting(candidate, name)} on {machine} and "
            f"{_setting(nearest, name)} on {other_machine}"
            for name in settings_that_differ(candidate, nearest)
        ]
        return printable(", ".join(dict.fromkeys(texts)))
    return f"{machine} has it on more devices, too"


def _setting(candidate: Candidate, name: str) -> str:
    identity = candidate.group.identity
    special = {ALL_CORES: _has_all_cores(candidate)}
    return format_setting(special.get(name, (identity.resolved | identity.fields).get(name)))


def software_that_differs(shared: list[list[Candidate]]) -> list[str]:
    """Versions and commits in which the machines of `shared` differ, such as "torch (2.10.0; 2.15.0)"."""
    found: dict[str, None] = {}
    for row in shared:
        names = differing_fields([candidate.group.identity for candidate in row])
        for name in [name for name in names if name in SOFTWARE]:
            found[printable(f"{name} ({'; '.join(dict.fromkeys(_setting(candidate, name) for candidate in row))})")] = (
                None
            )
    return [*found]


def cores_that_differ(shared: list[list[Candidate]]) -> str:
    """The cores of a Slurm task, whose loader workers they feed, by machine, where they differ; else ''."""
    for row in shared:
        found = {candidate.machine: candidate.group.identity.requested.get("cpus_per_task") for candidate in row}
        if len({*map(str, found.values())}) > 1:
            return printable("; ".join(f"{machine}: {format_setting(cores)}" for machine, cores in found.items()))
    return ""
