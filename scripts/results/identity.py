"""Which runs are alike, and in what they differ: for groups, labels, comparisons and proofs.

Runs are one group where both halves of their settings agree, but for NOT_COMPARED of config.py and for options that
their strategy does not read (READERS of settings.py). A requested `auto` is what the run made of it.
"""

import dataclasses
import functools
import json
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks.common.config import FIELDS
from benchmarks.common.strategy import STORED_FIELDS
from scripts.results.formatting import format_setting
from scripts.results.settings import READERS, SOURCE_FIELDS, drop_not_compared
from scripts.shared.external import STRATEGY_SOURCE

# `precision` was requested; `precision resolved` is what the run made of it.
RESOLVED_SUFFIX = " resolved"
AUTO = "auto"
# On one machine these follow from the requested settings.
DERIVED_FIELDS = {"world_size", "backend", "network", *STORED_FIELDS} - FIELDS.keys()
MACHINE_FIELDS = (*("num_cores", "cpu_flags", "cpu_capability", "kernel", "host", "gpu_driver", "nccl", "variables"),)
AA_LABEL = "label"
"""A second name for the same run: A/A."""
ALL_CORES = "all cores"
"""In the label of a group whose rank has a thread for each core."""
# Groups of one set that differ in these fields alone are what the suite compares.
STRATEGY_FIELDS = {
    *("strategy", "ranks", "nodes", "threads_per_rank", "precision", "memory_format"),
    *DERIVED_FIELDS,
    *READERS,
    *(AA_LABEL, STRATEGY_SOURCE),
    f"global_batch{RESOLVED_SUFFIX}",  # in weak scaling batches grow with the devices
}
# bench-all adds runs of the baseline that differ from all others in these.
SECOND_BASELINE_FIELDS = ("precision", "threads_per_rank")


@dataclasses.dataclass(frozen=True, eq=False)
class Identity:
    requested: dict[str, Any]
    resolved: dict[str, Any]

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """Every field that separates runs. A resolved field that was also requested ends in RESOLVED_SUFFIX."""
        strategy, resolved = self.requested.get("strategy"), drop_not_compared(self.resolved)
        reads_all = STRATEGY_SOURCE in self.requested  # a script of the user's
        requested = {
            name: resolved.get(name, value) if value == AUTO else value
            for name, value in drop_not_compared(self.requested).items()
            if (reads_all or strategy in READERS.get(name, (strategy,))) and (name, value) != (AA_LABEL, "")
        }
        both = {name + RESOLVED_SUFFIX if name in self.requested else name: value for name, value in resolved.items()}
        return requested | both

    @functools.cached_property
    def as_json(self) -> dict[str, str]:
        """It tells 1 from True."""
        return {name: json.dumps(value, sort_keys=True) for name, value in self.fields.items()}

    @functools.cached_property
    def key(self) -> str:
        return str(sorted(self.as_json.items()))

    @property
    def has_resolved_settings(self) -> bool:
        return any(name not in SOURCE_FIELDS for name in self.resolved)


def differing_fields(identities: list[Identity]) -> list[str]:
    """In the order of the configuration."""
    names = dict.fromkeys(name for each in identities for name in each.fields)
    return [name for name in names if len({each.as_json.get(name, "null") for each in identities}) > 1]


def group_labels(
    strategy: str, identities: list[Identity], others: Sequence[Identity], num_cores: int | None
) -> list[str]:
    """A name for each group of a strategy, by the fields in which these differ.

    others: of the set's other strategies; a value that these share is not named, so that a second baseline is the one
    that says what it is. num_cores: of the machine.
    """
    common = [name for name in SECOND_BASELINE_FIELDS if len({each.as_json.get(name) for each in others}) == 1]
    plain = {name: others[0].fields.get(name) for name in common}
    if not all(each.has_resolved_settings for each in identities):  # a skipped run has none
        requested = [Identity(each.requested, {}) for each in identities]
        identities = requested if len({each.key for each in requested}) == len(requested) else identities
    names = differing_fields(identities)
    follow = {name for name in names if all(each.requested.get(name) == AUTO for each in identities)}
    follow |= {name for name in names if name in DERIVED_FIELDS or name.endswith(RESOLVED_SUFFIX)}
    names_that_count = [name for name in names if name not in follow]
    if len({tuple(map(each.as_json.get, names_that_count)) for each in identities}) == len(identities):
        names = names_that_count
    labels = []
    for each in identities:
        named = [name for name in names if name not in plain or plain[name] != each.fields.get(name)]
        parts = [_format_field(name, each.fields.get(name), num_cores) for name in named]
        labels.append(", ".join([strategy, *filter(None, parts)]))
    return labels


