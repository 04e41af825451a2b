"""Where the time of a step goes: data, copy, forward, backward, exposed communication, optimizer, other.

    ARGS="--account-steps 10" launchers/ddp.sh        # rows of steps.csv that have data_ms

The steps that are taken apart come after the timed windows and the last evaluation, so that neither sees the
marks. Every mark books the time since the mark before it on a phase: the phases of a step leave no gap, and their
sum is the step's time, which is measured by itself. On a GPU marks are events in its queue: data_ms is then the
time that the device waited for data, not the time that the loader worked beside it.

- data: in Loader.fetch. copy: in Loader.to_device, with the conversion to float32.
- forward: from there to the start of the backward pass, with zeroed gradients, the wrapper's work and the loss.
- backward: from there to the optimizer's update, with the unscaling of gradients under AMP.
- optimizer: the update. other: the rest, such as the meters and the learning rate.
- exposed communication: how much longer forward and backward take with the exchange than without it, which each
  accounted step is followed by a twin to find out. It holds the wait for slower ranks. Single values can be below
  zero, where noise is larger than what they measure.
"""

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator

import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.clock import Clock
from benchmarks.common.config import Config
from benchmarks.common.data import Loader
from benchmarks.common.devices import Reduce, Worker, synchronize

PHASES = ("data", "copy", "forward", "backward", "optimizer", "other")
WithoutExchange = Callable[[], contextlib.AbstractContextManager]
"""A context for one step: what it does is the same, but no rank hears of the others."""
Marks = list[tuple[str, object]]
"""(phase that ends here, moment) in order; the first one's phase is empty."""


def take_apart(
    config: Config,
    worker: Worker,
    optimizer: torch.optim.Optimizer,
    train: Loader,
    advance: Callable[[Iterator, float], None],
    reduce: Reduce,
    without_exchange: WithoutExchange | None,
    num_devices: int,
) -> tuple[list[dict], dict]:
    """Take config.account_steps steps apart: (rows for steps.csv, columns for runs.csv).

    advance: takes one step on the next batch with a learning rate. Without `without_exchange`, exposed
    communication is 0 on one device, which has nobody to talk to, and unknown on several.
    """
    if num_devices == 1:
        without_exchange = None
    clock, batches = Clock(worker.device), _endless(train, config.epochs)
    marks: Marks = []
    steps, twins, comm = [], [], []
    buckets = _buckets(config, optimizer, worker.device)

    def take(context) -> Marks:
        reduce(torch.zeros(1, device=worker.device))  # ranks start together: a wait is this step's own
        marks.clear()
        with context:
            marks.append(("", clock.now()))
            advance(batches, 0.0)  # learning rate 0: the same work, and the ranks' weights stay together
            marks.append(("other", clock.now()))
        return marks.copy()

    with _marked(marks, clock.now, train, optimizer):
        take(contextlib.nullcontext())  # the loader starts, and allocators find their sizes again
        for _ in range(config.account_steps):
            steps.append(take(contextlib.nullcontext()))
            if without_exchange:
                twins.append(take(without_exchange()))
                comm.append(_reduce_alone(clock, buckets, reduce))
    synchronize(worker.device)
    taken, alone = [_phases_ms(clock, step) for step in steps], [_phases_ms(clock, twin) for twin in twins]
    if not without_exchange:
        rows = [_row(step, step, 0.0 if num_devices == 1 else None) for step in taken]
        return rows, _summary(rows, [])
    rows = [_row(step, twin, _compute_ms(step) - _compute_ms(twin)) for step, twin in zip(taken, alone, strict=True)]
    return rows, _summary(rows, [clock.between_ms(*pair) for pair in comm])


@contextlib.contextmanager
def no_exchange(model: DistributedDataParallel) -> Iterator[None]:
    """DDP's no_sync for one step, which leaves out the broadcast of buffers as well as the gradients.

    By itself no_sync leaves out the broadcast of the *next* forward pass (DDP._post_forward).
    """
    model.require_forward_param_sync = False
    with model.no_sync():
        yield
    model.require_forward_param_sync = True


