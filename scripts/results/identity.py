"""Which runs are alike, and in what they differ: the one answer for groups, labels, comparisons, curves and proofs.

Two runs are one group where they agree in every field of their requested and of their resolved settings, but for
NOT_COMPARED of config.py, and for options that their strategy does not read (READERS of settings.py). A requested
`auto` is what the run made of it.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.common.config import FIELDS
from benchmarks.common.strategy import STORED_FIELDS
from scripts.results.formatting import format_setting
from scripts.results.settings import READERS, SOURCE_FIELDS, drop_not_compared
from scripts.shared.external import STRATEGY_SOURCE

if TYPE_CHECKING:
    import pandas

# `precision` was requested; `precision resolved` is what the run made of it, such as of `auto`.
RESOLVED_SUFFIX = " resolved"
AUTO = "auto"
# On one machine these follow from the requested settings.
DERIVED_FIELDS = {"world_size", "backend", "network", *STORED_FIELDS} - FIELDS.keys()
MACHINE_FIELDS = (
    *("num_cores", "cpu_flags", "cpu_capability", "kernel", "host", "gpu_driver", "nccl", "nccl_conf", "variables"),
)
AA_LABEL = "label"
"""A second name for the same run: A/A."""
ALL_CORES = "all cores"
"""In the label of a group whose rank has a thread for each core of the machine."""
LOST = "settings"
"""The one requested field, beside the strategy, of a run whose settings are not in settings.csv: their hash."""
PUBLISHED_HOST = re.compile(r"host \d+")  # what a published set says for a host; another set's is not known
# Groups of one set that differ in these fields alone are what the suite compares.
STRATEGY_FIELDS = {
    **dict.fromkeys(("strategy", "ranks", "nodes", "threads_per_rank"), "how it divides the machine"),
    **dict.fromkeys(DERIVED_FIELDS, "follows from that"),
    **dict.fromkeys(("precision", "memory_format"), "what it computes in"),
    AA_LABEL: "the same again",
    **dict.fromkeys(READERS, "an option that other strategies lack"),
    STRATEGY_SOURCE: "its code",
}
# bench-all adds runs of the baseline that differ from all other runs in these; see scripts/runner/plan.py.
SECOND_BASELINE_FIELDS = ("precision", "threads_per_rank")
# Resolved only where images a device were requested: weak scaling, in which batches grow with the devices.
RESOLVED_GLOBAL_BATCH = f"global_batch{RESOLVED_SUFFIX}"


@dataclasses.dataclass(frozen=True, eq=False)
class Identity:
    """The settings of a run: the requested half, and the half that the run resolved on its machine."""

    requested: dict[str, Any]
    resolved: dict[str, Any]

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """Every field that separates runs. A resolved field that was also requested ends in RESOLVED_SUFFIX."""
        strategy, resolved = str(self.requested.get("strategy", "")), drop_not_compared(self.resolved)
        if STRATEGY_SOURCE in self.requested:  # nobody here knows which options it reads: all count
            strategy = ""
        requested = {
            name: resolved.get(name, value) if value == AUTO else value
            for name, value in drop_not_compared(self.requested).items()
            if not strategy or strategy in READERS.get(name, (strategy,))
        }
        both = {name + RESOLVED_SUFFIX if name in self.requested else name: value for name, value in resolved.items()}
        known = requested | both
        return {name: value for name, value in known.items() if value != "" or name != AA_LABEL}

    @functools.cached_property
    def as_json(self) -> dict[str, str]:
        """The fields as JSON, which tells 1 from True."""
        return {name: _as_json(value) for name, value in self.fields.items()}

    @functools.cached_property
    def key(self) -> str:
        return key_without(self, ())

    @property
    def has_resolved_settings(self) -> bool:
        return any(name not in SOURCE_FIELDS for name in self.resolved)


def key_without(identity: Identity, names: Collection[str]) -> str:
    """A key that is equal for identities that are alike in all fields but these."""
    return str(sorted((name, value) for name, value in identity.as_json.items() if name not in names))


def differing_fields(identities: list[Identity]) -> list[str]:
    """The fields in which identities differ, in the order of the configuration."""
    names = dict.fromkeys(name for each in identities for name in each.fields)
    return [
        name
        for name in names
        if len({each.as_json.get(name, "null") for each in identities}) > 1
        and not (name == "host" and _are_of_several_sets([each.fields.get(name) for each in identities]))
    ]


def _are_of_several_sets(hosts: Sequence[object]) -> bool:
    return len({PUBLISHED_HOST.fullmatch(str(each)) is None for each in hosts if each is not None}) > 1


def _as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def common_baseline_fields(identities: list[Identity]) -> dict[str, object]:
    """Requested precision and threads a rank, where all of these identities requested the same."""
    values = {name: [each.fields.get(name) for each in identities] for name in SECOND_BASELINE_FIELDS}
    return {name: found[0] for name, found in values.items() if found and len({_as_json(each) for each in found}) == 1}


def group_labels(
    strategy: str, identities: list[Identity], others: Sequence[Identity], num_cores: int | None
) -> list[str]:
    """A name for each group of a strategy: the fields in which these differ, as briefly as keeps the names apart.

    others: the identities of the set's other strategies; a value that these share is not named, so that a second
    baseline is the one that says what it is. num_cores: of the machine.
    """
    plain = common_baseline_fields(list(others))
    if not all(each.has_resolved_settings for each in identities):  # a skipped run has none
        requested = [Identity(each.requested, {}) for each in identities]
        identities = requested if len({each.key for each in requested}) == len(requested) else identities
    names = differing_fields([each for each in identities if LOST not in each.requested])
    follow = {name for name in names if all(each.requested.get(name) == AUTO for each in identities)}
    follow |= {name for name in names if name in DERIVED_FIELDS or name.endswith(RESOLVED_SUFFIX)}
    names_that_count = [name for name in names if name not in follow]
    if len({key_without(each, each.fields.keys() - names_that_count) for each in identities}) == len(identities):
        names = names_that_count
    short, long = [], []
    for each in identities:
        own_names = [name for name in names if name != AA_LABEL or name in each.fields]
        own_names = [LOST] if LOST in each.requested else own_names
        named = [name for name in own_names if name not in plain or plain[name] != each.fields.get(name)]
        parts = [_format_field(name, each.fields.get(name), num_cores) for name in named]
        long.append(", ".join([strategy or "(no name)", *parts]))
        parts = [_format_briefly(name, each.fields.get(name), num_cores) for name in named]
        short.append(", ".join([strategy or "(no name)", *filter(None, parts)]))
    return short if len({*short}) == len(short) else long


def _format_briefly(name: str, value: object, num_cores: int | None) -> str:
    if isinstance(value, bool) and name in FIELDS:
        switched = name if value else f"no {name}"
        return "" if value == FIELDS[name].default else switched
    if name in ("precision", "memory_format") and value:
        return str(value)
    return _format_field(name, value, num_cores)


def _format_field(name: str, value: object, num_cores: int | None) -> str:
    if name == "threads_per_rank" and value == num_cores:
        return ALL_CORES
    if name == AA_LABEL:
        return format_setting(value)
    return f"{name} {format_setting(value)}"


def incomparable_fields(one: Identity, other: Identity) -> list[str]:
    """The fields that forbid a comparison of two groups of one set: all that differ and do not belong to the strategy,
    as does a field that only one of the two resolved."""
    fields_of_strategy = STRATEGY_FIELDS.keys() | {RESOLVED_GLOBAL_BATCH}
    fields_of_strategy |= one.resolved.keys() ^ other.resolved.keys()
    # the user chooses what is requested; what it resolves to is the strategy's
    chosen = {name for name in ("precision", "memory_format") if one.requested.get(name) != other.requested.get(name)}
    if "cpus_per_task" in one.requested and "cpus_per_task" in other.requested:
        fields_of_strategy |= {"num_cores"}  # a step of a Slurm job may have fewer cores than the job
    return [
        name
        for name in differing_fields([one, other])
        if name in chosen or not {name, name.removesuffix(RESOLVED_SUFFIX)} & fields_of_strategy
    ]


def same_request(one: Identity, other: Identity, but: Collection[str]) -> bool:
    """Whether two groups have the same requested settings, but for the strategy, a label and these fields."""
    left_out = {"strategy", STRATEGY_SOURCE, AA_LABEL, *but}
    halves = (
        {name: value for name, value in drop_not_compared(each.requested).items() if name not in left_out}
        for each in (one, other)
    )
    return _as_json(next(halves)) == _as_json(next(halves))


def comparable(one: Identity, other: Identity) -> bool:
    """Whether two groups of one set differ in nothing but their strategies."""
    return not incomparable_fields(one, other)


def same_work(one: Identity, other: Identity) -> bool:
    """As `comparable`, but the resolved precisions have to agree, whatever precision was requested."""
    alike = compute_precision(one) == compute_precision(other)
    return alike and set(incomparable_fields(one, other)) <= {"precision"}


def same_share_of_machine(one: Identity, other: Identity) -> bool:
    """Whether a rank has the same share of the machine in both: on CPUs, as many threads."""
    if {one.resolved.get("device"), other.resolved.get("device")} != {"cpu"}:
        return True
    return one.requested.get("threads_per_rank") == other.requested.get("threads_per_rank")


def compute_precision(identity: Identity) -> str | None:
    """The resolved precision: fp32, tf32, bf16 or fp16. Apex's levels compute in fp16, but for O0, which is fp32."""
    precision = identity.resolved.get("precision")
    if str(precision).startswith("apex-"):
        return "fp32" if precision == "apex-O0" else "fp16"
    return None if precision is None else str(precision)


def belongs_to(row: Identity, group: Identity) -> bool:
    """Whether a run without resolved settings, such as a skipped one, belongs to a group by what it requested."""
    wanted, had = (Identity(each.requested, {}).fields for each in (row, group))
    names = wanted.keys() | had.keys()
    return all(wanted.get(name) in (had.get(name), group.fields.get(name)) for name in names)


def identities_by_hash(table: "pandas.DataFrame") -> dict[str, Identity]:
    """Identities of a settings.csv by hash. Rows that cannot be read are left out."""
    rows = zip(table.settings, table.asked, table.met, strict=True)
    found = {str(name): read_identity(asked, met) for name, asked, met in rows}
    return {name: identity for name, identity in found.items() if identity}


def read_identity(asked: str, met: str) -> Identity | None:
    """Two cells of JSON as an identity; None where they hold no settings."""
    try:
        return Identity(json.loads(asked), json.loads(met or "{}"))
    except ValueError:
        return None
