"""Which runs are alike, and in what they differ: the one answer for groups, labels, comparisons, curves and proofs.

    from scripts.sets.identity import Identity, differing_fields, comparable

Everything that a run was asked and everything that it met counts, but for settings.NOT_COMPARED;
SOURCE_FIELDS is named and separates nothing. What else may differ, and where, is said once, below.
"""

import dataclasses
import functools
import json
from collections.abc import Collection

from benchmarks.common.config.config import FIELDS
from benchmarks.common.config.settings import SOURCE_FIELDS, Shape, compared_fields
from scripts.stats.formatting import format_setting

RESOLVED_SUFFIX = (
    " met"  # ends the name of a met field that was also asked: `precision` was asked, `precision met` came of it
)
# On one machine these follow from what was asked, so that they tell no two runs apart that nothing else does.
DERIVED_FIELDS = {"world_size", "backend", *(field.name for field in dataclasses.fields(Shape))} - FIELDS.keys()
# Of some strategies; the others, the baseline among them, do not look at them.
STRATEGY_OPTIONS = (
    *("opt_level", "compression", "bucket_cap_mb", "comm_hook", "powersgd_rank", "shard_ranks", "local_period"),
    *("local_group", "cut", "split_size", "copy_stream", "microbatches", "pipeline_schedule"),
)
# What a strategy is: groups of one set that differ in these, and in nothing else, are what the suite compares.
STRATEGY_FIELDS = {
    **dict.fromkeys(("strategy", "ranks", "nodes", "threads_per_rank"), "how it divides the machine"),
    **dict.fromkeys(DERIVED_FIELDS, "follows from that"),
    "precision": "what it computes in",
    **dict.fromkeys(STRATEGY_OPTIONS, "an option that other strategies lack"),
}
# In these bench-all adds runs of the baseline that differ from all other runs; see scripts/runner/run_plan.py.
SECOND_BASELINE_FIELDS = ("precision", "threads_per_rank")
# Met only where images a device were asked: weak scaling, in which batches grow with the devices.
RESOLVED_GLOBAL_BATCH = f"global_batch{RESOLVED_SUFFIX}"


@dataclasses.dataclass(frozen=True, eq=False)
class Identity:
    """What a run was asked and what it met. recorded: False where that is told by columns of runs.csv alone."""

    asked: dict
    met: dict
    recorded: bool = True

    @functools.cached_property
    def fields(self) -> dict[str, object]:
        """Every field that counts; SOURCE_FIELDS is not among them, and a met field that was also asked ends in MET."""
        asked, met = (
            {name: value for name, value in compared_fields(half).items() if name not in SOURCE_FIELDS}
            for half in (self.asked, self.met)
        )
        if not self.recorded:  # the values in the file are not known, so that its name is all there is
            asked |= {name: value for name, value in self.asked.items() if name == "config"}
        return asked | {name + RESOLVED_SUFFIX if name in asked else name: value for name, value in met.items()}

    @functools.cached_property
    def key(self) -> str:
        return key_without(self, ())

    @property
    def met_something(self) -> bool:
        return any(name not in SOURCE_FIELDS for name in self.met)


def key_without(identity: Identity, names: Collection[str]) -> str:
    """A key that is equal for identities that are alike in all fields but these."""
    left = {name: value for name, value in identity.fields.items() if name not in names}
    return _as_json([identity.recorded, left])


def key_without_derived(identity: Identity, *names: str) -> str:
    """A key that is equal for runs that were asked the same but for `names`, on the same hardware and software."""
    follow = {name for name in identity.fields if name in DERIVED_FIELDS or name.endswith(RESOLVED_SUFFIX)}
    return key_without(identity, {*names, *follow})


def differing_fields(identities: list[Identity]) -> list[str]:
    """The fields in which identities differ, in the order of the configuration."""
    names = dict.fromkeys(name for each in identities for name in each.fields)
    return [
        name
        for name in names
        if len({_as_json(each.fields.get(name)) for each in _identities_with_field(name, identities)}) > 1
    ]


def _identities_with_field(name: str, identities: list[Identity]) -> list[Identity]:
    """Those that would have the field if it had been set: recorded ones may know fields that the others cannot."""
    kinds = {each.recorded for each in identities if name in each.fields}
    return [each for each in identities if each.recorded in kinds]


