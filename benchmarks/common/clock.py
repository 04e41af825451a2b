"""What is measured: the seconds of timed windows, and loss and accuracy over images."""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.common.rank import synchronize
from benchmarks.common.strategy import AllReduce


@dataclasses.dataclass(frozen=True)
class Window:
    """images: over all ranks. ended_at: on time.monotonic's clock."""

    images: int
    seconds: float
    ended_at: float


Moment = Any
"""A torch.cuda.Event on a GPU, else seconds of time.perf_counter."""


class Clock:
    """Times windows of steps on a rank's devices. A moment is a CUDA event on a GPU, so that no step waits for it. With
    several GPUs it is when all have done what they were given before, on a stream of the clock's own."""

    def __init__(self, devices: Sequence[torch.device]):
        self.devices, self.device = devices, devices[0]
        several = self.device.type == "cuda" and len(devices) > 1
        self.stream = torch.cuda.Stream(self.device) if several else None
        self.running = False
        self.moments: list[Moment] = []

    def start(self) -> None:
        """Open a window once the device has nothing left to do."""
        synchronize(self.device)
        self.running, self.moments = True, [self.now()]
        self.started_s = time.perf_counter()

    @property
    def num_steps(self) -> int:
        """Steps that have ended in the open window."""
        return len(self.moments) - 1

    def tick(self) -> int:
        """End of a step. Returns how many steps the window holds."""
        self.moments.append(self.now())
        return self.num_steps

    def stop(self) -> tuple[float, list[float]]:
        """Close the window: (seconds from start until the device is done, milliseconds of each step)."""
        synchronize(self.device)
        if self.device.type == "cuda":
            seconds = time.perf_counter() - self.started_s
        else:
            seconds = self.moments[-1] - self.moments[0]
        self.running = False
        return seconds, [self.between_ms(a, b) for a, b in itertools.pairwise(self.moments)]

    def now(self) -> Moment:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        if self.stream is None:
            event.record(torch.cuda.current_stream(self.device))
            return event
        for device in self.devices:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        event.record(self.stream)
        return event

    def between_ms(self, first: Moment, second: Moment) -> float:
        """On a GPU, once the device has reached both."""
        if self.device.type != "cuda":
            return 1000 * (second - first)
        return first.elapsed_time(second)


@dataclasses.dataclass(frozen=True)
class Totals:
    """loss: mean. acc1, acc5: per cent."""

    loss: float
    acc1: float
    acc5: float
    images: int


class Meter:
    """Exact averages over images: float64 sums over steps and ranks, divided once. No `.item()` until `totals`."""

    def __init__(self, device: torch.device):
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, top-1, top-5, images

    def update(self, loss: torch.Tensor, output: torch.Tensor, target: torch.Tensor) -> None:
        """loss: scalar mean over the batch; output: (N, classes) scores; target: (N,) class numbers."""
        top = output.topk(min(5, output.shape[1]), dim=1).indices.eq(target[:, None])
        num_images = len(target)
        batch = torch.stack([loss.double() * num_images, top[:, 0].sum().double(), top.sum().double()])
        self.sums[:3] += batch
        self.sums[3] += num_images

    def totals(self, all_reduce: AllReduce) -> Totals | None:
        """Over all ranks, on every rank; None where no image was seen."""
        loss, top1, top5, images = all_reduce(self.sums.clone()).tolist()
        if not images:
            return None
        return Totals(loss / images, 100 * top1 / images, 100 * top5 / images, int(images))
