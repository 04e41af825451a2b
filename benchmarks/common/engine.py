"""Training with a clock: warm-up, timed windows, exact evaluation, checkpoints, rows.

The engine adds no wait to a timed window: losses and accuracies stay on the device, and are read between windows. A
window of local SGD ends when all ranks have done its steps.
"""

import contextlib
import dataclasses
import hashlib
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch.nn.functional import cross_entropy

from benchmarks.common.checkpoint import Checkpointer, best_acc1_on_disk
from benchmarks.common.clock import Clock, Meter, Window, check_windows_fit, time_first_step
from benchmarks.common.config import Config
from benchmarks.common.errors import Diverged, Stopped
from benchmarks.common.loader import count_bad_files
from benchmarks.common.model import flops_per_image, learning_rate
from benchmarks.common.phases import break_down_steps, gather
from benchmarks.common.rank import STOP_SIGNALS, AllReduce, RankContext, peak_memory_mb, reset_peak_memory
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.strategy import Strategy, resolve_layout, stored_fields
from benchmarks.common.summary import Record

POST_LIMIT_S, POLL_S = 5.0, 0.02  # how long a rank waits for the other ranks' posts, and between two looks
EXACT_HEX_DIGITS = 13  # 52 bits, which a float64 holds exactly


class StopRequest:
    """Whether this rank was asked to stop, and before which step all ranks do so.

    Ranks get a signal at different steps, and some while they wait in a collective, where Python runs no handler. So a
    thread reads the signal, and posts in the run's folder how many steps its rank has begun. Before its next step each
    rank waits until all have posted: the largest number is the last step. If a post is missing after `post_limit_s`,
    all ranks stop at their next call of `agree` instead. The first rank that decides between the two decides for all.
    """

    def __init__(self, context: RankContext, folder: RunFolder | None, post_limit_s: float):
        self.context, self.folder, self.post_limit_s = context, folder, post_limit_s
        self.signum = 0
        """The first signal that asked this rank to stop; 0: none has."""
        self.steps_begun = 0
        """By this rank. The engine counts a step before it looks at `signum`."""
        self.last_step: float | None = None

    def read_signals(self, reading_end: socket.socket) -> None:
        while numbers := reading_end.recv(64):
            asked = [number for number in numbers if number in STOP_SIGNALS]
            if asked and not self.signum:
                self.ask(asked[0])

    def ask(self, signum: int) -> None:
        """Ask this rank to stop. The signal is set before the steps are read, so a step that begins later sees it."""
        self.signum = signum
        if self.folder and self.context.world_size > 1:
            try:
                self.folder.post_stop(self.context.rank, self.steps_begun)
            except OSError as error:
                print(f"warning: the ranks cannot agree on a step to stop at: {error}", file=sys.stderr)

    def is_due(self) -> bool:
        """Whether the run stops before the step that was begun last. Only a rank that was asked to stop may call it."""
        if self.last_step is None:
            self.last_step = self._agreed_step()
        return self.steps_begun > self.last_step

    def _agreed_step(self) -> float:
        """The number of steps after which all ranks stop; infinity where they stop at `agree` instead."""
        if self.context.world_size == 1:
            return self.steps_begun - 1
        began_s = time.monotonic()
        while self.folder and time.monotonic() < began_s + 2 * self.post_limit_s:
            if (decided := self.folder.decided_stop()) is not None:
                return decided if decided >= 0 else math.inf
            posted = self.folder.posted_stops(self.context.world_size)
            if len(posted) == self.context.world_size:
                self.folder.decide_stop(max(posted))
            elif time.monotonic() > began_s + self.post_limit_s:
                self.folder.decide_stop(-1)
            else:
                time.sleep(POLL_S)
        return math.inf


@contextlib.contextmanager
def stop_request(config: Config, context: RankContext) -> Iterator[StopRequest]:
    """A StopRequest that signals set, in a run with checkpoints. In other runs the signals kill at once."""
    stop = StopRequest(context, RunFolder.current(), min(POST_LIMIT_S, config.timeout_s / 4))
    with contextlib.ExitStack() as undo:
        if config.checkpoint_dir:
            reading_end, writing_end = socket.socketpair()
            writing_end.setblocking(False)
            undo.callback(writing_end.close)
            # shutdown ends the thread; close does not, where a loader's worker holds a copy of the socket
            undo.callback(writing_end.shutdown, socket.SHUT_RDWR)
            undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writing_end.fileno(), warn_on_full_buffer=False))
            threading.Thread(target=stop.read_signals, args=[reading_end], daemon=True).start()
            for signum in STOP_SIGNALS:
                before = signal.signal(signum, lambda number, frame: None)  # without a handler there is no wakeup
                undo.callback(signal.signal, signum, before or signal.SIG_DFL)
        yield stop


