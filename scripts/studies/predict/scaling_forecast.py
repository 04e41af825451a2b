"""How far a strategy scales: step, exposed communication, waits, efficiency; where it ends, and what would help.

    from scripts.studies.predict.scaling_forecast import outlook_rows, sentence

Weak: each device keeps its images; strong: these are shared out, one image a device at least. Efficiency is speed a
device over that of one device by itself. Needs no torch.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import Link, estimate_of
from scripts.studies.predict.machine_models import Given
from scripts.studies.predict.step_model import (
    STRATEGIES,
    Choices,
    Machine,
    Step,
    Strategy,
    ddp,
    ddp_compressed,
    local_sgd,
    pipeline_parallel,
    pipeline_shape,
)

DEVICES = tuple(2**power for power in range(1, 13))
ENOUGH = 0.8
MOST_MIB = 2**20
LONGER = 8  # steps between two averages, as a cure


def outlook_rows(given: Given, choices: Choices, devices: Sequence[int] = DEVICES) -> list[dict]:
    """A row a strategy, mode and number of devices; why_not where it cannot be."""
    step, machine = given.drawn()
    rows = []
    for strategy in STRATEGIES:
        for mode in ("weak", "strong"):
            for number in devices:
                row = {"strategy": strategy.__name__, "mode": mode, "devices": number}
                rows.append(row | _point(strategy, mode, step, machine, number, choices))
    return rows


def _point(strategy: Strategy, mode: str, step: Step, machine: Machine, number: int, choices: Choices) -> dict:
    images = step.images if mode == "weak" else step.images / number
    if images < 1:
        return {"images": images, "why_not": "fewer images than devices"}
    share = step.on(images)
    if strategy is pipeline_parallel:
        try:
            pipeline_shape(share, machine, number, choices)
        except UserError as error:
            return {"images": images, "why_not": str(error)}
    seconds = strategy(share, machine, number, choices)
    alike_s = strategy(dataclasses.replace(share, spread=0.0), machine, number, choices)
    one_s = step.seconds if mode == "weak" else step.seconds / number
    found = {"step_ms": 1000 * seconds, "efficiency": one_s / seconds, "waits_ms": 1000 * (seconds - alike_s)}
    if strategy is not pipeline_parallel:  # there bubbles and messages are one
        found["exposed_ms"] = 1000 * (alike_s - machine.computing(share, number).seconds)
    row = {"images": images, "why_not": ""}
    for name, draws in found.items():
        known = estimate_of(draws)
        row |= {name: known.value, f"{name}_low": known.low, f"{name}_high": known.high}
    return row


def reaches(rows: Iterable[dict], strategy: Strategy, mode: str, column: str = "efficiency") -> int:
    """The most devices up to which a strategy is efficient enough; 1 where two are too many already."""
    most = 1
    for row in rows:
        if (row["strategy"], row["mode"]) == (strategy.__name__, mode) and not row["why_not"]:
            if row[column] < ENOUGH:
                return most
            most = row["devices"]
    return most


def cures(given: Given, choices: Choices, devices: Sequence[int]) -> list[tuple[str, int]]:
    """What one might change, and up to how many devices weak DDP is then efficient enough; the furthest first."""
    step, machine = given.drawn()

    def until(strategy: Strategy, step: Step, machine: Machine, choices: Choices) -> int:
        row = {"strategy": strategy.__name__, "mode": "weak"}
        points = (row | {"devices": n} | _point(strategy, "weak", step, machine, n, choices) for n in devices)
        return reaches(points, strategy, "weak")

    faster = dataclasses.replace(machine, within=_twice(machine.within), between=_twice(machine.between))
    rarely = dataclasses.replace(choices, local_period=LONGER)
    found = [
        (f"{ddp_compressed.__name__} (two bytes a gradient)", until(ddp_compressed, step, machine, choices)),
        (f"{local_sgd.__name__} (an average every {LONGER} steps)", until(local_sgd, step, machine, rarely)),
        ("twice the images a device", until(ddp, step.on(2 * step.images), machine, choices)),
        ("links twice as fast", until(ddp, step, faster, choices)),
    ]
    return sorted(found, key=lambda cure: -cure[1])


def _twice(link: Link) -> Link:
    return Link(link.latency_s, 2 * link.bytes_per_s)


def sentence(given: Given, rows: Sequence[dict], choices: Choices, devices: Sequence[int] = DEVICES) -> str:
    """How many devices until weak DDP is below ENOUGH, why, and what would cure it."""
    names = ("efficiency", "efficiency_low", "efficiency_high")
    most, low, high = (reaches(rows, ddp, "weak", name) for name in names)
    speed = f"{100 * ENOUGH:.0f} % of one device's speed"
    who = f"{given.name}: {ddp.__name__}, {given.images:g} images a device,"
    if most >= max(devices):
        worst = "" if low == most else f" (with the inputs at their worst, to {low:,})"
        return f"{who} stays above {speed} up to {most:,} devices, the most that were asked{worst}."
    mine = [row for row in rows if (row["strategy"], row["mode"]) == (ddp.__name__, "weak")]
    row = next(row for row in mine if row["devices"] > most)
    until = f"up to {most:,} devices [{low:,}, {high:,}]" if most > 1 else f"on one device only [{low:,}, {high:,}]"
    at = f"on {row['devices']:,} it is {100 * row['efficiency']:.0f} %"
    at += f": of {row['step_ms']:.1f} ms, {row['exposed_ms']:.1f} are exposed communication, and {row['waits_ms']:.1f} "
    at += "waiting for the slowest device"
    better = [f"{words}: {number:,}" for words, number in cures(given, choices, devices) if number > most]
    cure = f"what would cure it, and up to how many: {', '.join(better)}" if better else "no cure tried moves that"
    return f"{who} is above {speed} {until}; {at}; {cure}."


def check_choices(given: Given, choices: Choices) -> None:
    """Raises UserError for what no run could choose, such as more stages than the model has blocks."""
    num_blocks = len({gradient.block for gradient in given.gradients})
    ranges = (
        ("--stages", choices.num_stages, 0, num_blocks, f"0 (a node's devices) to {num_blocks}, the model's blocks"),
        ("--local-period", choices.local_period, 1, math.inf, "1 or more steps"),
        ("--microbatches", choices.microbatches, 0, math.inf, "0 (the least multiple of the stages from 4 on) or more"),
        ("--bucket-cap-mb", choices.bucket_cap_mb, 0, MOST_MIB, f"0 (PyTorch's own) to {MOST_MIB:,} MiB"),
    )
    for flag, value, least, most, allowed in ranges:
        if not least <= value <= most:
            raise UserError(f"{flag} is {value}; give {allowed}")
