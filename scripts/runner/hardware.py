"""On which hardware a set was measured, and whether this is such a machine: what is measured later has to stay on it.

A cluster's login node would fill a set from GPUs with figures of its CPU.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.config.config import Config
from benchmarks.common.store.results import read_table
from benchmarks.common.system.host import host
from benchmarks.common.system.options_as_typed import option_as_typed


@dataclass(frozen=True)
class Hardware:
    """kind: cuda or cpu. name: as the vendor calls the device."""

    kind: str
    name: str

    def text(self) -> str:
        return f"{'a GPU' if self.kind == 'cuda' else 'the CPU'}, {self.name}"


def hardware_of_set(results: Path) -> set[Hardware]:
    """The devices of the set's ok runs; empty where the set does not say."""
    runs = read_table(results, "runs")
    ok = runs[runs.status == "ok"]
    pairs = zip(ok.device, ok.device_name, strict=True)
    return {Hardware(str(kind), str(name)) for kind, name in pairs if kind and name and kind == kind and name == name}


def hardware_here() -> Hardware:
    """The device on which a run would compute here. Imports torch. Raises UserError as usable_gpus does."""
    import torch

    from benchmarks.common.dist.devices import device_name
    from benchmarks.common.system.gpus import usable_gpus

    kind = "cuda" if usable_gpus() else "cpu"
    return Hardware(kind, device_name(torch.device(kind)))


def why_not_here(measured: set[Hardware], here: Hardware) -> str:
    """Why nothing may be measured into a set of this hardware; '' where it may. One GPU of several kinds is enough."""
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