def _format_field(name: str, value: object, num_cores: int | None) -> str:
    """'' for the default of a switch, and for the first of two A/A groups."""
    if isinstance(value, bool) and name in FIELDS:
        switched = name if value else f"no {name}"
        return "" if value == FIELDS[name].default else switched
    if name == "threads_per_rank" and value == num_cores:
        return ALL_CORES
    if name in (AA_LABEL, "precision", "memory_format"):
        return str(value or "")
    return f"{name} {format_setting(value)}"


def incomparable_fields(one: Identity, other: Identity) -> list[str]:
    """Of two groups of one set: the fields that differ and do not belong to the strategy, as does one that only one
    of the two resolved."""
    fields_of_strategy = STRATEGY_FIELDS | (one.resolved.keys() ^ other.resolved.keys())
    # what the user requests is no part of the strategy; what it resolves to is
    chosen = {name for name in ("precision", "memory_format") if one.requested.get(name) != other.requested.get(name)}
    if "cpus_per_task" in one.requested and "cpus_per_task" in other.requested:
        fields_of_strategy |= {"num_cores"}  # a step of a Slurm job may have fewer cores than the job
    return [
        name
        for name in differing_fields([one, other])
        if name in chosen or not {name, name.removesuffix(RESOLVED_SUFFIX)} & fields_of_strategy
    ]


def same_request(one: Identity, other: Identity, but: Collection[str]) -> bool:
    """Whether they requested the same, but for the strategy, a label and these fields."""
    left_out = {"strategy", STRATEGY_SOURCE, AA_LABEL, *but}
    left, right = (
        {name: value for name, value in drop_not_compared(each.requested).items() if name not in left_out}
        for each in (one, other)
    )
    return left == right


def comparable(one: Identity, other: Identity) -> bool:
    """Of one set: whether they differ in nothing but their strategies."""
    return not incomparable_fields(one, other)


def same_work(one: Identity, other: Identity) -> bool:
    """As `comparable`, but the resolved precisions have to agree, whatever precision was requested."""
    alike = compute_precision(one) == compute_precision(other)
    return alike and set(incomparable_fields(one, other)) <= {"precision"}


def same_share_of_machine(one: Identity, other: Identity) -> bool:
    """On CPUs, as many threads a rank."""
    if {one.resolved.get("device"), other.resolved.get("device")} != {"cpu"}:
        return True
    return one.requested.get("threads_per_rank") == other.requested.get("threads_per_rank")


def compute_precision(identity: Identity) -> str | None:
    """The resolved precision: fp32, tf32, bf16 or fp16."""
    return arithmetic(identity.resolved.get("precision"))


def arithmetic(precision: Any) -> Any:
    """Apex's levels compute in fp16, but for O0, which is fp32."""
    if precision and precision.startswith("apex-"):
        return "fp32" if precision == "apex-O0" else "fp16"
    return precision


def belongs_to(row: Identity, group: Identity) -> bool:
    """Whether a run without resolved settings requested what the group did."""
    wanted, had = (Identity(each.requested, {}).fields for each in (row, group))
    names = wanted.keys() | had.keys()
    return all(wanted.get(name) in (had.get(name), group.fields.get(name)) for name in names)


def read_identity(asked: str, met: str) -> Identity:
    """From two cells of settings.csv or equivalence.csv."""
    return Identity(json.loads(asked), json.loads(met or "{}"))
