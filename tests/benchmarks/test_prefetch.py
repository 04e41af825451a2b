"""How batches come to a GPU: in which order its streams copy, wait and compute.

The CPU stands for the GPU, and the thread's work is done where it is handed in, the earliest that it could be.
"""

import contextlib
from concurrent.futures import Future

import pytest
import torch

from benchmarks.common import loader
from benchmarks.common.config import Config
from benchmarks.common.loader import Batch, GlobalBatchSampler, Loader, prefetch_to_gpu

DEVICE, NUM_BATCHES = torch.device("cpu"), 4


class AtOnce(contextlib.nullcontext):
    """In place of the pool of one thread."""

    def __init__(self, *_, **__):
        super().__init__(self)

    def submit(self, work):
        future = Future()
        future.set_result(work())
        return future


class Stream:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def record_event(self):
        self.log.append(("record", self.name, event := object()))
        return event

    def wait_event(self, event):
        self.log.append(("wait", self.name, event))


@pytest.fixture
def queued(monkeypatch):
    """queued(prefetch): what a loader's batches queue on streams, as (what, stream, batch or event). Batch k has k + 1
    images."""
    log: list[tuple] = []
    current, of_copies = [Stream("of steps", log)], Stream("of copies", log)

    @contextlib.contextmanager
    def on(stream):
        current.append(stream)
        yield
        current.pop()

    def note(what, tensor, stream=None):
        log.append((what, (stream or current[-1]).name, len(tensor) - 1))

    def noted(tensor, *arguments, to=torch.Tensor.to, **options):
        if "non_blocking" in options and tensor.dtype == torch.uint8:
            note("copy", tensor)
        return to(tensor, *arguments, **options)

    for name, value in {"stream": on, "current_stream": lambda device: current[-1]}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(loader, "loader_stream", lambda device: of_copies)
    monkeypatch.setattr(loader, "ThreadPoolExecutor", AtOnce)
    for name, method in {"to": noted, "pin_memory": lambda tensor: tensor}.items():
        monkeypatch.setattr(torch.Tensor, name, method)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: note("keep", tensor, stream))

    def batches():
        for number in range(1, NUM_BATCHES + 1):
            yield Batch(torch.zeros(number, 3, 8, 8, dtype=torch.uint8), torch.zeros(number, dtype=torch.int64))

    def step_through(prefetch: int) -> list[tuple]:
        made = Loader(None, GlobalBatchSampler(16, 4, NUM_BATCHES), Config(image_size=8), DEVICE, ["a class"])
        made.host_batches = prefetch_to_gpu(batches(), DEVICE, prefetch)
        for _, target in made:
            note("step", target)
        return log

    return step_through


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_batch_is_copied_beside_the_step_before(queued, prefetch):
    """Protects training from pixels that are not there yet, or not there any more, and a GPU from waiting for its
    bus."""
    log = queued(prefetch)
    copies = [entry for entry in log if entry[0] == "copy" and entry[1] == "of copies"]
    events = [event for what, _, event in log if what == "record"]
    assert len(copies) == len(events) == NUM_BATCHES
    for number, event in enumerate(events):
        copied, recorded = log.index(("copy", "of copies", number)), log.index(("record", "of copies", event))
        waited, kept = log.index(("wait", "of steps", event)), log.index(("keep", "of steps", number))
        assert copied < recorded < waited < kept < log.index(("step", "of steps", number))
        assert log.count(("keep", "of steps", number)) == 2  # images and targets
        if number >= prefetch:
            assert copied < log.index(("step", "of steps", number - prefetch)), "the copy starts too late"
        if number > prefetch:
            assert copied > log.index(("step", "of steps", number - prefetch - 1)), "more memory than was asked for"
