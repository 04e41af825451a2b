"""Where the time of a step goes, of steps after the last evaluation (--account-steps).

Every mark books the time since the mark before it on a phase, so that phases leave no gap. On a GPU, marks are events.

- data: in Loader.fetch. copy: in Loader.to_device.
- forward: to the start of the backward pass. backward: to the optimizer's update.
- exposed communication: how much longer forward and backward take than in a twin without communication, with the wait
  for slower ranks.
- wait: where communication cannot be left out, as in a pipeline: when neither a module nor a backward pass runs. FSDP
  and local SGD wait within other phases.
"""

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from benchmarks.common.clock import Clock, Moment
from benchmarks.common.loader import Loader, Mark
from benchmarks.common.rank import Rank, synchronize
from benchmarks.common.strategy import AllReduce, Strategy

MARKED_PHASES = ("data", "copy", "forward", "backward", "wait", "optimizer", "other")
WHOLE = "step"
Marks = list[tuple[str, Moment]]
"""(phase that ends here, moment); the first one's phase is empty."""
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
Advance = Callable[[Batches, float], None]
"""Takes a step on the next batch, with a learning rate."""


class PhaseRecorder:
    def __init__(self, clock: Clock):
        self.clock = clock
        self.marks: Marks = []

    def mark(self, phase: str) -> None:
        self.marks.append((phase, self.clock.now()))

    def record(self, work: Callable[[], None]) -> Marks:
        self.marks = [("", self.clock.now())]
        work()
        self.mark("other")
        return self.marks


def break_down_steps(strategy: Strategy, advance: Advance) -> tuple[list[dict], dict]:
    """Rows for steps.csv, and columns for runs.csv. Exposed communication is 0 on one device, and unknown where it
    cannot be left out."""
    config, rank = strategy.config, strategy.rank
    num_devices = rank.world_size * len(rank.devices)
    without = strategy.without_exchange if num_devices > 1 else None
    exchange_stays = without is None and rank.world_size > 1
    waits = exchange_stays and not strategy.waits_within_phases
    clock = Clock(rank.devices)
    recorder = PhaseRecorder(clock)
    batches = _endless(strategy.train, config.epochs, recorder.mark)

    def recorded(work: Callable[[], None]) -> Marks:
        strategy.all_reduce(torch.zeros(1, device=rank.device))  # ranks start together: a wait is this step's
        return recorder.record(work)

    def step() -> None:
        advance(batches, 0.0)  # the same work, and the ranks' weights stay together

    works: dict[str, Callable[[], None]] = {"step": step}
    if without is not None:
        works["twin"] = _within(without, step)
    with _hooks(recorder.mark, strategy, waits):
        marks_of = _interleave(works, config.account_steps, recorded)
    synchronize(rank.device)
    phases = {name: [_phases_ms(clock, marks) for marks in of_work] for name, of_work in marks_of.items()}
    if without is not None:
        pairs = zip(phases["step"], phases["twin"], strict=True)
        rows = [_row(each, twin, _compute_ms(each) - _compute_ms(twin)) for each, twin in pairs]
        return rows, {"exposed_comm_ms": statistics.fmean(row["exposed_comm_ms"] for row in rows)}
    if waits:
        return _of_all_ranks(phases["step"], rank, strategy.all_reduce), {}
    exposed_ms = 0.0 if num_devices == 1 else None
    rows = [_row(each, each, exposed_ms) for each in phases["step"]]
    if exchange_stays:
        rows = [row | {"wait_ms": None} for row in rows]  # unknown
    return rows, {"exposed_comm_ms": exposed_ms}


def _interleave(
    works: Mapping[str, Callable[[], None]], num_times: int, recorded: Callable[[Callable[[], None]], Marks]
) -> dict[str, list[Marks]]:
    """num_times in alternating orders, after one time that does not count."""
    for work in works.values():
        recorded(work)
    marks_of: dict[str, list[Marks]] = {name: [] for name in works}
    for order in itertools.islice(itertools.cycle(itertools.permutations(works)), num_times):
        for name in order:
            marks_of[name].append(recorded(works[name]))
    return marks_of


