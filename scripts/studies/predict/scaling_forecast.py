"""The scaling forecast: step, exposed communication, waits and efficiency of each strategy over the number of devices.

Weak scaling: each device keeps its images. Strong scaling: the images of one device are divided, at least one image per
device. Efficiency is the speed per device over that of one device by itself. Needs no torch.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import Link
from scripts.studies.allreduce.uncertain_value import summarize_draws
from scripts.studies.predict.machine_models import MachineModel
from scripts.studies.predict.step_model import (
    STEP_TIME_MODELS,
    Cluster,
    StepTimes,
    StrategyOptions,
    pipeline_shape,
)

DEVICE_COUNTS = tuple(2**power for power in range(1, 13))
EFFICIENT = 0.8  # efficiency above which a number of devices counts as usable
MAX_BUCKET_MIB = 2**20
LONG_PERIOD_STEPS = 8  # between two averages of local SGD, as a remedy
PIPELINE = "pipeline_parallel"
MODEL_ERROR = (
    "No bound here holds the model's own error: on GPUs and for many devices nobody measured it (predict/README.md has "
    "what was checked)."
)

Row = dict[str, Any]
"""A row of predict.csv."""


def scaling_forecast_rows(
    machine: MachineModel, options: StrategyOptions, device_counts: Sequence[int] = DEVICE_COUNTS
) -> list[Row]:
    """A row per strategy, mode and number of devices. `why_not` says why a combination is impossible."""
    step, cluster = machine.draw()
    rows = []
    for strategy in STEP_TIME_MODELS:
        for mode in ("weak", "strong"):
            for num_devices in device_counts:
                row = {"strategy": strategy, "mode": mode, "devices": num_devices}
                rows.append(row | _predict(strategy, mode, step, cluster, num_devices, options))
    return rows


def _predict(
    strategy: str, mode: str, step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions
) -> Row:
    """The columns of one combination that follow `devices`. step, cluster: of draws."""
    images = step.images if mode == "weak" else step.images / num_devices
    if images < 1:
        return {"images": images, "why_not": "fewer images than devices"}
    device_step = step.with_images(images)
    if strategy == PIPELINE:
        try:
            pipeline_shape(device_step, cluster, num_devices, options)
        except UserError as error:
            return {"images": images, "why_not": str(error)}
    step_seconds = STEP_TIME_MODELS[strategy]
    seconds = step_seconds(device_step, cluster, num_devices, options)
    without_waits_s = step_seconds(dataclasses.replace(device_step, spread_s=0.0), cluster, num_devices, options)
    ideal_s = step.seconds if mode == "weak" else step.seconds / num_devices
    draws = {"step_ms": 1000 * seconds, "efficiency": ideal_s / seconds, "waits_ms": 1000 * (seconds - without_waits_s)}
    if strategy != PIPELINE:  # whose bubbles and messages cannot be told apart
        draws["exposed_ms"] = 1000 * (without_waits_s - cluster.slowed(device_step, num_devices).seconds)
    row: Row = {"images": images, "why_not": ""}
    for name, of_name in draws.items():
        estimate = summarize_draws(of_name)
        row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return row


def max_efficient_devices(rows: Iterable[Row], strategy: str, column: str = "efficiency") -> int:
    """The largest number of devices up to which weak scaling is EFFICIENT; 1 where it is not on two devices."""
    most = 1
    for row in rows:
        if (row["strategy"], row["mode"]) == (strategy, "weak") and not row["why_not"]:
            if row[column] < EFFICIENT:
                return most
            most = row["devices"]
    return most


def remedies(machine: MachineModel, options: StrategyOptions, device_counts: Sequence[int]) -> list[tuple[str, int]]:
    """(a change, the number of devices up to which weak scaling is then EFFICIENT), the largest number first."""
    step, cluster = machine.draw()

    def most(strategy: str, step: StepTimes, cluster: Cluster, options: StrategyOptions) -> int:
        row = {"strategy": strategy, "mode": "weak"}
        rows = (row | {"devices": n} | _predict(strategy, "weak", step, cluster, n, options) for n in device_counts)
        return max_efficient_devices(rows, strategy)

    faster = dataclasses.replace(cluster, within=_twice(cluster.within), between=_twice(cluster.between))
    long_period = dataclasses.replace(options, local_period=LONG_PERIOD_STEPS)
    found = [
        ("ddp_compressed (two bytes a gradient)", most("ddp_compressed", step, cluster, options)),
        (f"local_sgd (an average every {LONG_PERIOD_STEPS} steps)", most("local_sgd", step, cluster, long_period)),
        ("twice the images a device", most("ddp", step.with_images(2 * step.images), cluster, options)),
        ("links twice as fast", most("ddp", step, faster, options)),
    ]
    return sorted(found, key=lambda remedy: -remedy[1])


def _twice(link: Link) -> Link:
    return Link(link.latency_s, 2 * link.bytes_per_s)


def summary_sentence(
    machine: MachineModel, rows: Sequence[Row], options: StrategyOptions, device_counts: Sequence[int] = DEVICE_COUNTS
) -> str:
    """Up to how many devices weak scaling of DDP is EFFICIENT by the model, why not further, and what would help."""
    columns = ("efficiency", "efficiency_low", "efficiency_high")
    most, low, high = (max_efficient_devices(rows, "ddp", column) for column in columns)
    threshold = f"{100 * EFFICIENT:.0f} % of one device's speed"
    subject = f"By the model of {machine.name}, ddp with {machine.step.images:g} images a device"
    if most >= max(device_counts):
        worst = "" if low == most else f" (at the lower end of 95 % of the draws, to {low:,})"
        until = f"up to {most:,} devices, the most that were computed{worst}"
        return f"{subject} stays above {threshold} {until}. {MODEL_ERROR}"
    of_ddp = [row for row in rows if (row["strategy"], row["mode"]) == ("ddp", "weak")]
    row = next(row for row in of_ddp if row["devices"] > most)
    until = f"up to {most:,} devices [{low:,}, {high:,}]" if most > 1 else f"on one device only [{low:,}, {high:,}]"
    beyond = f"on {row['devices']:,} it is {100 * row['efficiency']:.0f} %: of {row['step_ms']:.1f} ms, "
    beyond += f"{row['exposed_ms']:.1f} are exposed communication, and {row['waits_ms']:.1f} "
    beyond += "waiting for the slowest device"
    better = [f"{change}: {number:,}" for change, number in remedies(machine, options, device_counts) if number > most]
    help_ = (
        f"what would raise it in the model, and up to how many: {', '.join(better)}"
        if better
        else "no change tried raises it in the model"
    )
    return f"{subject} is above {threshold} {until}; {beyond}; {help_}. {MODEL_ERROR}"


def check_options(machine: MachineModel, options: StrategyOptions) -> None:
    """Raises UserError for an option that no run could have, such as more stages than the model has blocks."""
    num_blocks = len({gradient.block for gradient in machine.step.gradients})
    ranges: tuple[tuple[str, float, float, float, str], ...] = (
        ("--stages", options.num_stages, 0, num_blocks, f"0 (a node's devices) to {num_blocks}, the model's blocks"),
        ("--local-period", options.local_period, 1, math.inf, "1 or more steps"),
        ("--microbatches", options.microbatches, 0, math.inf, "0 (the least multiple of the stages from 4 on) or more"),
        ("--bucket-cap-mb", options.bucket_cap_mb, 0, MAX_BUCKET_MIB, f"0 (PyTorch's own) to {MAX_BUCKET_MIB:,} MiB"),
    )
    for flag, value, least, most, allowed in ranges:
        if not least <= value <= most:
            raise UserError(f"{flag} is {value}; give {allowed}")