@contextlib.contextmanager
def _marked(marks: Marks, now: Callable[[], object], train: Loader, optimizer: torch.optim.Optimizer):
    """Have the parts of a step leave marks, from outside, while the context lasts."""

    def mark(phase: str) -> None:
        marks.append((phase, now()))

    def around(owner, name: str, before: str, after: str) -> None:
        function = getattr(owner, name)

        def marking(*args, **kwargs):
            mark(before)
            result = function(*args, **kwargs)
            mark(after)
            return result

        setattr(owner, name, marking)
        undo.callback(setattr, owner, name, function)

    with contextlib.ExitStack() as undo:
        around(train, "fetch", "other", "data")
        around(train, "to_device", "other", "copy")
        around(torch.autograd, "backward", "forward", "backward")  # what Tensor.backward calls
        # Horovod waits for the exchange in step(), and calls the step of the optimizer that it wraps, whose hooks
        # these are too: the last mark before the update ends the wait.
        before = optimizer.register_step_pre_hook(lambda *_: mark("backward"))
        after = optimizer.register_step_post_hook(lambda *_: mark("optimizer"))
        undo.callback(before.remove)
        undo.callback(after.remove)
        yield


def _endless(train: Loader, first_epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for epoch in itertools.count(first_epoch):
        train.set_epoch(epoch)
        yield from train


def _buckets(config: Config, optimizer: torch.optim.Optimizer, device: torch.device) -> list[torch.Tensor]:
    """Zeros in place of all gradients, in buckets of up to config.bucket_cap_mb MiB, filled from the last layer."""
    cap_bytes, sizes = (config.bucket_cap_mb or 25) * 2**20, []
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in reversed(parameters):
        if not sizes or 4 * (sizes[-1] + parameter.numel()) > cap_bytes:
            sizes.append(0)
        sizes[-1] += parameter.numel()
    return [torch.zeros(size, device=device) for size in sizes]


def _reduce_alone(clock: Clock, buckets: list[torch.Tensor], reduce: Reduce) -> tuple:
    """The moments before and after an exchange of all buckets with no computation beside it."""
    reduce(torch.zeros(1, device=clock.device))
    before = clock.now()
    for bucket in buckets:
        reduce(bucket)
    return before, clock.now()


def _phases_ms(clock: Clock, marks: Marks) -> dict[str, float]:
    phases_ms = dict.fromkeys(PHASES, 0.0)
    for (_, before), (phase, after) in itertools.pairwise(marks):
        phases_ms[phase] += clock.between_ms(before, after)
    return phases_ms | {"step": clock.between_ms(marks[0][1], marks[-1][1])}


def _compute_ms(phases_ms: dict[str, float]) -> float:
    return phases_ms["forward"] + phases_ms["backward"]


def _row(step: dict[str, float], twin: dict[str, float], exposed_ms: float | None) -> dict:
    """A row of steps.csv: the step, but forward and backward as its twin without exchange takes them."""
    phases_ms = step | {"forward": twin["forward"], "backward": twin["backward"]}
    return {f"{phase}_ms": ms for phase, ms in phases_ms.items()} | {"exposed_comm_ms": exposed_ms}


def _summary(rows: list[dict], comm_ms: list[float]) -> dict:
    """Medians. Overlap: how much of the exchange the backward pass hid, in per cent of what it takes alone.

    0 also where it cost more than it takes alone: on a CPU it takes cores from the backward pass, and the wait for
    the slowest rank is in it.
    """
    if rows[0]["exposed_comm_ms"] is None:
        return {}
    exposed = statistics.median(row["exposed_comm_ms"] for row in rows)
    if not comm_ms:
        return {"exposed_comm_ms": exposed}
    alone = statistics.median(comm_ms)
    return {"exposed_comm_ms": exposed, "comm_ms": alone, "overlap_pct": 100 * min(1.0, max(0.0, 1 - exposed / alone))}