def _within(
    context: Callable[[], contextlib.AbstractContextManager[None]], work: Callable[[], None]
) -> Callable[[], None]:
    def within() -> None:
        with context():
            work()

    return within


class _BackwardHooks:
    """Marks where a backward pass starts, and, where `waits`, its end."""

    def __init__(self, mark: Mark, waits: bool):
        self.mark, self.waits = mark, waits
        self.running = False

    def watch(self, output: object) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(self._start)

    def _start(self, _gradient: torch.Tensor) -> None:
        if self.running:  # the pass has come from the loss to the model's output
            return
        self.mark("wait" if self.waits else "forward")
        if self.waits:
            self.running = True
            Variable._execution_engine.queue_callback(self._after_wrappers)

    def _after_wrappers(self) -> None:
        """Their own callbacks, queued meanwhile, come before the end."""
        Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.running = False
        self.mark("backward")


@contextlib.contextmanager
def _hooks(mark: Mark, strategy: Strategy, waits: bool) -> Iterator[None]:
    optimizer, criterion = strategy.optimizer, strategy.criterion
    backward = _BackwardHooks(mark, waits)
    depth = 0

    def enter(module: torch.nn.Module, _inputs: Any) -> None:
        nonlocal depth
        if module is criterion:
            return
        depth += 1
        if depth == 1:
            mark("wait")

    def leave(module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal depth
        if module is criterion:
            return
        depth -= 1
        if depth == 0:
            mark("forward")
            backward.watch(output)

    # Horovod's step() waits, and calls the wrapped optimizer's, which has these hooks, too: the last mark counts.
    handles = [
        criterion.register_forward_hook(lambda _module, _inputs, loss: backward.watch(loss)),
        optimizer.register_step_pre_hook(lambda *_: mark("wait" if waits else "backward")),
        optimizer.register_step_post_hook(lambda *_: mark("optimizer")),
    ]
    if waits:
        handles += [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    with contextlib.ExitStack() as undo:
        for handle in handles:
            undo.callback(handle.remove)
        yield


def _endless(train: Loader, first_epoch: int, mark: Mark) -> Batches:
    for epoch in itertools.count(first_epoch):
        train.set_epoch(epoch)
        yield from train.with_marks(mark)


def _of_all_ranks(steps: list[dict[str, float]], rank: Rank, all_reduce: AllReduce) -> list[dict]:
    names = list(steps[0])
    table = gather([step[name] for step in steps for name in names], rank, all_reduce)
    rows = []
    for number_of_rank, of_rank in enumerate(table.reshape(rank.world_size, len(steps), len(names)).tolist()):
        taken = [dict(zip(names, values, strict=True)) for values in of_rank]
        rows += [
            _row(step, step, None) | {"rank": number_of_rank, "number": number} for number, step in enumerate(taken)
        ]
    return rows


def gather(values: Sequence[float], rank: Rank, all_reduce: AllReduce) -> torch.Tensor:
    """float64 (ranks, values), on every rank."""
    table = torch.zeros(rank.world_size, len(values), dtype=torch.float64, device=rank.device)
    table[rank.rank] = torch.tensor(values, dtype=torch.float64)
    return all_reduce(table)


def _phases_ms(clock: Clock, marks: Marks) -> dict[str, float]:
    phases_ms = dict.fromkeys(MARKED_PHASES, 0.0)
    for (_, before), (phase, after) in itertools.pairwise(marks):
        phases_ms[phase] += clock.between_ms(before, after)
    return phases_ms | {WHOLE: clock.between_ms(marks[0][1], marks[-1][1])}


def _compute_ms(phases_ms: dict[str, float]) -> float:
    return phases_ms["forward"] + phases_ms["backward"]


def _row(step: dict[str, float], twin: dict[str, float], exposed_ms: float | None) -> dict:
    """With the twin's forward and backward."""
    phases_ms = step | {"forward": twin["forward"], "backward": twin["backward"]}
    return {f"{phase}_ms": ms for phase, ms in phases_ms.items()} | {"exposed_comm_ms": exposed_ms}
