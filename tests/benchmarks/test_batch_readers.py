"""How batches come to a GPU: in which order its streams copy, wait and compute.

    .venv/bin/python -m pytest tests/benchmarks/test_batch_readers.py

The GPU is not there (tests/fake_gpus.py): tensors have no data, streams record what is queued. The thread's
work is done where it is handed in, as modes like that of tensors without data are a thread's own; that is the earliest
that the thread could do it.
"""

import contextlib
import dataclasses
import functools
from concurrent.futures import Future

import pytest
import torch
from fake_gpus import see_gpus
from stand_ins import WithoutDriver

from benchmarks.common import loader
from benchmarks.common.config import Config
from benchmarks.common.loader import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Batch,
    GlobalBatchSampler,
    HostLoader,
    Loader,
    open_datasets,
    prefetch_to_gpu,
)

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
                initializer(*initargs)

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


def step_through(monkeypatch, prefetch: int, memory_format: str = "contiguous"):
    """A loader's batches on a GPU: (what was queued on its streams, marks of the account as places in that)."""
    see_gpus(monkeypatch, 2)
    streams, marks = StreamLog(monkeypatch), []
    config = Config(image_size=8, global_batch=4, memory_format=memory_format)

    def on_host():
        for number in range(1, NUM_BATCHES + 1):
            images = torch.zeros(number, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
            yield Batch(images, torch.zeros(number, dtype=torch.int64))

    with Noting(streams):
        loader = Loader(None, GlobalBatchSampler(16, 4, NUM_BATCHES), config, DEVICE, ["a class"])
        streams.log.clear()
        loader.host_batches = prefetch_to_gpu(on_host(), DEVICE, prefetch)
        loaded = loader.with_marks(lambda phase: marks.append((phase, len(streams.log))))
        for number, (images, target) in enumerate(loaded):
            streams.note("step", target)
            assert images.device == target.device == DEVICE and images.shape == (number + 1, 3, 8, 8)
            assert images.dtype == torch.float32
            expected = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
            assert images.is_contiguous(memory_format=expected)
    assert number == NUM_BATCHES - 1
    return streams, marks


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_batch_is_copied_beside_the_step_before(monkeypatch, prefetch, memory_format):
    """Protects training from pixels that are not there yet, or not there any more, and a GPU from waiting for its bus.

    Batch k + 1 is under way before step k, on a stream of its own; the step's stream waits for that batch alone before
    it reads it; and its memory is kept until the step's stream has.
    """
    streams, _ = step_through(monkeypatch, prefetch, memory_format)
    events = [event for what, _, event in streams.log if what == "record"]
    assert len(events) == NUM_BATCHES and [e for what, _, e in streams.log if what == "wait"] == events
    for number, event in enumerate(events):
        copied, normalised = streams.place("copy", "of copies", number), streams.place("normalise", "of steps", number)
        waited, kept = streams.place("wait", "of steps", event), streams.place("keep", "of steps", number)
        assert copied < streams.place("record", "of copies", event) < waited < normalised
        assert waited < kept < streams.place("step", "of steps", number)
        assert streams.log.count(("keep", "of steps", number)) == 2 == streams.log.count(("copy", "of copies", number))
        if number >= prefetch:
            before = streams.place("step", "of steps", number - prefetch)
            assert copied < before, "the copy starts too late"
            if number > prefetch:
                assert copied > streams.place("step", "of steps", number - prefetch - 1), (
                    "more memory than was asked for"
                )
    assert ("copy", "of steps") not in {entry[:2] for entry in streams.log}


def test_without_prefetch_the_step_copies(monkeypatch):
    """Protects sweeps of --prefetch: nothing of the copy is hidden in the step before."""
    streams, _ = step_through(monkeypatch, 0)
    assert {entry[:2] for entry in streams.log if entry[0] != "ask"} == {
        ("copy", "of steps"),
        ("normalise", "of steps"),
        ("step", "of steps"),
    }
    for number in range(1, NUM_BATCHES):
        assert streams.place("step", "of steps", number - 1) < streams.place("copy", "of steps", number)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_the_account_books_waiting_where_it_is_waited_for(monkeypatch, prefetch):
    """Protects data_ms and copy_ms where the copy is a batch ahead: asking for a batch is data; waiting for its copy,
    copying and normalising are copy; and nothing of either is in the step."""
    streams, marks = step_through(monkeypatch, prefetch)
    phase_of = {"ask": "data", "normalise": "copy"}
    phase_of |= {"wait": "copy", "keep": "copy"} if prefetch else {"copy": "copy"}
    seen = set()
    for place, (what, *_) in enumerate(streams.log):
        if what in phase_of and place < streams.place("step", "of steps", NUM_BATCHES - 1):
            assert next(phase for phase, at in marks if at > place) == phase_of[what], streams.log[place]
            seen.add(what)
    assert seen == phase_of.keys()


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_one_kernel_normalises_as_two_do(memory_format):
    """Protects a GPU's pixels, on the CPU: (x / 255 - mean) / std for each of 256 values, within float32's rounding."""
    config = dataclasses.replace(Config(), memory_format=memory_format)
    loader = Loader(None, GlobalBatchSampler(1, 1, 1), config, torch.device("cpu"), ["a class"])
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(2, 1, 1, 3).permute(0, 3, 1, 2)
    by_two = loader.normalised(images)
    loader.device = DEVICE  # whose kernel runs on the CPU, too
    by_one = loader.normalised(images)
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    exact = (images.double() / 255 - mean) / std
    for found in (by_one, by_two):
        assert found.dtype == torch.float32 and found.stride() == by_two.stride()
        assert (found - exact).abs().max() < 1e-6


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("device", [torch.device("cpu"), DEVICE])
def test_in_bf16_images_are_bfloat16_as_autocast_would_round_them(memory_format, device):
    """Protects the proof, and bytes: a float32 batch was written, and read again for the first layer's cast."""
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(2, 1, 1, 3).permute(0, 3, 1, 2)
    found = {}
    for precision in ("fp32", "bf16"):
        config = Config(precision=precision, memory_format=memory_format)
        loader = Loader(None, GlobalBatchSampler(1, 1, 1), config, torch.device("cpu"), ["a class"])
        loader.device = device  # the GPU's kernel runs on the CPU, too
        found[precision] = loader.normalised(images)
    assert found["bf16"].dtype == torch.bfloat16 and torch.equal(found["bf16"], found["fp32"].bfloat16())
    assert found["bf16"].stride() == found["fp32"].stride()


def test_the_thread_that_pins_uses_one_core(monkeypatch):
    """Protects the loader's workers: with the setting of a new thread, pinning copied on all cores."""
    found = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: found.append(torch.get_num_threads()) or tensor)
    batch = Batch(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    torch.set_num_threads(2)
    try:
        assert len(list(prefetch_to_gpu(iter([batch]), DEVICE, 0))) == 1
        assert found == [1, 1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


class CountingSampler(GlobalBatchSampler):
    """Counts the batches that the loader has begun to read."""

    num_begun = 0

    def __iter__(self):
        for keys in super().__iter__():
            self.num_begun += 1
            yield keys


def read_all(images, workers: int, sampler: GlobalBatchSampler, num_devices: int = 1):
    """[(pixels, targets)] of a pass; pixels as they are when the next batch is there."""
    kept, before = [], None
    for batch in HostLoader(Config(workers=workers), torch.device("cpu"), images, sampler, num_devices):
        if before is not None:
            kept.append((before.images.clone(), before.target))
        before = batch
    return [*kept, (before.images.clone(), before.target)]


def test_a_process_that_loads_for_several_devices_is_no_more_batches_ahead(tiny_data):
    """Protects the windows of dataparallel and pipeline_parallel: on 8 GPUs their loader was 128 batches ahead, so that
    for the last 118 of 200 timed steps nothing was left to load, and images/s were too high where loading is the limit.

    Mutant: a worker reads whole batches, so that 8 of them are begun."""
    images = open_datasets(Config(data=str(tiny_data), image_size=32))[0]
    sampler = CountingSampler(40, 8, 30)
    batches = iter(HostLoader(Config(workers=2), torch.device("cpu"), images, sampler, num_devices=2))
    next(batches)
    assert sampler.num_begun == 1 + 4  # 2 for each of the 2 workers of a device
    batches.close()


@pytest.mark.parametrize(("global_batch", "num_devices"), [(8, 2), (7, 3), (2, 3)])
def test_parts_of_batches_are_put_together(tiny_data, global_batch, num_devices):
    """Protects the images of a strategy whose one process loads for several devices: the same pixels in the same
    places, also while the parts of the next batch are read. Mutants: one buffer fewer; parts in one place."""
    images = open_datasets(Config(data=str(tiny_data), image_size=32))[0]
    whole = read_all(images, 0, GlobalBatchSampler(40, global_batch, 12))
    in_parts = read_all(images, 2, GlobalBatchSampler(40, global_batch, 12), num_devices)
    assert len(whole) == len(in_parts) == 12
    for (pixels, target), (own_pixels, own_target) in zip(whole, in_parts, strict=True):
        assert torch.equal(pixels, own_pixels) and torch.equal(target, own_target)


def test_a_pass_after_one_with_a_smaller_last_batch_has_its_own_pixels(tiny_data):
    """Protects validation after each epoch: worker processes and buffers are the same in every pass."""
    _, images = open_datasets(Config(data=str(tiny_data), image_size=32))
    sampler = GlobalBatchSampler(len(images), 7, -(-len(images) // 7), shuffle=False)
    loader = HostLoader(Config(workers=2), torch.device("cpu"), images, sampler, num_devices=2)
    first, second = ([(batch.images.clone(), batch.target) for batch in loader] for _ in range(2))
    assert len(first) == len(second) and 0 < len(first[-1][1]) < 7
    for (pixels, target), (again, again_target) in zip(first, second, strict=True):
        assert torch.equal(pixels, again) and torch.equal(target, again_target)


def test_a_part_without_an_unreadable_image_is_put_together(tiny_data, monkeypatch):
    """Protects validation with --skip-bad-files: the images after one that cannot be read keep their targets."""
    _, images = open_datasets(Config(data=str(tiny_data), image_size=32))
    content = type(images.source).content

    def damaged(source, index):
        return b"no image" if index in (1, 6) else content(source, index)

    monkeypatch.setattr(type(images.source), "content", damaged)
    num_images = len(images)
    whole = read_all(images, 0, GlobalBatchSampler(num_images, 8, 1, shuffle=False))
    in_parts = read_all(images, 1, GlobalBatchSampler(num_images, 8, 1, shuffle=False), num_devices=2)
    for (pixels, target), (own_pixels, own_target) in zip(whole, in_parts, strict=True):
        assert torch.equal(pixels, own_pixels) and torch.equal(target, own_target)
    assert len(in_parts[0][1]) == min(8, num_images) - 2