def _as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def common_baseline_fields(identities: list[Identity]) -> dict[str, object]:
    """Precision and threads of a rank as asked of all of these, where they were asked the same."""
    values = {name: [each.fields.get(name) for each in identities] for name in SECOND_BASELINE_FIELDS}
    return {name: found[0] for name, found in values.items() if found and len({_as_json(each) for each in found}) == 1}


def group_labels(
    strategy: str, identities: list[Identity], others: list[Identity] = (), num_cores: int | None = None
) -> list[str]:
    """A name for each group of a strategy: the fields in which these differ.

    What only follows from other fields is named where nothing else tells the groups apart. A second baseline says what
    it is, and the first, which was asked what all `others` were, of the set's other strategies, has the plain name.
    num_cores: of the machine; so many threads are all cores.
    """
    plain = common_baseline_fields(list(others))
    names = differing_fields(identities)
    own = [name for name in names if name not in DERIVED_FIELDS and not name.endswith(RESOLVED_SUFFIX)]
    if len({key_without(each, each.fields.keys() - own) for each in identities}) == len(identities):
        names = own
    mixed = len({each.recorded for each in identities}) > 1
    found = []
    for each in identities:
        told = [name for name in names if each in _identities_with_field(name, identities)]
        told = [name for name in told if name not in plain or plain[name] != each.fields.get(name)]
        words = [_format_field(name, each.fields.get(name), num_cores) for name in told]
        words += ["settings not recorded"] if mixed and not each.recorded else []
        found.append(", ".join([strategy or "(no name)", *words]))
    return found


def _format_field(name: str, value: object, num_cores: int | None) -> str:
    if name == "threads_per_rank" and value == num_cores:
        return "all cores"
    return f"{name} {format_setting(value)}"


def incomparable_fields(one: Identity, other: Identity) -> list[str]:
    """The fields for which two groups of one set cannot be compared: those that are not their strategies' own.

    A field that only one of two recorded ones met, such as the version of a strategy's own library, is the strategy's.
    """
    own = STRATEGY_FIELDS.keys() | {RESOLVED_GLOBAL_BATCH}
    own |= one.met.keys() ^ other.met.keys() if one.recorded and other.recorded else set()
    # asked, precision is the user's choice; what came of it, and all that an old set tells of it, is the strategy's
    chosen = {"precision"} if one.recorded and other.recorded else set()
    return [
        name
        for name in differing_fields([one, other])
        if name in chosen or not {name, name.removesuffix(RESOLVED_SUFFIX)} & own
    ]


def same_request(one: Identity, other: Identity, but: Collection[str] = ()) -> bool:
    """Whether two groups were asked the same of their strategies, but for these fields."""
    own = {"strategy", *but}
    halves = (
        {name: value for name, value in compared_fields(each.asked).items() if name not in own} for each in (one, other)
    )
    return _as_json(next(halves)) == _as_json(next(halves))


def comparable(one: Identity, other: Identity) -> bool:
    """Whether two groups of one set differ in nothing but their strategies, as far as both were recorded alike."""
    return one.recorded == other.recorded and not incomparable_fields(one, other)


def same_work(one: Identity, other: Identity) -> bool:
    """Whether a speed-up of one over the other is of how they divide the work: as comparable, but computed in the same
    precision, whichever was asked."""
    alike = one.recorded == other.recorded and compute_precision(one) == compute_precision(other)
    return alike and set(incomparable_fields(one, other)) <= {"precision"}


def same_share_of_machine(one: Identity, other: Identity) -> bool:
    """Whether a rank has the same of the machine in both: on CPUs, where it stands for a device, as many threads."""
    if {one.met.get("device"), other.met.get("device")} != {"cpu"}:
        return True
    return one.asked.get("threads_per_rank") == other.asked.get("threads_per_rank")


def compute_precision(identity: Identity) -> str | None:
    """The arithmetic that was met: fp32, tf32, bf16 or fp16; Apex's levels are fp16, but for O0."""
    precision = identity.met.get("precision")
    if str(precision).startswith("apex-"):
        return "fp32" if precision == "apex-O0" else "fp16"
    return precision


def belongs_to(row: Identity, group: Identity) -> bool:
    """Whether a run that met nothing belongs to a group; where it was not recorded, by all that is known of it."""
    if row.recorded and group.recorded:
        return _as_json(compared_fields(row.asked)) == _as_json(compared_fields(group.asked))
    known = {name: value for name, value in row.fields.items() if name in group.fields}
    return not row.recorded and all(
        format_setting(value) == format_setting(group.fields[name]) for name, value in known.items()
    )
