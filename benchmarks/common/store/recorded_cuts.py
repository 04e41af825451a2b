"""The cuts into stages that the runs of a set share: RESULTS/cuts.json.

    {"schema": 1, "cuts": [{"of": {"strategy": "pipeline_parallel", ...}, "blocks_before": [5], "block_ms": [...]}]}

A run with `cut: auto` that finds no cut of its settings here measures one and records it. All later runs of these
settings read it, so that they are one group. Nothing else of one run reaches another. `block_ms` is for people: it is
read by nothing. Needs no torch.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.config.settings import Half
from benchmarks.common.store.results import lock_tables, write_json
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_set_file

NAME, SCHEMA = "cuts.json", 1
MAX_BYTES = 10**6
MAX_BLOCKS = 1000
# The requested settings on which the time of a block depends. Runs that agree in all of them share a cut.
DECIDING_FIELDS = (
    "strategy", "ranks", "nodes", "threads_per_rank", "arch", "image_size", "norm", "precision", "memory_format",
    "cudnn_benchmark", "cudnn_deterministic", "global_batch", "batch_per_device", "split_size", "microbatches", "cut",
)  # fmt: skip


def read_cuts(results: Path, requested: Half) -> list[int]:
    """Blocks before each cut of the runs with these requested settings; [] where the set has none.

    Raises UserError for a damaged file.
    """
    of = _deciding(requested)
    return next((entry["blocks_before"] for entry in _read_entries(results) if entry["of"] == of), [])


def record_cuts(
    results: Path, requested: Half, cuts: Sequence[int], block_ms: Sequence[float] = (), *, replace: bool = False
) -> list[int]:
    """Record the cuts of the runs with these requested settings. Returns those that the set now has.

    replace: put them in the place of others. Without it, the first that were recorded stay.
    block_ms: the measured time of each block, forward and backward, of one micro-batch.
    Raises UserError for a damaged file, and for a folder that cannot be written.
    """
    with lock_tables(results):
        of, entries = _deciding(requested), _read_entries(results)
        if not replace and (known := [entry for entry in entries if entry["of"] == of]):
            return list(known[0]["blocks_before"])
        others = [entry for entry in entries if entry["of"] != of]
        recorded = {"of": of, "blocks_before": [*cuts], "block_ms": [round(ms, 3) for ms in block_ms]}
        write_json(results / NAME, {"schema": SCHEMA, "cuts": [*others, recorded]})
        return [*cuts]


def cuts_of_run(requested: Half, resolved: Half) -> tuple[int, ...]:
    """Blocks before each cut that a finished run had, where the run chose them by itself; () where a number was
    requested, and for a strategy without stages."""
    chosen = resolved.get("cut", "")
    if type(requested.get("cut")) is int and requested["cut"] != 0:
        return ()
    if not re.fullmatch(r"[0-9]{1,3}(, [0-9]{1,3})*", str(chosen), re.ASCII):
        return ()
    cuts = [int(text) for text in str(chosen).split(", ")]
    return tuple(cuts) if _are_cuts(cuts) else ()


def _deciding(requested: Half) -> Half:
    return {name: requested[name] for name in DECIDING_FIELDS if name in requested}


def _read_entries(results: Path) -> list[dict[str, Any]]:
    """Each with `of` and `blocks_before`, which are checked. Raises UserError for a damaged file."""
    path = results / NAME
    try:
        found = json.loads(read_set_file(path, MAX_BYTES))
        entries = list(found["cuts"])
        sound = found["schema"] == SCHEMA and all(
            isinstance(entry["of"], dict) and _are_cuts(entry["blocks_before"]) for entry in entries
        )
    except (FileNotFoundError, NotADirectoryError):  # whether the set can be made is for others to say
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        sound, entries = False, []
    if not sound:
        raise UserError(
            f"{path} does not hold the cuts of this set's runs; remove it, and the next run measures its cut anew"
        )
    return entries


def _are_cuts(cuts: object) -> bool:
    """Whether these are numbers of blocks in rising order, as only a list of cuts is."""
    if not isinstance(cuts, list) or not cuts or not all(type(cut) is int for cut in cuts):
        return False
    return cuts == sorted(set(cuts)) and cuts[0] > 0 and cuts[-1] < MAX_BLOCKS
