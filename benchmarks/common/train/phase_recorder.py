"""Where the time of a step goes: data, copy, forward, backward, exposed communication, optimizer, other.

    ARGS="--account-steps 10" launchers/ddp.sh        # rows of steps.csv that have data_ms

The steps that are taken apart come after the timed windows and the last evaluation, so that neither sees the
marks. Every mark books the time since the mark before it on a phase: the phases of a step leave no gap, and their
sum is the step's time, which is measured by itself. On a GPU marks are events in its queue: data_ms is then the
time that the device waited for data, not the time that the loader worked beside it.

- data: in Loader.fetch. copy: in Loader.to_device, with the conversion to float32. Of a copy that goes on beside the
  step before, that is what the device still has to wait for when this step starts.
- forward: from there to the start of the backward pass, with zeroed gradients, the wrapper's work and the loss.
- backward: from there to the optimizer's update, with the unscaling of gradients under AMP.
- optimizer: the update. other: the rest, such as the meters and the learning rate.
- exposed communication: how much longer forward and backward take with the exchange than without it, for which each
  accounted step has a twin that leaves it out. It holds the wait for slower ranks. Single values can be below zero,
  where noise is larger than what they measure. Step, twin and the exchange by itself come in all orders by turns.
- wait: where the exchange cannot be left out, as in a pipeline, the time of forward and backward in which no module
  of the model and no backward pass runs. There every rank's steps are told, for they differ.
"""

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config
from benchmarks.common.data.loaders import Loader
from benchmarks.common.dist.agreement import gather
from benchmarks.common.dist.devices import RankContext, Reduce, synchronize
from benchmarks.common.train.clock import Clock

PHASES = ("data", "copy", "forward", "backward", "wait", "optimizer", "other")
WithoutExchange = Callable[[], contextlib.AbstractContextManager]
"""A context for one step: what it does is the same, but no rank hears of the others."""
Exchange = Callable[[], None]
"""Sends what a step sends, the way the step does, with no computation beside it."""
Marks = list[tuple[str, object]]
"""(phase that ends here, moment) in order; the first one's phase is empty."""


def take_apart(
    config: Config,
    context: RankContext,
    optimizer: torch.optim.Optimizer,
    train: Loader,
    advance: Callable[[Iterator, float], None],
    reduce: Reduce,
    without_exchange: WithoutExchange | None,
    num_devices: int,
    exchange: Exchange | None = None,
) -> tuple[list[dict], dict]:
    """Take config.account_steps steps apart: (rows for steps.csv, columns for runs.csv).

    advance: takes one step on the next batch with a learning rate. Without `without_exchange`, exposed
    communication is 0 on one device, which has nobody to talk to, and unknown on several. Without `exchange`, what one
    takes by itself is unknown.
    """
    told_apart = without_exchange is not None and num_devices > 1
    waits = not told_apart and context.world_size > 1
    clock, batches = Clock(context.device), _endless(train, config.epochs)
    marks: Marks = []

    def together(work: Callable[[], None]) -> Marks:
        reduce(torch.zeros(1, device=context.device))  # ranks start together: a wait is this step's own
        marks.clear()
        marks.append(("", clock.now()))
        work()
        marks.append(("other", clock.now()))
        return marks.copy()

    def step() -> None:
        advance(batches, 0.0)  # learning rate 0: the same work, and the ranks' weights stay together

    def twin() -> None:
        with without_exchange():
            step()

    works = {"step": step} | ({"twin": twin} if told_apart else {})
    works |= {"exchange": exchange} if num_devices > 1 and exchange else {}
    orders = itertools.cycle(itertools.permutations(works))  # so that no work is always after the same one
    taken: dict[str, list[Marks]] = {name: [] for name in works}
    with _marked(marks, clock.now, train, optimizer, waits):
        for work in works.values():
            together(work)  # the loader starts, and allocators find their sizes again
        for order in itertools.islice(orders, config.account_steps):
            for name in order:
                taken[name].append(together(works[name]))
    synchronize(context.device)
    phases = {name: [_phases_ms(clock, one) for one in many] for name, many in taken.items()}
    alone = [one["step"] for one in phases.get("exchange", [])]
    if waits:
        return _of_all_ranks(phases["step"], context, reduce), {"comm_ms": statistics.fmean(alone)} if alone else {}
    if not told_apart:
        summary = {"exposed_comm_ms": 0.0} if num_devices == 1 else {}
        return [_row(one, one, summary.get("exposed_comm_ms")) for one in phases["step"]], summary
    pairs = zip(phases["step"], phases["twin"], strict=True)
    rows = [_row(one, other, _compute_ms(one) - _compute_ms(other)) for one, other in pairs]
    return rows, _summary(rows, alone)


