"""Fewer images on each GPU than the default has, where the core strategies do not fit with them."""

import dataclasses
import os
import sys

from benchmarks.common.config import load_config
from benchmarks.common.rows import read_table
from scripts.runner import run_plan
from scripts.runner.make_variables import MakeVariables, default_config
from scripts.shared import gpus
from scripts.shared.options_as_typed import option_as_typed
from scripts.strategies import memory_check

NAMED_OPTIONS = ("--batch-per-device", "--global-batch", "--config")


def with_fitting_batch(variables: MakeVariables) -> MakeVariables:
    """The variables, with half the images on each GPU, a quarter, and so on, until every core strategy fits.

    All strategies have the same number, so that they can be compared. A set goes on with its own. What the user has
    named stays, and with NNODES, too, where each node has a command of its own.
    """
    named = {word.split("=")[0].replace("_", "-") for word in variables.flags[2:]} & {*NAMED_OPTIONS}
    if os.environ.get("CONFIG") or os.environ.get("NNODES") or named:
        return variables
    own = load_config(variables.flags).batch_per_device
    if not own:
        return variables
    images = recorded_batch(variables)
    if not images and gpus.gpu_memory_bytes(variables.ranks_here) is not None:
        images = fitting_batch(variables, own)
    if images in (0, own):
        return variables
    flags = [*variables.flags[:2], f"--batch-per-device={images}", *variables.flags[2:]]
    return dataclasses.replace(variables, flags=flags)


def recorded_batch(variables: MakeVariables) -> int:
    """batch_per_device of the set's first row with the default configuration, whose batch nobody named; 0 without
    one."""
    if variables.results is None or not (variables.results / "runs.csv").exists():
        return 0
    runs = read_table(variables.results, "runs")
    named = runs.options.str.contains("--batch[-_]per[-_]device")
    known = runs[(runs.config == default_config()) & (runs.batch_per_device > 0) & ~named]
    return 0 if known.empty else int(known.batch_per_device.iloc[0])


def fitting_batch(variables: MakeVariables, own: int) -> int:
    """The largest of `own`, its half and so on with which all fit; `own` where even 1 does not."""
    core = dataclasses.replace(variables, strategies="", repeats=1, with_aa=False)
    cases = run_plan.memory_cases(run_plan.plan_strategies(core))
    images, refused = memory_check.largest_fitting_batch(cases, variables.ranks_here)
    if not refused or images == 1:
        return own
    case, why = next(iter(refused.items()))
    more = f", and {len(refused) - 1} more do not fit" if len(refused) > 1 else ""
    print(
        f"note: {images} images on each GPU instead of {own}: with {own}, {case.strategy} {why}{more}.\n"
        f"note: With --batch-per-device {own}, added to {option_as_typed('ARGS')}, what does not fit is skipped.",
        file=sys.stderr,
    )
    return images
