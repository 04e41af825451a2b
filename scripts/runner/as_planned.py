"""Whether a run was the one that was asked for: what its ranks report beside what was planned and started."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Planned:
    """What the launcher started, and what the configuration asks of it."""

    ranks: int
    """Processes, on all nodes."""
    threads: int
    """Of each rank."""
    cores: int
    """That the launchers may use, on all nodes."""
    gpus: int
    """Of this machine; 0 on a CPU."""
    global_batch: int
    """0: batch_per_device says it."""
    batch_per_device: int
    windows: int
    """0: not known, since a resumed run has those that are left."""

    @classmethod
    def of_run(cls, requested: Mapping[str, Any], env: Mapping[str, str], num_ranks: int) -> "Planned":
        """requested: half of the run's settings. env: of its launcher, of whose NPROC ranks each node has as many.
        num_ranks: on all nodes."""
        per_node, threads, cores, gpus = (
            int(env.get(name) or 0) for name in ("NPROC", "THREADS_PER_RANK", "NUM_CORES", "NUM_GPUS")
        )
        cores = cores * num_ranks // max(1, per_node)
        windows = 0 if requested["resume"] else requested["windows"]
        return cls(num_ranks, threads, cores, gpus, requested["global_batch"], requested["batch_per_device"], windows)


@dataclasses.dataclass(frozen=True)
class Reported:
    """What the ranks found, all together (engine.report_ranks), and what the run did."""

    ranks: int
    devices: int
    """Distinct GPUs, or on CPUs ranks."""
    world_size: int
    """Devices that the ranks count."""
    device: str
    threads: int
    """Of the rank that has fewest."""
    cores: int
    """That any rank may use."""
    images_per_step: float
    """Of the last epoch, counted as they were trained on; 0 where no image was seen."""
    windows: int
    windows_that_fit: int


def differences(planned: Planned, reported: Reported) -> list[str]:
    """What differs, each in a few words; [] where the run was the one that was asked for."""
    found = []
    if reported.ranks != planned.ranks:
        found.append(f"{planned.ranks} ranks were started, and one is of a group of {reported.ranks}")
    if reported.devices != reported.world_size:
        found.append(f"{reported.world_size} devices were to train, and {reported.devices} did: ranks share a GPU")
    if planned.gpus and reported.device != "cuda":
        found.append(f"{planned.gpus} GPUs were planned, and it ran on a {reported.device.upper()}")
    if planned.threads and reported.threads != planned.threads:
        found.append(f"a rank has {reported.threads} threads, and {planned.threads} were planned (THREADS_PER_RANK)")
    cores = min(planned.cores, planned.ranks * planned.threads)
    if reported.cores < cores:
        found.append(
            f"the ranks may use {reported.cores} of {planned.cores} cores, and have {planned.ranks} x "
            f"{planned.threads} threads: something binds them to cores, such as taskset"
        )
    batch = planned.global_batch or planned.batch_per_device * reported.world_size
    if reported.images_per_step not in (0, batch):
        found.append(f"a step trained on {reported.images_per_step:g} images, and {batch} were asked for")
    windows = min(planned.windows, reported.windows_that_fit)
    if planned.windows and reported.windows != windows:
        found.append(f"{reported.windows} windows were timed, and {windows} were to be")
    return found


def why_invalid(
    requested: Mapping[str, Any], reported: Mapping[str, Any], env: Mapping[str, str], num_ranks: int
) -> str:
    """Why a run that ended well does not count; '' where it does. reported: of its summary. env, num_ranks: as
    of_run's."""
    if not reported:
        return ""
    found = differences(Planned.of_run(requested, env, num_ranks), Reported(**reported))
    return f"not the run that was asked for: {'; '.join(found)}" if found else ""
