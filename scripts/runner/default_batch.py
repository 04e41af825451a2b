"""Fewer images on each GPU than the default configuration has, where the core strategies do not fit with them."""

import dataclasses
import os
import sys

from benchmarks.common.config.config import load_config
from benchmarks.common.system import machine
from benchmarks.common.system.options_as_typed import option_as_typed
from scripts.runner import run_plan
from scripts.runner.make_variables import MakeVariables
from scripts.strategies import memory_check

BATCH_OPTIONS = ("--batch-per-device", "--global-batch")


def with_fitting_batch(variables: MakeVariables) -> MakeVariables:
    """The variables, with half the images on each GPU, a quarter, and so on, until every core strategy fits by the
    memory forecast. A note says so.

    All strategies have the same number, also those that would fit with more, so that they can be compared; and so has a
    run of one strategy on the same GPUs. What the user has named stays: a configuration, or a batch.
    """
    if os.environ.get("CONFIG") or machine.gpu_memory_bytes(variables.ranks_here) is None:
        return variables
    own = load_config(variables.flags).batch_per_device
    if not own or {word.split("=")[0] for word in variables.flags[2:]} & {*BATCH_OPTIONS}:
        return variables
    core = dataclasses.replace(variables, strategies="", repeats=1, with_aa=False)
    cases = run_plan.memory_cases(run_plan.plan_strategies(core))
    images, refused = memory_check.largest_fitting_batch(cases, variables.ranks_here)
    if images == own:
        return variables
    names = ", ".join(sorted({case.strategy for case in refused}))
    print(
        f"note: {images} images on each GPU instead of {own}. With {own} these do not fit, by the memory forecast:\n"
        f"note: {names}\n"
        f"note: To train with {own} what fits, add --batch-per-device {own} to {option_as_typed('ARGS')}",
        file=sys.stderr,
    )
    flags = [*variables.flags[:2], f"--batch-per-device={images}", *variables.flags[2:]]
    return dataclasses.replace(variables, flags=flags)
