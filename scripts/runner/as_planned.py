"""Whether a run was the one that was asked for: what its ranks report beside what was planned and started."""

from collections.abc import Mapping
from typing import Any


def why_invalid(
    requested: Mapping[str, Any], reported: Mapping[str, Any], env: Mapping[str, str], num_ranks: int
) -> str:
    """Why a run that ended well does not count; '' where it does.

    requested: half of its settings. reported: engine.report_ranks and report; {} on a node without a result. env: of
    the launcher, of whose NPROC ranks each node has as many. num_ranks: on all nodes.
    """
    if not reported:
        return ""
    found = []
    per_node, threads, cores, gpus = (
        int(env.get(name) or 0) for name in ("NPROC", "THREADS_PER_RANK", "NUM_CORES", "NUM_GPUS")
    )
    cores = cores * num_ranks // max(1, per_node)
    if reported["ranks"] != num_ranks:
        found.append(f"{num_ranks} ranks were started, and one is of a group of {reported['ranks']}")
    if reported["devices"] != reported["world_size"]:
        found.append(
            f"{reported['world_size']} devices were to train, and {reported['devices']} did: ranks share a GPU"
        )
    if gpus and reported["device"] != "cuda":
        found.append(f"{gpus} GPUs were planned, and it ran on a {reported['device'].upper()}")
    if threads and reported["threads"] != threads:
        found.append(f"a rank has {reported['threads']} threads, and {threads} were planned (THREADS_PER_RANK)")
    if reported["cores"] < min(cores, num_ranks * threads):
        found.append(
            f"the ranks may use {reported['cores']} of {cores} cores, and have {num_ranks} x {threads} threads: "
            "something binds them to cores, such as taskset"
        )
    batch = requested["global_batch"] or requested["batch_per_device"] * reported["world_size"]
    if reported["images_per_step"] not in (0, batch):
        found.append(f"a step trained on {reported['images_per_step']:g} images, and {batch} were asked for")
    windows = min(requested["windows"], reported["windows_that_fit"])
    if reported["windows"] != windows and not requested["resume"]:  # a resumed run has those that were left
        found.append(f"{reported['windows']} windows were timed, and {windows} were to be")
    return f"not the run that was asked for: {'; '.join(found)}" if found else ""