@contextlib.contextmanager
def no_exchange(model: DistributedDataParallel) -> Iterator[None]:
    """DDP's no_sync for one step, which leaves out the broadcast of buffers as well as the gradients.

    By itself no_sync leaves out the broadcast of the *next* forward pass (DDP._post_forward).
    """
    model.require_forward_param_sync = False
    with model.no_sync():
        yield
    model.require_forward_param_sync = True


class _Gradients(torch.autograd.Function):
    """A loss whose backward pass has zeros at hand as every gradient."""

    @staticmethod
    def forward(ctx, zeros: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.zeros = zeros
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return None, *ctx.zeros


def exchange_of(model: DistributedDataParallel) -> Exchange:
    """DDP's own exchange: its buckets, in its order and by its hooks, and its broadcast of buffers, around a module
    that computes nothing."""
    parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
    zeros: list[torch.Tensor] = []

    class Nothing(torch.nn.Module):
        def __init__(self, whole: torch.nn.Module):
            super().__init__()
            self.whole = whole  # DDP looks for the buffers that it sends before every step

        def forward(self, _):
            return _Gradients.apply(zeros, *parameters)

    def exchange() -> None:
        if not zeros:  # not before the account: the run's peak memory would have a copy of the weights more
            zeros.extend(map(torch.zeros_like, parameters))
        whole, model.module = model.module, Nothing(model.module)
        try:
            model(parameters[0]).backward()
        finally:
            model.module = whole
        for parameter in parameters:
            parameter.grad = None  # as optimizer.zero_grad() leaves them

    return exchange


@contextlib.contextmanager
def _marked(marks: Marks, now: Callable[[], object], train: Loader, optimizer: torch.optim.Optimizer, waits: bool):
    """Have the parts of a step leave marks, from outside, while the context lasts.

    waits: what is in no outermost module and no backward pass is booked on `wait`.
    """
    depth = [0]

    def enter(*_) -> None:
        depth[0] += 1
        if depth[0] == 1:
            mark("wait")

    def leave(*_) -> None:
        depth[0] -= 1
        if depth[0] == 0:
            mark("forward")

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
        around(torch.autograd, "backward", "wait" if waits else "forward", "backward")  # what Tensor.backward calls
        # Horovod waits for the exchange in step(), and calls the step of the optimizer that it wraps, whose hooks
        # these are too: the last mark before the update ends the wait.
        before = optimizer.register_step_pre_hook(lambda *_: mark("wait" if waits else "backward"))
        after = optimizer.register_step_post_hook(lambda *_: mark("optimizer"))
        hooks = [before, after]
        if waits:
            hooks += [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        for hook in hooks:
            undo.callback(hook.remove)
        yield


def _endless(train: Loader, first_epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for epoch in itertools.count(first_epoch):
        train.set_epoch(epoch)
        yield from train


def _of_all_ranks(steps: list[dict[str, float]], context: RankContext, reduce: Reduce) -> list[dict]:
    """Rows for steps.csv of every rank's steps, rank by rank."""
    names = list(steps[0])
    table = gather([step[name] for step in steps for name in names], context, reduce)
    rows = []
    for rank, of_rank in enumerate(table.reshape(context.world_size, len(steps), len(names)).tolist()):
        taken = [dict(zip(names, values, strict=True)) for values in of_rank]
        rows += [_row(step, step, None) | {"rank": rank, "number": number} for number, step in enumerate(taken)]
    return rows


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
    """Means. Overlap: how much of the exchange the backward pass hid, in per cent of what it takes alone.

    0 also where it cost more than it takes alone: on a CPU it takes cores from the backward pass, and the wait for
    the slowest rank is in it.
    """
    exposed = statistics.fmean(row["exposed_comm_ms"] for row in rows)
    if not comm_ms:
        return {"exposed_comm_ms": exposed}
    alone = statistics.fmean(comm_ms)
    return {"exposed_comm_ms": exposed, "comm_ms": alone, "overlap_pct": 100 * min(1.0, max(0.0, 1 - exposed / alone))}
