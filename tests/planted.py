"""One rank of a strategy whose steps are taken apart again and again, each time with a delay planted elsewhere.

torchrun --nproc-per-node 2 tests/planted.py ddp '["", "loader"]' 60 --config ... --account-steps 3

The reporting rank prints a line of JSON: for each place of the delay (milliseconds; "" plants nothing) the rows of the
step breakdown, and for each such step the bytes that this rank sent and received over TCP. The clock is this process's
processor time plus the delays.
"""

import collections
import contextlib
import dataclasses
import importlib
import json
import os
import socket
import struct
import sys
import time

import torch
from torchvision.models import ResNet

from benchmarks.common import engine
from benchmarks.common import phases as phase_recorder
from benchmarks.common.clock import Clock, Meter
from benchmarks.common.config import load_config
from benchmarks.common.loader import GlobalBatchSampler, Loader

ROUNDS = 3  # of all places in turn, so that a drift of the machine meets all of them
BYTES_RECEIVED_AT, BYTES_SENT_AT = 128, 200  # in struct tcp_info of linux/tcp.h
planted, delay_s, delayed_s = "", 0.0, 0.0


class UndisturbedClock(Clock):
    def now(self) -> float:
        return time.process_time() + delayed_s


def delay_if(place: str) -> None:
    """Move the clock on, where the delay is planted there."""
    global delayed_s
    if planted == place:
        delayed_s += delay_s


def plant_before(owner, name: str, place: str) -> None:
    function = getattr(owner, name)

    def slow(*args, **kwargs):
        delay_if(place)
        return function(*args, **kwargs)

    setattr(owner, name, slow)


def slow_batches() -> None:
    deal = GlobalBatchSampler.__iter__

    def slow(self):
        for batch in deal(self):
            delay_if("loader")
            yield batch

    GlobalBatchSampler.__iter__ = slow


def slow_backward() -> None:
    """The gradient of the scores waits before it goes on to the last layer."""
    forward = ResNet.forward

    def with_hook(self, images):
        scores = forward(self, images)
        if scores.requires_grad:
            scores.register_hook(lambda gradient: delay_if("backward"))
        return scores

    ResNet.forward = with_hook


def slow_exchange(script) -> None:
    """Where nothing can hide it: before DDP sends its first bucket, and after Horovod's last gradient has arrived."""
    if script.__name__.endswith("horovod_ddp"):
        from horovod.torch.optimizer import _DistributedOptimizer

        wait = _DistributedOptimizer.synchronize

        def slow_wait(self):
            wait(self)
            delay_if("exchange")

        _DistributedOptimizer.synchronize = slow_wait
    elif hasattr(script, "DistributedDataParallel"):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def slow_hook(state, bucket):
            if bucket.index() == 0:
                delay_if("exchange")
            return allreduce_hook(state, bucket)

        wrap = script.DistributedDataParallel

        def slow_wrap(*args, **kwargs):
            model = wrap(*args, **kwargs)
            model.register_comm_hook(None, slow_hook)
            return model

        script.DistributedDataParallel = slow_wrap


def moved_bytes() -> int:
    """Sent and received so far over this process's open TCP connections."""
    total = 0
    for descriptor in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(descriptor).startswith("socket:"):
                continue
            connection = socket.socket(fileno=int(descriptor.name))
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += sum(struct.unpack_from("Q", info, at)[0] for at in (BYTES_RECEIVED_AT, BYTES_SENT_AT))
            connection.detach()  # somebody else's: not ours to close
    return total


def break_down_all(places: list[str], report: dict):
    """The engine's break_down_steps, once for each place and round."""
    real = phase_recorder.break_down_steps

    def breakdowns(strategy, advance):
        global planted
        alone = []  # true while a step runs without communication
        without = strategy.without_exchange

        @contextlib.contextmanager
        def watched():
            with without():
                alone.append(True)
                yield
                alone.clear()

        def counted(batches, lr):
            before = moved_bytes()
            advance(batches, lr)
            report["bytes without" if alone else "bytes with"].append(moved_bytes() - before)

        if without:
            strategy = dataclasses.replace(strategy, without_exchange=watched)
        summary = {}
        for _ in range(ROUNDS):
            for planted in places:
                rows, summary = real(strategy, counted)
                report[planted] += rows
        planted = ""
        if strategy.rank.reports:
            print("planted:", json.dumps(report), flush=True)
        return rows, summary

    return breakdowns


if __name__ == "__main__":
    name, places, milliseconds, *flags = sys.argv[1:]
    delay_s = float(milliseconds) / 1000
    script = importlib.import_module(f"benchmarks.{name}")
    slow_batches()
    slow_backward()
    slow_exchange(script)
    plant_before(Loader, "to_device", "copy")
    plant_before(torch.nn.CrossEntropyLoss, "forward", "forward")
    plant_before(sys.modules[torch.optim.SGD.__module__], "sgd", "optimizer")
    plant_before(Meter, "update", "other")
    phase_recorder.Clock = UndisturbedClock
    engine.break_down_steps = break_down_all(json.loads(places), collections.defaultdict(list))
    engine.fit(script.build(load_config(flags)))
