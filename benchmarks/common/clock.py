"""The clock of timed windows: one synchronise before, one after, and a mark at the end of each step between."""

import time

import torch

from benchmarks.common.devices import synchronize


class Clock:
    """Times windows of steps on one device. A mark is a CUDA event on a GPU, so that no step waits for it."""

    def __init__(self, device: torch.device):
        self.device = device
        self.running = False
        self.marks: list = []

    def start(self) -> None:
        """Open a window once the device has nothing left to do."""
        synchronize(self.device)
        self.running, self.marks = True, [self.mark()]
        self.started_s = time.perf_counter()

    def tick(self) -> int:
        """End of a step: mark it and return how many steps the window holds."""
        self.marks.append(self.mark())
        return len(self.marks) - 1

    def stop(self) -> tuple[float, list[float]]:
        """Close the window: (seconds from start until the device is done, milliseconds of each step)."""
        synchronize(self.device)
        seconds = time.perf_counter() - self.started_s
        self.running = False
        return seconds, [self.between_ms(a, b) for a, b in zip(self.marks, self.marks[1:], strict=False)]

    def mark(self):
        """A moment of the device: an event in its queue on a GPU, seconds on a CPU."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_ms(self, first, second) -> float:
        """Milliseconds between two marks; on a GPU, once the device has reached both."""
        if self.device.type != "cuda":
            return 1000 * (second - first)
        return first.elapsed_time(second)
