"""The hardware of a set, and whether this machine matches it: a cluster's login node would fill a set from GPUs with
figures of its CPU."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.config.config import Config
from benchmarks.common.store.results import read_table
from benchmarks.common.system import machine
from benchmarks.common.system.host import host
from benchmarks.common.system.options_as_typed import option_as_typed

# Of a set that may come from somebody else, and could ask for thousands.
RANKS_PER_CORE = 8
WORKERS_PER_CORE = 64  # of all ranks together
LEAST_THREADS = 256  # of a rank: many machines have as many cores, and `single, all cores` a thread for each
CORES_OF_A_NODE = 64  # of nodes that the user names, and that cannot be asked


@dataclass(frozen=True)
class Hardware:
    """kind: cuda or cpu. name: as the vendor calls the device."""

    kind: str
    name: str

    def text(self) -> str:
        return f"{'a GPU' if self.kind == 'cuda' else 'the CPU'}, {self.name}"


def hardware_of_set(results: Path) -> set[Hardware]:
    """The devices of the set's ok runs."""
    runs = read_table(results, "runs")
    ok = runs[runs.status == "ok"]
    pairs = zip(ok.device, ok.device_name, strict=True)
    return {Hardware(str(kind), str(name)) for kind, name in pairs if kind and name and kind == kind and name == name}


def hardware_here() -> Hardware:
    """Imports torch. Raises UserError as usable_gpus does."""
    import torch

    from benchmarks.common.dist.devices import device_name
    from benchmarks.common.system.gpus import usable_gpus

    kind = "cuda" if usable_gpus() else "cpu"
    return Hardware(kind, device_name(torch.device(kind)))


def why_not_here(measured: set[Hardware], here: Hardware) -> str:
    """Why nothing may be measured into a set of this hardware; '' where it may."""
    names = {each.kind + " " + part for each in measured for part in each.name.split(" + ")}
    if not measured or {here.kind + " " + part for part in here.name.split(" + ")} & names:
        return ""
    where = " and ".join(sorted(each.text() for each in measured))
    return f"it was measured on {where}, and this is {here.text()}"


def why_not_its_images(folder: str, resolved: Mapping[str, Any]) -> str:
    """Why the settings of a run may not choose the folder of the images that are read now; '' where they may.

    A set may come from somebody else, and chooses no path outside of itself. So a folder is taken from runs of this
    machine only. The suite's own folder is the user's choice. folder: the setting `data`. resolved: the run's half.
    """
    if os.path.abspath(folder) == os.path.abspath(Config().data) or resolved.get("host") == host(os.environ):
        return ""
    return f"its runs are not of this machine, and name a folder of images; give {option_as_typed('DATA', '')} yourself"


def why_too_many(requested: Mapping[str, Any]) -> str:
    """Which number of a run's processes or threads is more than this machine starts for somebody else's set; '' where
    none is.

    A set from this machine stays far below: by default there is a rank for each GPU or two in all, 4 workers for each,
    and a thread for each core. Where the user names the nodes, their cores are not known. requested: safe numbers
    (scripts/proof/allowed_settings.py); a configuration alone counts as one rank. Raises UserError as num_gpus does.
    """
    elsewhere = any(os.environ.get(name) for name in ("TASKS_PER_NODE", "HOSTS"))
    num_cores = max(machine.num_cores(), CORES_OF_A_NODE) if elsewhere else machine.num_cores()
    ranks, workers = requested.get("ranks", 1) // requested.get("nodes", 1), as_number(requested.get("workers"))
    most_ranks = RANKS_PER_CORE * num_cores
    limits = [
        (ranks, "ranks", most_ranks if ranks <= most_ranks else max(most_ranks, machine.num_gpus())),
        (ranks * workers, "loader workers in all", WORKERS_PER_CORE * num_cores),
        (
            as_number(requested.get("threads_per_rank")),
            "threads a rank",
            max(LEAST_THREADS, RANKS_PER_CORE * num_cores),
        ),
    ]
    found = (
        f"it asks for {number} {what} on one machine, and with {num_cores} cores at most {most} are started"
        for number, what, most in limits
        if number > most
    )
    return next(found, "")


def as_number(value: object) -> int:
    """The value as a whole number; 0 for a word, such as auto, and for anything else."""
    try:
        return int(str(value))
    except ValueError:
        return 0
