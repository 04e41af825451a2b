"""The settings of a run, in two halves: requested and resolved. They alone decide whether two runs are alike.

    {"schema": 1, "asked": {"strategy": "ddp", "ranks": 2, ...}, "met": {"device_name": ..., "torch": ..., ...}}

Requested, stored as "asked": strategy, ranks, nodes, threads a rank, fingerprint of the data, and every field of the
configuration, with `auto` where it says `auto`. The plan writes this half before the start, so that skipped and killed
runs have it. Resolved, stored as "met": the value of each `auto`, the hardware, the versions, the commit. The run adds
this half. Needs no torch.
"""

import dataclasses
import hashlib
import json
from typing import Any

from benchmarks.common.config.config import Config

SCHEMA = 1
HASH_DIGITS = 12

Half = dict[str, Any]
"""One half of the settings: values by name, as JSON has them."""

# A new field is compared by default. These fields are not, and this is the only such list.
IMAGENET_TRAIN_IMAGES = 1_281_167  # ILSVRC 2012; of an epoch of synthetic ones, too
NOT_COMPARED = {
    "config": "a name; the values in the file count one by one",
    "data": "a path; the fingerprint of what lies there counts",
    "checkpoint_dir": "a place",
    "checkpoint_steps": "no timed window includes a checkpoint",
    "checkpoint_keep": "the same",
    "resume": "the run goes on where it was, with the same arithmetic",
    "resume_from": "the same",
    "resume_anyway": "the row's reason says which settings have changed",
    "timeout_s": "patience",
    "limit_s": "patience",
    "compile_s": "resolved, a time: seconds before the first step",
    "rendezvous": "how ranks find each other before the first step",
}
# These fields separate groups only where commits are compared. Reports always name them.
SOURCE_FIELDS = ("commit", "local_changes")


@dataclasses.dataclass(frozen=True)
class Shape:
    """What of a strategy changes the arithmetic of its update; the proof's reference does the same.

    num_shards: equal parts of a global batch whose gradients are averaged; BatchNorm sees one at a time.
    num_stages: consecutive parts of the model that different devices or ranks hold.
    num_microbatches: parts of a shard that pass one after the other; BatchNorm sees one at a time.
    split_size: images of such a part, the last may have fewer, and one loss is of all of them; 0: equal parts, each
        with a loss of its own.
    compression: what gradients travel as.
    period: steps between two averages of the weights; 0: gradients are averaged instead.
    group: with a period, shards next to each other whose gradients are averaged at every step all the same.
    exact: whether the update is the reference's to the last bit where sums have one order (two ranks, on CPUs).
    """

    num_shards: int = 1
    num_stages: int = 1
    num_microbatches: int = 1
    split_size: int = 0
    compression: str = "none"
    period: int = 0
    group: int = 1
    exact: bool = True


def shape_in(config: Config, shape: Shape) -> Shape:
    """A strategy's Shape with what options of every strategy change of it."""
    if config.norm == "sync":  # statistics, and so gradients, are of the whole batch
        shape = dataclasses.replace(shape, num_shards=1)
    # kernels that do several operations at once round once where others round twice
    return dataclasses.replace(shape, exact=shape.exact and not (config.compile or config.fused))


def requested_settings(config: Config, strategy: str, ranks: int, nodes: int, threads_per_rank: int, data: str) -> Half:
    """The requested half. data: the fingerprint of the images, empty for synthetic ones."""
    launch = {"strategy": strategy, "ranks": ranks, "nodes": nodes, "threads_per_rank": threads_per_rank}
    return launch | {"fingerprint": data} | dataclasses.asdict(config)


def seed_of_round(half: Half, number: int) -> int | str | None:
    """The seed of round `number`. The seeds of a list are taken in turn. None: no seed is recorded, and all rounds had
    the same."""
    seeds = half.get("seeds")
    return seeds[(number - 1) % len(seeds)] if isinstance(seeds, list) and seeds else half.get("seed")


def compared_fields(half: Half) -> Half:
    """The fields of a half that are compared. Where the rounds take the seeds of a list in turn, the list is."""
    return {
        name: value
        for name, value in half.items()
        if name not in NOT_COMPARED and not (name == "seed" and "seeds" in half)
    }


def settings_hash(requested: Half, resolved: Half | None = None) -> str:
    """A hash of the fields of both halves that are compared; of the requested half for a run that resolved nothing."""
    halves = [compared_fields(requested), *([compared_fields(resolved)] if resolved else [])]
    text = json.dumps(halves, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:HASH_DIGITS]
