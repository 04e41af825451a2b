"""Chrome traces of profiled steps: one file a rank, for Perfetto and for Holistic Trace Analysis, which takes all files
of a folder for the ranks of one job, reads each one's rank in `distributedInfo`, and finds steps by their names."""

import json
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.common.errors import UserError
from benchmarks.common.rank import Rank

STEP_NAME = "ProfilerStep"
"""What torch.profiler calls a step, before # and its number."""


def trace_path(folder: Path, rank: int) -> Path:
    """TensorBoard's profiler plugin looks for this ending."""
    return folder / f"rank{rank}.pt.trace.json.gz"


def open_trace_folder(folder: Path) -> None:
    """Raises UserError where that fails, and where it has files that would be read as traces."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(path.name for path in folder.iterdir() if path.suffix in (".gz", ".json"))
    except OSError as error:
        raise UserError(f"--trace {folder}: {error.strerror}; choose another folder") from None
    if others:
        raise UserError(f"--trace {folder}: it has {others[0]} already; choose a new folder")


def name_rank(profile: torch.profiler.profile, rank: Rank) -> None:
    """Before it starts. With a process group torch.profiler does so."""
    if not dist.is_initialized():
        info = {"backend": rank.backend, "rank": rank.rank, "world_size": rank.world_size}
        profile.preset_metadata_json("distributedInfo", json.dumps(info))
