"""How batches come to a GPU: in which order its streams copy, wait and compute.

The GPU is not there (tests/fake_gpus.py): tensors have no data, streams note what is queued. The thread's work is done
where it is handed in, the earliest that the thread could do it.
"""

import contextlib
import functools
from concurrent.futures import Future

import pytest
import torch
from fake_gpus import see_gpus
from stand_ins import WithoutDriver

from benchmarks.common import loader
from benchmarks.common.config import Config
from benchmarks.common.loader import Batch, GlobalBatchSampler, Loader, prefetch_to_gpu

DEVICE, NUM_BATCHES = torch.device("cuda", 1), 4
COPY, NORMALISE = torch.ops.aten._to_copy.default, torch.ops.aten.addcmul.out


class StreamLog:
    """What is queued on a GPU's streams, in order: (what, stream, batch or event). Batch k has k + 1 images."""

    def __init__(self, patch):
        self.log: list[tuple] = []
        streams = self

        class Stream:
            def __init__(self, device, name="of copies"):
                assert device == DEVICE
                self.name = name

            def record_event(self):
                streams.log.append(("record", self.name, event := object()))
                return event

            def wait_event(self, event):
                streams.log.append(("wait", self.name, event))

        class AtOnce(contextlib.nullcontext):
            def __init__(self, threads, initializer, initargs):
                super().__init__(self)

            def submit(self, work):
                future = Future()
                future.set_result(work())
                result = future.result
                future.result = lambda: streams.log.append(("ask", "", None)) or result()
                return future

        @contextlib.contextmanager
        def on(stream):
            before, self.current = self.current, stream
            yield
            self.current = before

        self.current = Stream(DEVICE, "of steps")
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(loader, "loader_stream", functools.cache(loader.loader_stream.__wrapped__))
        patch.setattr(torch.cuda, "stream", on)
        patch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.note("keep", tensor, stream))
        patch.setattr(loader, "ThreadPoolExecutor", AtOnce)

    def note(self, what: str, tensor: torch.Tensor, stream=None) -> None:
        self.log.append((what, (stream or self.current).name, len(tensor) - 1))

    def place(self, *entry) -> int:
        """Where in the log this is, or the last of several."""
        return max(at for at, found in enumerate(self.log) if found == entry)


class Noting(WithoutDriver):
    """Notes copies to a GPU and the kernel that normalises."""

    def __init__(self, streams: StreamLog):
        super().__init__(allow_non_fake_inputs=True)
        self.streams = streams

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is COPY and torch.device(kwargs.get("device") or "cpu").type == "cuda" and args[0].dim() in (1, 4):
            self.streams.note("copy", args[0])
        if function is NORMALISE:
            self.streams.note("normalise", args[1])
        return super().__torch_dispatch__(function, types, args, kwargs)


def step_through(monkeypatch, prefetch: int) -> StreamLog:
    """What a loader's batches queue on a GPU's streams."""
    see_gpus(monkeypatch, 2)
    streams = StreamLog(monkeypatch)

    def on_host():
        for number in range(1, NUM_BATCHES + 1):
            images = torch.zeros(number, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
            yield Batch(images, torch.zeros(number, dtype=torch.int64))

    with Noting(streams):
        batches = Loader(None, GlobalBatchSampler(16, 4, NUM_BATCHES), Config(image_size=8), DEVICE, ["a class"])
        streams.log.clear()
        batches.host_batches = prefetch_to_gpu(on_host(), DEVICE, prefetch)
        for images, target in batches:
            streams.note("step", target)
            assert images.device == target.device == DEVICE and images.dtype == torch.float32
    return streams


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_batch_is_copied_beside_the_step_before(monkeypatch, prefetch):
    """Protects training from pixels that are not there yet, or not there any more, and a GPU from waiting for its
    bus."""
    streams = step_through(monkeypatch, prefetch)
    events = [event for what, _, event in streams.log if what == "record"]
    assert len(events) == NUM_BATCHES and [e for what, _, e in streams.log if what == "wait"] == events
    for number, event in enumerate(events):
        copied, normalised = streams.place("copy", "of copies", number), streams.place("normalise", "of steps", number)
        waited, kept = streams.place("wait", "of steps", event), streams.place("keep", "of steps", number)
        assert copied < streams.place("record", "of copies", event) < waited < normalised
        assert waited < kept < streams.place("step", "of steps", number)
        assert streams.log.count(("keep", "of steps", number)) == 2 == streams.log.count(("copy", "of copies", number))
        if number >= prefetch:
            assert copied < streams.place("step", "of steps", number - prefetch), "the copy starts too late"
        if number > prefetch:
            assert copied > streams.place("step", "of steps", number - prefetch - 1), "more memory than was asked for"
    assert ("copy", "of steps") not in {entry[:2] for entry in streams.log}


def test_without_prefetch_the_step_copies(monkeypatch):
    """Protects the baseline that prefetching is compared with."""
    streams = step_through(monkeypatch, 0)
    assert {stream for what, stream, _ in streams.log if what != "ask"} == {"of steps"}
    for number in range(1, NUM_BATCHES):
        assert streams.place("step", "of steps", number - 1) < streams.place("copy", "of steps", number)
