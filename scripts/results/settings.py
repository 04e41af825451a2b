"""The settings of a run, in two halves: requested and resolved. NOT_COMPARED of config.py and READERS say which fields
count; identity.py decides whether two runs are pooled.

Requested, stored as "asked": strategy, ranks, nodes, threads a rank, fingerprint of the data, and every field of the
configuration, with `auto` where it says `auto`. The plan writes it before the start. Resolved, stored as "met": the
value of each `auto`, the machine, the versions, the commit. The reporting rank collects it, and the record adds to it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.config import NOT_COMPARED, Config
from benchmarks.common.rows import append_rows
from benchmarks.common.run_folder import Half

HASH_DIGITS = 12

SOURCE_FIELDS = ("commit", "local_changes")
# Options that some strategies read, and their readers. The runs of other strategies are alike whatever these say.
DDP = ("ddp", "ddp_spawn", "slurm", "ddp_amp", "ddp_compile", "ddp_compressed", "hybrid_parallel", "zero1")
READERS = {
    **dict.fromkeys(("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "broadcast_buffers"), DDP),
    **dict.fromkeys(("comm_hook", "powersgd_rank"), ("ddp_compressed",)),
    "shard_ranks": ("fsdp",),
    **dict.fromkeys(("local_period", "local_group"), ("local_sgd",)),
    "compression": ("horovod_ddp",),
    "opt_level": ("apex_ddp",),
    "cut": ("model_parallel", "pipeline_parallel", "hybrid_parallel"),
    "split_size": ("model_parallel", "hybrid_parallel"),
    **dict.fromkeys(("microbatches", "pipeline_schedule"), ("pipeline_parallel",)),
}


def requested_settings(
    config: Config, strategy: str, ranks: int, nodes: int, threads_per_rank: int, fingerprint: str
) -> Half:
    """The requested half. fingerprint: of the images, empty for synthetic ones."""
    launch = {"strategy": strategy, "ranks": ranks, "nodes": nodes, "threads_per_rank": threads_per_rank}
    return launch | {"fingerprint": fingerprint} | dataclasses.asdict(config)


def seed_in_turn(seeds: Sequence[int], round_number: int) -> int:
    """The seed of a round, counted from 1: of three seeds round 4 has the first again."""
    return seeds[(round_number - 1) % len(seeds)]


def seed_of_round(half: Half, round_number: int) -> int | str | None:
    """half: of the recorded settings; None where it has no seed."""
    seeds = half.get("seeds")
    return seed_in_turn(seeds, round_number) if isinstance(seeds, list) and seeds else half.get("seed")


def drop_not_compared(half: Half) -> Half:
    """Where the rounds take the seeds of a list in turn, the list stays."""
    return {
        name: value
        for name, value in half.items()
        if name not in NOT_COMPARED and not (name == "seed" and "seeds" in half)
    }


def settings_hash(requested: Half, resolved: Half | None = None) -> str:
    """Of the fields that are compared."""
    halves = [drop_not_compared(half) for half in (requested, resolved) if half]
    text = json.dumps(halves, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def add_settings(results: Path, requested: Half, resolved: Half | None = None) -> str:
    """Add the settings of a run to settings.csv, unless they are there. Returns their hash, a column of runs.csv.

    Two processes may add two equal rows, which readers take for one.
    """
    name = settings_hash(requested, resolved)
    halves = {"asked": json_cell(requested), "met": json_cell(resolved) if resolved else None}
    row = {"settings": name, "asked_hash": settings_hash(requested), **halves}
    path = results / "settings.csv"
    if not path.exists() or f"\n{name}," not in path.read_text():
        append_rows(results, "settings", [row])
    return name


def json_cell(value: object) -> str:
    """JSON that `format_cell` does not change: on one line, and never with two spaces in a row."""
    return json.dumps(value, separators=(",", ":")).replace("  ", " \\u0020")
