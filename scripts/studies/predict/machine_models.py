"""What a prediction starts from: one device's step and the links, of this machine or of one that is not at hand.

    from scripts.studies.predict.machine_models import Given, h100x8, here, read_gradients, v100x4

A preset's numbers are of data sheets, of published measurements, or assumed; each says which. Needs no torch.
"""

import csv
import dataclasses
import io
from pathlib import Path

import numpy

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_regular_file
from scripts.sets.result_set import BASELINE, Group, ResultSet
from scripts.sets.safe_names import LIMIT_BYTES
from scripts.sets.step_breakdown import mean_over_steps, step_parts
from scripts.studies.allreduce.links import Fit, Known, Link, about, exactly
from scripts.studies.predict.step_model import Machine, Step
from scripts.studies.predict.timeline import Gradient

GB = 1e9


@dataclasses.dataclass(frozen=True)
class Given:
    """A machine and one device's step on it, each number with its interval; `drawn` makes both of draws."""

    name: str
    devices_per_node: int
    latency_within_s: Known
    bytes_per_s_within: Known
    latency_between_s: Known
    bytes_per_s_between: Known
    busy: Known
    slowdown: Known
    trees: bool
    images: float
    forward_s: Known
    backward_s: Known
    other_s: Known
    fixed_s: Known
    spread: Known
    """Standard deviation of a step between devices, as a share of it."""
    gradients: tuple[Gradient, ...]
    sources: tuple[str, ...]
    """A sentence each."""
    bytes_per_s_halves: Known | None = None
    busy_halves: Known | None = None

    def drawn(self, seed: int = 0) -> tuple[Step, Machine]:
        """Arrays for numbers: the first entry is the number itself, the others are draws from all intervals."""
        rng = numpy.random.default_rng(seed)
        draws = {field.name: value.draws(rng) for field in dataclasses.fields(self)
                 if isinstance(value := getattr(self, field.name), Known)}  # fmt: skip
        seconds = sum(draws[f"{name}_s"] for name in ("forward", "backward", "other", "fixed"))
        parts = (draws[f"{name}_s"] for name in ("forward", "backward", "other", "fixed"))
        step = Step(self.images, *parts, self.gradients, draws["spread"] * seconds)
        halves = None
        if self.bytes_per_s_halves is not None:
            link = Link(draws["latency_within_s"], draws["bytes_per_s_halves"])
            halves = link, numpy.minimum(draws["busy_halves"], 1.0)
        machine = Machine(
            self.devices_per_node,
            Link(draws["latency_within_s"], draws["bytes_per_s_within"]),
            Link(draws["latency_between_s"], draws["bytes_per_s_between"]),
            numpy.minimum(draws["busy"], 1.0),
            draws["slowdown"],
            halves,
            self.trees,
        )
        return step, machine


# Latency of a message by NCCL's own tables, fastest to safest protocol (nccl/src/graph/tuning.cc, hwLat of a ring):
# NVLink 0.6 to 3.4 us, PCIe 1.0 to 5.7 us, network 2.7 to 14 us.
NVLINK, PCIE, NETWORK = Known(1.9e-6, 0.6e-6, 3.4e-6), Known(2.5e-6, 1.0e-6, 5.7e-6), Known(4e-6, 2.7e-6, 14e-6)
NCCL_LATENCY = "latency of a message: NCCL's tuning.cc, from its fastest to its safest protocol"
PCIE_BYTES = Known(10 * GB, 6 * GB, 12 * GB)  # PCIe 3.0 x16 has 15.75 GB/s each way; 38 to 76 % taken as usable
ETHERNET = Known(0.7 * GB, 0.6 * GB, 0.76 * GB)  # a quarter of 25 Gb/s: 0.78 GB/s; 77 to 97 % taken as usable
NCCL_BUSY = Known(0.1, 0.03, 0.25)
READINESS = "when gradients are ready: as in ResNet-50's backward pass on a CPU at batch 4 (gradients.csv)"
ASSUMED = "busy (what NCCL's kernels take of computing) and spread (of devices, 1 % of a step) are assumed"


