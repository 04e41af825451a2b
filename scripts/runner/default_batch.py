"""Fewer images on each GPU than the default has, where the core strategies do not fit with them."""

import dataclasses
import os
import sys

from benchmarks.common.config import load_config
from scripts.memory import memory_check
from scripts.runner import plan
from scripts.runner.request import Request
from scripts.shared import gpus

NAMED_OPTIONS = ("--batch-per-device", "--global-batch", "--config")


def with_fitting_batch(request: Request) -> Request:
    """The request, with half the images on each GPU, a quarter, and so on, until every core strategy fits.

    What the user has named stays; with NNODES each node has a command of its own.
    """
    named = {word.split("=")[0].replace("_", "-") for word in request.flags[2:]} & {*NAMED_OPTIONS}
    if request.names_config or os.environ.get("NNODES") or named:
        return request
    own = load_config(request.flags).batch_per_device
    if not own or gpus.gpu_memory_bytes(request.ranks_here) is None:
        return request
    images = fitting_batch(request, own)
    if images == own:
        return request
    flags = [*request.flags[:2], f"--batch-per-device={images}", *request.flags[2:]]
    return dataclasses.replace(request, flags=flags)


def fitting_batch(request: Request, own: int) -> int:
    """The largest of `own`, its half and so on with which all fit; `own` where even 1 does not."""
    core = dataclasses.replace(request, strategies="", with_aa=False)
    cases = plan.memory_cases(plan.plan_strategies(core))
    images, refused = memory_check.largest_fitting_batch(cases, request.ranks_here)
    if not refused or images == 1:
        return own
    case, why = next(iter(refused.items()))
    print(
        f"note: {images} images on each GPU instead of {own}: with {own}, {case.strategy} {why}.\n"
        f"note: With --batch-per-device {own}, after --, what does not fit is skipped.",
        file=sys.stderr,
    )
    return images
