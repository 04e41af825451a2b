"""Whether a run was the one that was asked for: what its ranks report beside what was planned and started."""

from collections.abc import Mapping
from typing import Any


def why_invalid(reported: Mapping[str, Any], env: Mapping[str, str], num_ranks: int) -> str:
    """Why a run that ended well does not count; '' where it does.

    reported: engine.report_ranks; {} on a node without a result. env: of the launcher. num_ranks: on all nodes.
    """
    if not reported:
        return ""
    found = []
    threads, gpus = (int(env.get(name) or 0) for name in ("THREADS_PER_RANK", "NUM_GPUS"))
    if reported["ranks"] != num_ranks:
        alone, met = "each trains by itself: --nproc 1", f"one is of a group of {reported['ranks']}"
        found.append(f"{num_ranks} ranks were started, and {alone if reported['ranks'] == 1 else met}")
    if reported["devices"] != reported["world_size"]:
        found.append(
            f"{reported['world_size']} devices were to train, and {reported['devices']} did: ranks share a GPU"
        )
    if gpus and reported["device"] != "cuda":
        found.append(f"{gpus} GPUs were planned, and it ran on a {reported['device'].upper()}")
    if threads and reported["threads"] != threads:
        found.append(f"a rank has {reported['threads']} threads, and {threads} were planned (THREADS_PER_RANK)")
    return f"not the run that was asked for: {'; '.join(found)}" if found else ""
