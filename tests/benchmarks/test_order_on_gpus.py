"""What waits for what on GPUs that are not there (tests/ordered_cuda.py): engine, prefetch, clock and breakdown.

    .venv/bin/python -m pytest tests/benchmarks/test_order_on_gpus.py

Strategies of one process. What this can and cannot see is said in tests/ordered_cuda.py. Mutants that were tried: in
batch_readers.wait_for_copy no wait_event, and no record_stream; in model_parallel.send_on_streams no wait_stream of
either side, and no record_stream; in devices.synchronize the first GPU alone; in Clock no wait for the second GPU; a
copy to the host in a step.
"""

import contextlib
import dataclasses
import functools
from concurrent.futures import Future

import fake_gpus
import pytest
import torch
from fake_gpus import STEPS, see_gpus, train_on_nothing
from ordered_cuda import Disordered, Order, Ordered, put_cuda

from benchmarks.common.config.config import Config
from benchmarks.common.data import batch_readers
from benchmarks.common.data.batch_readers import prefetch_to_gpu
from benchmarks.common.train import engine, phase_recorder
from benchmarks.common.train.clock import Clock

SMALL = Config(arch="resnet18", image_size=32, global_batch=8, loader="synthetic", **STEPS)
SMALL = dataclasses.replace(SMALL, steps=8, warmup_steps=2, windows=2, window_steps=2, account_steps=2)
CASES = {  # strategy, options, GPUs
    "single": ("single", {}, 1),
    "channels_last": ("single", {"memory_format": "channels_last"}, 1),
    "dataparallel": ("dataparallel", {}, 2),
    "model_parallel": ("model_parallel", {}, 2),
    "micro-batches": ("model_parallel", {"split_size": 4}, 2),
    "a stream for copies": ("model_parallel", {"split_size": 4, "copy_stream": True}, 2),
}
# The slow ones have fewer streams, or another layout.
LEVELS = {"a stream for copies": (), "single": pytest.mark.medium, "dataparallel": pytest.mark.medium}
CUDA_0, CUDA_1 = torch.device("cuda", 0), torch.device("cuda", 1)


class Prefetched:
    """A loader's batches on the host, on their way to the GPU as prefetch_to_gpu has them."""

    def __init__(self, on_host, device, num_batches: int):
        self.on_host, self.device, self.num_batches = on_host, device, num_batches

    def __iter__(self):
        return prefetch_to_gpu(iter(self.on_host), self.device, self.num_batches)


def executor(late: bool):
    """Stands for a pool of one thread: its work is done where it is handed in, or where its result is asked for."""

    class Executor(contextlib.nullcontext):
        def __init__(self, threads, initializer, initargs):
            super().__init__(self)
            initializer(*initargs)

        def submit(self, work):
            future = Future()
            if late:
                future.result = functools.cache(work)
            else:
                future.set_result(work())
            return future

    return Executor


def train_in_order(patch, what: str, prefetch: int = 1, late: bool = False) -> Order:
    """Trains a case of CASES to the end of engine.fit, on GPUs that are not there, whose order is checked."""
    name, options, num_gpus = CASES[what]
    order = Order()
    see_gpus(patch, num_gpus)
    put_cuda(patch, order, num_gpus)
    patch.setattr(batch_readers, "ThreadPoolExecutor", executor(late))
    patch.setattr(batch_readers, "loader_stream", functools.cache(batch_readers.loader_stream.__wrapped__))

    class Checked(Clock):
        def start(self) -> None:
            super().start()
            order.assert_idle()
            order.forbid_waits()

        def tick(self) -> int:
            number = super().tick()
            computing = {order.stream(device) for device in self.devices}
            known = self.moments[-1].clock
            assert all(known[stream] == order.clocks[stream][stream] for stream in computing), "a moment misses a GPU"
            return number

        def stop(self):
            order.allow_waits()
            found = super().stop()
            order.assert_idle()
            return found

    for module in (engine, phase_recorder):
        patch.setattr(module, "Clock", Checked)
    patch.setattr(fake_gpus, "WithoutDriver", lambda allow_non_fake_inputs: Ordered(order))

    def fit(strategy) -> None:
        train = strategy.loaders.train
        train.host_batches = Prefetched(train.host_batches, strategy.context.device, prefetch)
        fake_gpus.fit_on_nothing(strategy)

    train_on_nothing(patch, name, dataclasses.replace(SMALL, **options), drive=fit)
    assert not order.failures, order.failures[0]
    return order