def agree(
    losses: Sequence[torch.Tensor | None], signum: int, steps_done: int, device: torch.device, all_reduce: AllReduce
) -> int:
    """One sum over the ranks tells all of them whether any has lost its loss or was asked to stop.

    losses: of the last steps, scalars on the device, or None on ranks without one. signum: the signal that this rank
    got, or 0. Returns the signal to obey, or 0. Raises Diverged on every rank, with the first bad step.
    """
    news = torch.zeros(len(losses) + 1, dtype=torch.float64, device=device)
    known = [loss for loss in losses if loss is not None]
    if known:  # a rank has the loss of every step, or of none
        news[:-1] = ~torch.stack(known).isfinite()
    news[-1] = bool(signum)
    *bad, stop = all_reduce(news).tolist()
    if any(bad):
        first = steps_done - len(bad) + next(n for n, value in enumerate(bad) if value)
        raise Diverged(f"the loss was not finite at step {first} (counted from 0); lower --lr or check the data")
    return (signum or signal.SIGTERM) if stop else 0


def count_devices(devices: Sequence[torch.device], context: RankContext, all_reduce: AllReduce) -> int:
    """Among how many the work is divided: the distinct GPUs of all ranks, or on CPUs the ranks.

    devices: what this rank computes on, the same number on each rank.
    """
    return len(gather(identities(devices, context), context, all_reduce).unique())


def identities(devices: Sequence[torch.device], context: RankContext) -> list[int]:
    """Numbers that tell devices apart over all ranks: GPUs by their UUID, as two tasks may share a GPU 0; on CPUs the
    rank."""
    if context.device.type != "cuda":
        return [context.rank]
    names = [str(torch.cuda.get_device_properties(device).uuid) for device in devices]
    return [int(hashlib.sha256(name.encode()).hexdigest()[:EXACT_HEX_DIGITS], 16) for name in names]


def fit(strategy: Strategy, clock: Clock | None = None) -> None:
    """Train for config.epochs, evaluate after each, time windows, write rows, and shut the strategy down.

    clock: times the windows; default: the Clock of the rank's device. Raises Diverged where the loss is no number,
    Stopped by a signal, and UserError where no window fits into an epoch or a checkpoint cannot be loaded.
    """
    config, context = strategy.config, strategy.context
    columns = dict(strategy.columns)
    if config.compile:  # evaluation has batches of other sizes, each of which would be compiled
        step = time_first_step(strategy.step, context.device, columns)
        strategy = dataclasses.replace(strategy, step=step, predict=strategy.predict or strategy.model.forward)
    run = _Run(strategy, Checkpointer(strategy), clock or Clock(context.device, strategy.devices))
    first_epoch, first_step = run.resume()
    with stop_request(config, context) as run.stop:
        for epoch in range(first_epoch, config.epochs):
            run.train_epoch(epoch, first_step if epoch == first_epoch else 0)
            run.evaluate(epoch)
            run.save_epoch(epoch)
    run.summarize()
    devices = strategy.devices or [context.device]
    num_devices = context.world_size * len(set(devices))
    if config.account_steps:  # the results are final by now: nothing that these steps do is kept
        first_accounted_step = run.steps_run + 1  # one step goes before these
        rows, means = break_down_steps(strategy, run.advance, num_devices)
        run.record.write_step_breakdown(rows, first_accounted_step)
        run.summary |= means
    all_reduce, layout = strategy.communication.all_reduce, resolve_layout(config, strategy.layout)
    resolved = {"world_size": num_devices} | strategy.loaders.train.resolved | stored_fields(layout) | columns
    parallel = count_devices(devices, context, all_reduce) > 1
    run.record.finish(run.summary | {"parallel": parallel}, resolved)
    strategy.shut_down()