def h100x8(gradients: tuple[Gradient, ...], images_per_s: Known, images: float) -> Given:
    return Given(
        "8 x H100 a node, NVLink, 400 Gb/s a GPU between nodes",
        8,
        NVLINK,
        Known(350 * GB, 300 * GB, 370 * GB),
        NETWORK,
        Known(46 * GB, 40 * GB, 49 * GB),
        NCCL_BUSY,
        exactly(1.0),
        True,
        images,
        **one_gpu(images, images_per_s, 25.6e6, 3350 * GB),
        gradients=gradients,
        sources=(
            "NVLink 4: 450 GB/s each way (NVIDIA, H100 data sheet, 2023); nccl-tests' busbw: 370 by a ring "
            "(NVIDIA/nccl-tests, issue 212), which is taken as the most, and 300 is assumed as the least; the 480 of "
            "NVLink SHARP need messages larger than 256 MB",
            "ConnectX-7, one a GPU: 50 GB/s (NVIDIA, DGX H100 data sheet, 2023), 80 to 98 % of it taken as usable",
            "images/s of one GPU: a forecast by its roof (make roof), until one is measured",
            NCCL_LATENCY,
            READINESS,
            ASSUMED,
        ),
    )


def v100x4(gradients: tuple[Gradient, ...], images_per_s: Known, images: float) -> Given:
    return Given(
        "4 x V100 PCIe a node, 25 Gb/s between nodes",
        4,
        PCIE,
        PCIE_BYTES,
        NETWORK,
        ETHERNET,
        Known(0.05, 0.02, 0.1),
        exactly(1.0),
        True,
        images,
        **one_gpu(images, images_per_s, 25.6e6, 900 * GB),
        gradients=gradients,
        sources=(
            "PCIe 3.0 x16: 15.75 GB/s each way by its specification; 6 to 12 GB/s taken as usable among 4 GPUs",
            "25 Gb/s of a node are 3.1 GB/s, a quarter of it a GPU; 77 to 97 % of it taken as usable",
            "images/s of one GPU: 1,200 with AMP (NVIDIA, DeepLearningExamples, SXM2), times 14 / 15.7 for PCIe",
            NCCL_LATENCY,
            READINESS,
            ASSUMED,
        ),
    )


def one_gpu(images: float, images_per_s: Known, num_parameters: float, bytes_per_s: float) -> dict[str, Known]:
    """A GPU's step from its images/s: a third forward, two thirds backward, as their FLOPs are; SGD reads weight,
    gradient and momentum and writes two of them, 4 bytes each."""
    ends = sorted(images / end for end in (images_per_s.low, images_per_s.high))
    fixed_s = 5 * 4 * num_parameters / bytes_per_s
    compute = Known(images / images_per_s.value - fixed_s, ends[0] - fixed_s, ends[1] - fixed_s)
    third, rest = (Known(*(part * value for value in dataclasses.astuple(compute))) for part in (1 / 3, 2 / 3))
    return {"forward_s": third, "backward_s": rest, "other_s": exactly(0.0), "fixed_s": exactly(fixed_s),
            "spread": Known(0.01, 0.003, 0.02)}  # fmt: skip


