"""The model of this machine, from the step breakdown of a set's baseline and measured links. Needs no torch."""

import pandas

from benchmarks.common.system.errors import UserError
from scripts.sets.result_set import ResultSet
from scripts.sets.run_group import RunGroup
from scripts.sets.step_breakdown import mean_over_steps, step_parts
from scripts.strategies.strategy_list import BASELINE
from scripts.studies.allreduce.links import LinkFit
from scripts.studies.allreduce.uncertain_value import UncertainValue, approximate, exact
from scripts.studies.predict.machine_models import (
    CPU_CONTENTION,
    GB,
    NCCL_CONTENTION,
    DeviceStep,
    MachineModel,
    UncertainLink,
)
from scripts.studies.predict.timeline import Gradient

PHASES_MS = ["data_ms", "copy_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms"]
ASSUMED_GBIT = 10.0  # of a node's network


def this_machine(
    results: ResultSet,
    fits: dict[str, LinkFit],
    gradients: tuple[Gradient, ...],
    devices_per_node: int,
    slowdown: UncertainValue | None,
    between_gbit: float = 0.0,
) -> MachineModel:
    """This machine's model, from the step breakdown of a set's baseline and the fits of a links.csv.

    slowdown: of computing beside other ranks; None: not measured, and taken as 1. between_gbit: Gb/s of a node's
    network; 0: ASSUMED_GBIT.

    Raises UserError where the set has no step breakdown of its baseline, or the fits are of neither gloo nor NCCL.
    """
    path = next((name for name in ("nccl", "gloo") if name in fits), None)
    group = baseline_of(results)
    parts = _baseline_parts(results, group)
    if path is None:
        raise UserError(f"the links are of {', '.join(fits)}, but not of gloo or NCCL; run ./bench study allreduce")
    assert group is not None
    fit, half = fits[path], fits.get(f"{path}, bf16")
    on_cpu = path == "gloo"
    gbit = between_gbit or ASSUMED_GBIT
    device_bytes_per_s = gbit * GB / 8 / devices_per_node
    between_bytes_per_s = UncertainValue(
        0.88 * device_bytes_per_s, 0.72 * device_bytes_per_s, 0.96 * device_bytes_per_s
    )
    num_images = float(group.ok_runs.global_batch.iloc[0])
    return MachineModel(
        f"{group.ok_runs.device_name.iloc[0]}, {devices_per_node} devices a node ({path}), {gbit:g} Gb/s between nodes",
        devices_per_node,
        within=UncertainLink(fit.latency_s, fit.bytes_per_s),
        between=UncertainLink(approximate(30e-6, 0.5), between_bytes_per_s),
        contention=exact(CPU_CONTENTION) if on_cpu else NCCL_CONTENTION,
        slowdown=slowdown or exact(1.0),
        has_trees=not on_cpu,
        step=_measured_step(parts, num_images, gradients),
        sources=(
            f"one device: {len(parts)} accounted steps of {BASELINE} in {results.name}; links within a node: links.csv",
            f"between nodes: {gbit:g} Gb/s {'as given' if between_gbit else 'are assumed'}; that 72 to 96 % of it are "
            "usable, and 30 us, are assumed",
            "spread of devices: that of one device's steps",
            "while gloo sends, a CPU rank does not compute: found by ./bench study predict-check"
            if on_cpu
            else "the fraction of computing that NCCL's kernels take, 3 to 25 %, is assumed",
            f"beside other ranks computing takes {slowdown.value:.2f} times as long: ./bench study predict-check"
            if slowdown
            else "ranks are assumed not to slow each other's computing; ./bench study predict-check measures it",
        ),
        half_precision_bytes_per_s=half.bytes_per_s if half else None,
    )


def _baseline_parts(results: ResultSet, group: RunGroup | None) -> pandas.DataFrame:
    """The step breakdown of the baseline's runs, as step_parts. Raises UserError where there is none."""
    steps = results.table("steps")
    parts = step_parts(group, steps) if group is not None and len(steps) else pandas.DataFrame()
    if parts.empty:
        raise UserError(
            f"{results.path} has no breakdown of {BASELINE}'s steps (steps.csv), which a prediction starts from; "
            f"run: ./bench run {BASELINE} --results results/new -- --account-steps 8"
        )
    return parts


def _measured_step(parts: pandas.DataFrame, images: float, gradients: tuple[Gradient, ...]) -> DeviceStep:
    rest = parts.assign(rest_ms=parts.data_ms + parts.copy_ms + parts.other_ms)
    total_ms = parts[PHASES_MS].sum(axis=1)
    of_runs = total_ms.groupby(parts.run_id)
    spread_of_runs = of_runs.std(ddof=1) / of_runs.mean()
    return DeviceStep(
        images,
        forward_s=mean_s(parts, "forward_ms"),
        backward_s=mean_s(parts, "backward_ms"),
        other_s=mean_s(rest, "rest_ms"),
        fixed_s=mean_s(parts, "optimizer_ms"),
        spread=exact(float(spread_of_runs.mean()) if spread_of_runs.notna().any() else 0.0),
        gradients=gradients,
    )


def baseline_of(results: ResultSet) -> RunGroup | None:
    """The group of the baseline's runs that most strategies of a set are compared with; None without any."""
    labels = [*results.baseline_label_of.values()]
    return max(results.timed_groups_of(BASELINE), key=lambda group: labels.count(group.label), default=None)


def mean_s(parts: pandas.DataFrame, column: str) -> UncertainValue:
    """The mean of a phase in seconds. parts: as step_parts, in milliseconds. The interval is Student's, over steps or
    over runs (see step_breakdown.mean_over_steps)."""
    mean = mean_over_steps([values.to_numpy(float) for _, values in parts.groupby("run_id")[column]])
    assert mean is not None
    if mean.low is None or mean.high is None:
        return exact(mean.value / 1000)
    return UncertainValue(mean.value / 1000, max(mean.low, 0.0) / 1000, mean.high / 1000)