class _Run:
    def __init__(self, strategy: Strategy, checkpoints: Checkpointer, clock: Clock):
        self.strategy, self.checkpoints, self.clock = strategy, checkpoints, clock
        self.stop: StopRequest
        self.config, self.context = strategy.config, strategy.context
        self.model, self.optimizer, self.step = strategy.model, strategy.optimizer, strategy.step
        self.train_loader, self.val_loader = strategy.loaders
        self.all_reduce = strategy.communication.all_reduce
        self.predict = strategy.predict or strategy.model
        self.record = Record(self.config, self.context, self.config.epochs * self.train_loader.num_steps)
        self.meter = Meter(self.context.device)
        self.losses: list[torch.Tensor | None] = []  # of the steps since the last check
        self.steps_run = self.steps_unsaved = 0
        self.windows: list[Window] = []
        self.step_ms: list[float] = []
        self.peak_memory_mb = 0.0
        self.summary: dict[str, Any] = {}
        self.best_acc1 = 0.0

    def train_epoch(self, epoch: int, first_step: int) -> None:
        config, num_steps, stop = self.config, self.train_loader.num_steps, self.stop
        began_s = time.perf_counter()
        if self.windows:  # the evaluation's peak is not training's
            reset_peak_memory(self.context.device)
        self.train_loader.set_epoch(epoch, first_step)
        batches = iter(self.train_loader)
        for n in range(first_step, num_steps):
            stop.steps_begun += 1
            if stop.signum and stop.is_due():  # all ranks are here; a window that is open is dropped
                self._check_and_save(epoch, n, force=True)
            if self._window_due(n, first_step):
                self.record.book_time("training outside windows" if self.windows else "warm-up")
                if not self.windows:  # the warm-up's peak is that of cuDNN's search for algorithms, or of a compiler
                    reset_peak_memory(self.context.device)
                    self.peak_memory_mb = 0.0
                self.clock.start()
            self.advance(batches, learning_rate(config, epoch + n / num_steps))
            if self.clock.running:
                self._end_timed_step()
            if not self.clock.running:
                self._check_and_save(epoch, n + 1)
        self.peak_memory_mb = max(self.peak_memory_mb, peak_memory_mb(self.context.device))
        # how long an epoch took that another process began is unknown
        epoch_s = None if first_step else time.perf_counter() - began_s
        self.summary["epoch_s"] = epoch_s
        self._epoch_row(epoch, "train", epoch_s, self.meter)
        self.meter = Meter(self.context.device)
        self.record.book_time("training outside windows")

    def advance(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], lr: float) -> None:
        """One optimizer step on the next batch."""
        images, target = next(batches)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss, output = self.step(images, target)
        if loss is not None and output is not None:
            self.meter.update(loss, output, target)
        self.losses.append(loss)
        self.steps_run += 1
        self.steps_unsaved += 1

    def _window_due(self, n: int, first_step: int) -> bool:
        """After the warm-up, where it fits into the epoch, and not in its first step, which waits for the loader."""
        warm, requested = self.steps_run >= self.config.warmup_steps, len(self.windows) < self.config.windows
        fits = first_step < n <= self.train_loader.num_steps - self.config.window_steps
        return warm and requested and fits and not self.clock.running

    def _end_timed_step(self) -> None:
        is_last = self.clock.num_steps + 1 == self.config.window_steps
        if is_last and self.strategy.layout.period:  # ranks of local SGD are apart between two averages of the weights
            self.all_reduce(torch.zeros(1, device=self.context.device))
        self.clock.tick()
        if is_last:
            self._close_window()

    def _close_window(self) -> None:
        seconds, step_ms = self.clock.stop()
        window = Window(self.config.global_batch * len(step_ms), seconds, time.monotonic())
        self.record.book_time("timed windows", window.ended_at)
        self.record.write_window(len(self.windows), window, step_ms, self.steps_run - len(step_ms))
        self.windows.append(window)
        self.step_ms += step_ms

    def _check_and_save(self, epoch: int, next_step: int, force: bool = False) -> None:
        """Between windows: check the losses, obey a stop request, save a due checkpoint.

        force: also where no window has ended.
        """
        checkpoint_due = 0 < self.config.checkpoint_steps <= self.steps_unsaved
        ended = next_step == self.train_loader.num_steps
        if not (checkpoint_due or ended or force or len(self.losses) >= self.config.window_steps):
            return
        steps_done = epoch * self.train_loader.num_steps + next_step
        stop = agree(self.losses, self.stop.signum, steps_done, self.context.device, self.all_reduce)
        self.losses = []
        self.record.report_progress(steps_done)
        if self.config.checkpoint_dir and (stop or (checkpoint_due and not ended)):  # the epoch's end saves by itself
            self.save("last.pt", epoch, next_step)
        if stop:
            # wait for all: torchrun kills the others when one rank exits
            self.all_reduce(torch.zeros(1, device=self.context.device))
            raise Stopped(stop, f"a checkpoint of step {next_step} of epoch {epoch} was saved")

    @torch.no_grad()
    def evaluate(self, epoch: int) -> None:
        """Loss and accuracy over every validation image exactly once."""
        began_s = time.perf_counter()
        self.strategy.sync_state()
        self.model.eval()
        meter, batches_left = Meter(self.context.device), self.val_loader.num_steps
        self.val_loader.set_epoch(epoch)
        for images, target in self.val_loader:
            output = self.predict(images)
            target, batches_left = target.to(output.device), batches_left - 1
            meter.update(cross_entropy(output.float(), target), output, target)
        blank = torch.zeros(1, 3, self.config.image_size, self.config.image_size, device=self.context.device)
        for _ in range(batches_left):  # this rank had no image of these, but others may wait for its forward pass
            self.predict(blank)
        self.model.train()
        self._epoch_row(epoch, "val", time.perf_counter() - began_s, meter)
        self.record.book_time("evaluation")

    def _epoch_row(self, epoch: int, phase: str, seconds: float | None, meter: Meter) -> None:
        totals = meter.totals(self.all_reduce)
        if totals is None:  # a synthetic set has nothing to validate
            return
        self.record.write_epoch(epoch, phase, seconds, totals)
        self.summary[f"{phase}_loss"] = totals.loss
        if phase == "val":
            self.summary |= {"acc1": totals.acc1, "acc5": totals.acc5, "val_samples": totals.images}

    def save_epoch(self, epoch: int) -> None:
        """last.pt after every epoch, and best.pt where top-1 accuracy is the best so far."""
        if not self.config.checkpoint_dir:
            return
        acc1 = self.summary.get("acc1", 0.0)
        if acc1 >= self.best_acc1:
            self.best_acc1 = acc1
            self.save("best.pt", epoch + 1, 0)
        self.save("last.pt", epoch + 1, 0)

    def save(self, name: str, epoch: int, step: int) -> None:
        """Write a checkpoint from which training goes on at `step` of `epoch`."""
        self.steps_unsaved = 0
        sums = self.all_reduce(self.meter.sums.clone())
        self.checkpoints.save(name, {"epoch": epoch, "step": step, "best_acc1": self.best_acc1, "train_sums": sums})
        self.record.book_time("checkpoints")

    def resume(self) -> tuple[int, int]:
        """The epoch and the step in it to start from, with everything restored if --resume found a checkpoint."""
        at, self.summary = self.checkpoints.resume()
        resumed_acc1 = at["best_acc1"] if at else 0.0
        if self.config.checkpoint_dir and self.config.resume:
            self.best_acc1 = max(resumed_acc1, self._best_on_disk())
        if self.context.reports and self.best_acc1 > resumed_acc1:
            where = f"the resumed checkpoint knew of {resumed_acc1:.2f} %" if at else "there is no checkpoint to resume"
            print(f"best.pt stays until an epoch reaches its top-1, {self.best_acc1:.2f} %; {where}", flush=True)
        if at is None:
            check_windows_fit(self.config, self.train_loader.num_steps)
            return 0, 0
        if self.context.reports:  # the sums are over all ranks already: one rank brings them in again
            self.meter.sums.copy_(at["train_sums"])
            print(f"resumed at step {at['step']} of epoch {at['epoch']}", flush=True)
        return at["epoch"], at["step"]

    def _best_on_disk(self) -> float:
        best_acc1 = best_acc1_on_disk(self.config, self.strategy.num_classes) if self.context.reports else 0.0
        return self.all_reduce(torch.tensor([best_acc1], dtype=torch.float64, device=self.context.device)).item()

    def summarize(self) -> None:
        images = sum(window.images for window in self.windows)
        seconds = sum(window.seconds for window in self.windows)
        flops = flops_per_image(self.config, self.strategy.num_classes) if self.context.reports else None
        memory_mb = gather([self.peak_memory_mb], self.context, self.all_reduce)
        self.summary |= {
            "images_per_s": images / seconds if seconds else None,
            "windows": [dataclasses.astuple(window) for window in self.windows],
            "step_ms_p50": float(numpy.percentile(self.step_ms, 50)) if self.step_ms else None,
            "step_ms_p95": float(numpy.percentile(self.step_ms, 95)) if self.step_ms else None,
            "peak_memory_mb": memory_mb.max().item(),
            "flops_per_image": flops,
        } | count_bad_files([self.train_loader, self.val_loader], self.context.device, self.all_reduce)
        self.record.book_time("summary")
