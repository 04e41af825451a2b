"""Fewer images on each GPU than the default has, where the core strategies do not fit with them."""

import dataclasses
import os
import sys

from benchmarks.common.config import load_config
from benchmarks.common.rows import read_table
from scripts.memory import memory_check
from scripts.runner import plan
from scripts.runner.request import Request, default_config
from scripts.shared import gpus

NAMED_OPTIONS = ("--batch-per-device", "--global-batch", "--config")


def with_fitting_batch(request: Request) -> Request:
    """The request, with half the images on each GPU, a quarter, and so on, until every core strategy fits.

    A set goes on with its own number. What the user has named stays; with NNODES each node has a command of its own.
    """
    named = {word.split("=")[0].replace("_", "-") for word in request.flags[2:]} & {*NAMED_OPTIONS}
    if request.names_config or os.environ.get("NNODES") or named:
        return request
    own = load_config(request.flags).batch_per_device
    if not own:
        return request
    images = recorded_batch(request)
    if not images and gpus.gpu_memory_bytes(request.ranks_here) is not None:
        images = fitting_batch(request, own)
    if images in (0, own):
        return request
    flags = [*request.flags[:2], f"--batch-per-device={images}", *request.flags[2:]]
    return dataclasses.replace(request, flags=flags)


def recorded_batch(request: Request) -> int:
    """batch_per_device of the set's first row with the default configuration, whose batch nobody named; 0 without
    one."""
    if request.results is None or not request.has_rows:
        return 0
    runs = read_table(request.results, "runs")
    named = runs.options.str.contains("--batch[-_]per[-_]device")
    known = runs[(runs.config == default_config()) & (runs.batch_per_device > 0) & ~named]
    return 0 if known.empty else int(known.batch_per_device.iloc[0])


def fitting_batch(request: Request, own: int) -> int:
    """The largest of `own`, its half and so on with which all fit; `own` where even 1 does not."""
    core = dataclasses.replace(request, strategies="", with_aa=False)
    cases = plan.memory_cases(plan.plan_strategies(core))
    images, refused = memory_check.largest_fitting_batch(cases, request.ranks_here)
    if not refused or images == 1:
        return own
    case, why = next(iter(refused.items()))
    more = f", and {len(refused) - 1} more do not fit" if len(refused) > 1 else ""
    print(
        f"note: {images} images on each GPU instead of {own}: with {own}, {case.strategy} {why}{more}.\n"
        f"note: With --batch-per-device {own}, after --, what does not fit is skipped.",
        file=sys.stderr,
    )
    return images
