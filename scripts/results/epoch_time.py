"""Seconds of an ImageNet-1k epoch with a group's settings: measured, or worked out from its throughput.

Measured where every ok run trained on a whole ImageNet from files; else 1,281,167 images over images/s. Needs no torch.
"""

import dataclasses

from benchmarks.common.config import IMAGENET_TRAIN_IMAGES
from scripts.results.frames import iterate_rows
from scripts.results.intervals import Estimate, Windows, strategy_throughput
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup


@dataclasses.dataclass(frozen=True)
class EpochTime:
    """Seconds of an epoch with their 95 % interval, None where one sample says nothing of the spread."""

    value: float
    low: float | None
    high: float | None
    measured: bool
    windows_of_runs: list[Windows]
    """What it is of: (images, seconds) of each run's epochs, or of its timed windows."""


def epoch_time(results: ResultSet, group: RunGroup) -> EpochTime:
    """The epoch of a group that has a throughput."""
    epochs = results.table("epochs")
    trained = epochs[(epochs.phase == "train") & epochs.seconds.gt(0)]
    passes = []
    for row in iterate_rows(group.ok_runs[["run_id", "global_batch", "loader"]]):
        whole = IMAGENET_TRAIN_IMAGES - (row.global_batch if row.global_batch > 0 else 0)
        mine = trained[(trained.run_id == row.run_id) & (trained.images >= whole)]
        if row.loader == "folder" and len(mine):
            passes.append(mine[["images", "seconds"]].to_numpy(float))
    if passes and len(passes) == len(group.ok_runs):
        return _epoch(strategy_throughput(passes), True, passes)
    return _epoch(group.timed_throughput, False, group.windows_of_runs)


def _epoch(rate: Estimate, measured: bool, windows_of_runs: list[Windows]) -> EpochTime:
    low, high = (IMAGENET_TRAIN_IMAGES / bound if bound else None for bound in (rate.high, rate.low))
    return EpochTime(IMAGENET_TRAIN_IMAGES / rate.value, low, high, measured, windows_of_runs)
