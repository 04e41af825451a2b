"""The hardware of a set, and whether this machine matches it: a cluster's login node would fill a set from GPUs with
figures of its CPU."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.rows import read_table


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

    from benchmarks.common.machine import usable_gpus
    from benchmarks.common.rank import device_name

    kind = "cuda" if usable_gpus() else "cpu"
    return Hardware(kind, device_name(torch.device(kind)))


def why_not_here(measured: set[Hardware], here: Hardware) -> str:
    """Why nothing may be measured into a set of this hardware; '' where it may."""
    names = {each.kind + " " + part for each in measured for part in each.name.split(" + ")}
    if not measured or {here.kind + " " + part for part in here.name.split(" + ")} & names:
        return ""
    where = " and ".join(sorted(each.text() for each in measured))
    return f"it was measured on {where}, and this is {here.text()}"