def here(
    results: ResultSet,
    fits: dict[str, Fit],
    gradients: tuple[Gradient, ...],
    devices: int,
    slowdown: Known | None,
    between_gbit: float = 0.0,
) -> Given:
    """This machine, by a set's accounted steps of its baseline and a links.csv.

    slowdown: of computing beside a neighbour; None: nobody has measured it, and there is none.
    between_gbit: Gb/s of a node like it to the others; 0: 10 are assumed.

    Raises UserError where the set has no accounted steps of its baseline, or the links none between ranks.
    """
    group, steps = baseline_of(results), results.table("steps")
    parts = step_parts(group, steps) if group and len(steps) else []
    if not len(parts):
        raise UserError(
            f"{results.path} has no steps of {BASELINE} taken apart (steps.csv), which a prediction starts from; "
            f'run: make bench-{BASELINE} ARGS="--account-steps 8" RESULTS=results/<new>'
        )
    path = next((name for name in ("nccl", "gloo") if name in fits), None)
    if path is None:
        raise UserError(f"the links are of {', '.join(fits)}, but not of gloo or NCCL; run make bench-allreduce")
    times = {name: known_mean(parts, f"{name}_ms") for name in ("forward", "backward", "optimizer")}
    others = known_mean(parts.assign(rest_ms=parts.data_ms + parts.copy_ms + parts.other_ms), "rest_ms")
    total_ms = parts[["data_ms", "copy_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms"]].sum(axis=1)
    within_runs = total_ms.groupby(parts.run_id).std(ddof=1) / total_ms.groupby(parts.run_id).mean()
    images = float(group.ok.global_batch.iloc[0])
    fit, halves = fits[path], fits.get(f"{path}, bf16")
    on_cpu = path == "gloo"  # a GPU's exchange was timed with the CPU waiting for it, which says nothing of the GPU
    gbit = between_gbit or 10.0
    of_a_device = gbit * GB / 8 / devices
    return Given(
        f"{group.ok.device_name.iloc[0]}, {devices} devices a node ({path}), {gbit:g} Gb/s between nodes",
        devices,
        fit.latency_s,
        fit.bytes_per_s,
        about(30e-6, 0.5),
        Known(0.88 * of_a_device, 0.72 * of_a_device, 0.96 * of_a_device),
        fit.busy if on_cpu else NCCL_BUSY,
        slowdown or exactly(1.0),
        not on_cpu,
        images,
        forward_s=times["forward"],
        backward_s=times["backward"],
        other_s=others,
        fixed_s=times["optimizer"],
        spread=exactly(float(within_runs.mean()) if within_runs.notna().any() else 0.0),
        gradients=gradients,
        sources=(
            f"one device: {len(parts)} accounted steps of {BASELINE} in {results.name}; links within a node: links.csv",
            f"between nodes: {gbit:g} Gb/s {'as given' if between_gbit else 'are assumed'}; that 72 to 96 % of it are "
            "usable, and 30 us, are assumed",
            "spread of devices: that of one device's steps",
            "busy (what an exchange takes of computing): links.csv"
            if on_cpu
            else "busy (what NCCL's kernels take of computing), 3 to 25 %, is assumed: links.csv has what it took of a "
            "CPU that waited",
            f"beside neighbours computing takes {slowdown.value:.2f} times as long: make predict-check"
            if slowdown
            else "neighbours are taken not to slow each other; make predict-check measures whether they do",
        ),
        bytes_per_s_halves=halves.bytes_per_s if halves else None,
        busy_halves=(halves.busy if on_cpu else NCCL_BUSY) if halves else None,
    )


def baseline_of(results: ResultSet) -> Group | None:
    """The baseline's runs that most strategies of a set are compared with; None without any."""
    labels = [*results.baselines.values()]
    return max(results.timed(BASELINE), key=lambda group: labels.count(group.label), default=None)


def known_mean(parts, column: str) -> Known:
    """The mean of a phase over accounted steps, in seconds; its interval is Student's, over steps or runs."""
    mean = mean_over_steps([values.to_numpy(float) for _, values in parts.groupby("run_id")[column]])
    if mean.low is None:
        return exactly(mean.value / 1000)
    return Known(mean.value / 1000, max(mean.low, 0.0) / 1000, mean.high / 1000)


def read_gradients(path: Path) -> tuple[Gradient, ...]:
    """The gradients of a gradients.csv. Raises UserError where it is missing, or no such file."""
    try:
        rows = [*csv.DictReader(io.StringIO(read_regular_file(path, LIMIT_BYTES).decode("utf-8"), newline=""))]
        kinds = {"name": str, "block": str, "num_bytes": int, "ready": float, "out_bytes": int}
        found = tuple(Gradient(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; python -m scripts.studies.predict.gradient_times makes it"
        ) from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(
            f"{path} holds no gradients ({error}); python -m scripts.studies.predict.gradient_times makes it"
        ) from None
    if not found:
        raise UserError(f"{path} holds no gradients; python -m scripts.studies.predict.gradient_times makes it")
    for each in found:
        if not (each.num_bytes > 0 and 0 <= each.ready <= 1 and each.out_bytes >= 0):
            raise UserError(f"{path}: {each.name} has num_bytes {each.num_bytes}, out_bytes {each.out_bytes} and ready "
                            f"{each.ready:g} (0 to 1: a share of the backward pass); "
                            "python -m scripts.studies.predict.gradient_times makes the file")  # fmt: skip
    if not max(each.ready for each in found):
        raise UserError(f"{path}: all gradients are ready at 0, before the backward pass; "
                        "python -m scripts.studies.predict.gradient_times makes the file")  # fmt: skip
    return found