@pytest.mark.parametrize(
    "late", [False, pytest.param(True, marks=pytest.mark.medium)], ids=["thread first", "thread last"]
)
@pytest.mark.parametrize("what", [pytest.param(what, marks=LEVELS.get(what, pytest.mark.slow)) for what in CASES])
def test_a_run_is_in_order(monkeypatch, what, late):
    """Protects training on GPUs: nothing is read before it is written, or written over or freed before it is read; no
    window has the host wait; it opens and closes with idle GPUs; each of its moments is of all the rank's GPUs."""
    order = train_in_order(monkeypatch, what, late=late)
    assert order.num_kernels > 1000 and order.num_waits > 0


@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.medium), 2])
@pytest.mark.medium
def test_prefetching_is_in_order(monkeypatch, prefetch):
    train_in_order(monkeypatch, "single", prefetch)


# --- what the stand-in finds --------------------------------------------------------------------------------------


@pytest.fixture
def order(monkeypatch) -> Order:
    found = Order()
    see_gpus(monkeypatch, 2)
    put_cuda(monkeypatch, found, 2)
    return found


def make(device=CUDA_0) -> torch.Tensor:
    return torch.ones(4, device=device)


def read_beside(waits: bool) -> None:
    side, tensor = torch.cuda.Stream(CUDA_0), make()
    if waits:
        side.wait_stream(torch.cuda.current_stream(CUDA_0))
    tensor.record_stream(side)
    with torch.cuda.stream(side):
        tensor + 1


def write_beside(waits: bool) -> None:
    side, tensor = torch.cuda.Stream(CUDA_0), make()
    side.wait_stream(torch.cuda.current_stream(CUDA_0))
    tensor.record_stream(side)
    with torch.cuda.stream(side):
        tensor + 1
    if waits:
        torch.cuda.current_stream(CUDA_0).wait_event(side.record_event())
    tensor.add_(1)


def free_beside(waits: bool) -> None:
    side, tensor = torch.cuda.Stream(CUDA_0), make()
    side.wait_stream(torch.cuda.current_stream(CUDA_0))
    with torch.cuda.stream(side):
        tensor + 1
    if waits:
        tensor.record_stream(side)
    del tensor
    make()


def read_across(waits: bool) -> None:
    side, tensor = torch.cuda.Stream(CUDA_1), make()
    with torch.cuda.stream(side):
        arrived = tensor.to(CUDA_1, non_blocking=True)
    if waits:
        torch.cuda.current_stream(CUDA_1).wait_stream(side)
    arrived.record_stream(torch.cuda.current_stream(CUDA_1))
    arrived + 1


def reuse_pinned(waits: bool) -> None:
    pinned = torch.ones(4).pin_memory()
    pinned.to(CUDA_0, non_blocking=True)
    if waits:
        torch.cuda.synchronize(0)
    pinned.add_(1)


def ask_time(waits: bool) -> None:
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    make()
    second.record()
    if waits:
        torch.cuda.synchronize(0)
    first.elapsed_time(second)


DISORDER = {
    "a read": (read_beside, "may not have written yet"),
    "a write": (write_beside, "may not have read yet"),
    "memory": (free_beside, "may still use it"),
    "a copy between GPUs": (read_across, "may not have written yet"),
    "page-locked memory": (reuse_pinned, "may not have read yet"),
    "a time": (ask_time, "may not have reached"),
}


@pytest.mark.parametrize("what", DISORDER)
def test_disorder_is_found_and_order_is_not_called_so(order, what):
    """Protects the tests above: what stands for CUDA must find a missing wait, and take a present one."""
    work, words = DISORDER[what]
    with Ordered(order):
        work(True)
    with pytest.raises(Disordered, match=words), Ordered(order):
        work(False)
        torch.ones(1)  # where what a finalizer found is raised


@pytest.mark.parametrize(
    "work",
    [lambda tensor: tensor.cpu(), lambda tensor: torch.cuda.synchronize(0), lambda tensor: make("cpu").to(CUDA_0)],
)
def test_a_wait_of_the_host_in_a_window_is_found(order, work):
    with Ordered(order):
        tensor = make()
        work(tensor)
        order.forbid_waits()
        with pytest.raises(Disordered, match="the host waits for stream"):
            work(tensor)


def test_an_event_that_nobody_recorded_is_found(order):
    with pytest.raises(Disordered, match="nobody has recorded"):
        torch.cuda.current_stream(CUDA_0).wait_event(torch.cuda.Event())
