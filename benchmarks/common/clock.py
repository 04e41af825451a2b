"""Seconds of timed windows, and loss and accuracy over images."""

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


class Clock:
    """A moment is a CUDA event, with several GPUs on a stream that waits for all of them; on a CPU, seconds."""

    def __init__(self, devices: Sequence[torch.device]):
        self.devices, self.device = devices, devices[0]
        several = self.device.type == "cuda" and len(devices) > 1
        self.stream = torch.cuda.Stream(self.device) if several else None
        self.running = False
        self.moments: list[Moment] = []

    def start(self) -> None:
        """Once the device has nothing left to do."""
        synchronize(self.device)
        self.running, self.moments = True, [self.now()]
        self.started_s = time.perf_counter()

    @property
    def num_steps(self) -> int:
        """In the open window."""
        return len(self.moments) - 1

    def tick(self) -> None:
        self.moments.append(self.now())

    def stop(self) -> tuple[float, list[float]]:
        """Seconds, and milliseconds of each step."""
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
    """Sums over images in float64, divided once. No `.item()` until `totals`."""

    def __init__(self, device: torch.device):
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, top-1, top-5, images

    def update(self, loss: torch.Tensor, output: torch.Tensor, target: torch.Tensor) -> None:
        """loss: mean of the batch; output: (N, classes); target: (N,)."""
        top = output.topk(min(5, output.shape[1]), dim=1).indices.eq(target[:, None])
        num_images = len(target)
        batch = torch.stack([loss.double() * num_images, top[:, 0].sum().double(), top.sum().double()])
        self.sums[:3] += batch
        self.sums[3] += num_images

    def totals(self, all_reduce: AllReduce) -> Totals | None:
        """None where no image was seen."""
        loss, top1, top5, images = all_reduce(self.sums.clone()).tolist()
        if not images:
            return None
        return Totals(loss / images, 100 * top1 / images, 100 * top5 / images, int(images))
