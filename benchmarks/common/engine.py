"""Training with a clock: warm-up, timed windows, exact evaluation, checkpoints, rows.

Between two windows nothing is written: losses stay on the device, rows in memory.
"""

import contextlib
import dataclasses
import hashlib
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from benchmarks.common.checkpoint import Checkpointer, sync_state
from benchmarks.common.clock import Clock, Meter, Window
from benchmarks.common.config import Config
from benchmarks.common.errors import Diverged, Stopped, UserError
from benchmarks.common.model import flops_per_image, learning_rate, refuse_single_values
from benchmarks.common.phases import break_down_steps, gather
from benchmarks.common.rank import STOP_SIGNALS, synchronize, used_gpus
from benchmarks.common.strategy import STORED_FIELDS, Strategy, all_reduce_sum, resolve_layout
from benchmarks.common.summary import Record

CHECK_S = 5.0  # how often ranks look for signals, outside timed windows: Slurm's grace period is 30 s


def fit(strategy: Strategy, clock: Clock | None = None) -> None:
    """Raises Diverged where the loss is no number, Stopped by a signal, and UserError where no window fits into an
    epoch or a checkpoint cannot be loaded."""
    config, rank = strategy.config, strategy.rank
    if rank.world_size > 1 and strategy.all_reduce is all_reduce_sum and not dist.is_initialized():
        raise UserError("the script has several ranks and no process group; call dist.init_process_group in build")
    layout = resolve_layout(config, strategy.layout)
    num_parts = layout.num_shards * layout.num_microbatches
    refuse_single_values(config, strategy.train.num_classes, config.global_batch // num_parts)
    columns = dict(strategy.columns)
    if config.compile or "compile_s" in columns:  # but not for evaluation, whose batches have other sizes
        step = time_first_step(strategy, columns)
        strategy = dataclasses.replace(strategy, step=step, predict=strategy.predict or strategy.model.forward)
    run = _Run(strategy, clock or Clock(rank.devices))
    first_epoch, first_step = run.resume()
    with noted_signals(config) as run.signals:
        try:
            for epoch in range(first_epoch, config.epochs):
                run.train_epoch(epoch, first_step if epoch == first_epoch else 0)
                run.evaluate(epoch)
                run.save_epoch(epoch)
        finally:  # whatever ends the run, the windows so far are rows
            run.record.write()
    run.summarize()
    if config.account_steps:  # last, since nothing that these steps do is kept
        first_accounted_step = run.steps_run + 1  # one step goes before these
        rows, means = break_down_steps(strategy, run.advance)
        run.record.write_step_breakdown(rows, first_accounted_step)
        run.summary |= means
    resolved = {"world_size": rank.world_size * len(rank.devices)} | strategy.train.resolved
    resolved |= {name: getattr(layout, name) for name in STORED_FIELDS} | columns
    reported = report_ranks(strategy)
    run.record.finish(run.summary | {"parallel": reported["devices"] > 1}, resolved, reported)


class _Run:
    def __init__(self, strategy: Strategy, clock: Clock):
        self.strategy, self.clock, self.checkpoints = strategy, clock, Checkpointer(strategy)
        self.config, self.rank, self.device = strategy.config, strategy.rank, strategy.rank.device
        self.all_reduce, self.predict = strategy.all_reduce, strategy.predict or strategy.model
        self.record = Record(self.config, self.rank, self.config.epochs * strategy.train.num_steps)
        self.meter = Meter(self.device)
        self.signals: list[int] = []
        self.losses: list[torch.Tensor | None] = []  # of the steps since the last check
        self.checked_at, self.steps_to_check = time.monotonic(), 1
        self.steps_run = self.steps_unsaved = 0
        self.windows: list[Window] = []
        self.step_ms: list[float] = []
        self.peak_memory_mb = 0.0
        self.summary: dict[str, Any] = {}
        self.best_acc1 = 0.0

    def train_epoch(self, epoch: int, first_step: int) -> None:
        config, train = self.config, self.strategy.train
        began_s = time.perf_counter()
        if self.windows:  # the evaluation's peak is not training's
            reset_peak_memory(self.device)
        train.set_epoch(epoch, first_step)
        batches = iter(train)
        for n in range(first_step, train.num_steps):
            if self._window_due(n, first_step):
                if not self.windows:  # the warm-up's peak is that of cuDNN's search, or of a compiler
                    reset_peak_memory(self.device)
                    self.peak_memory_mb = 0.0
                self.clock.start()
            self.advance(batches, learning_rate(config, epoch + n / train.num_steps))
            if self.clock.running:
                self._end_timed_step()
            if not self.clock.running:
                self._check_and_save(epoch, n + 1)
        self.peak_memory_mb = max(self.peak_memory_mb, peak_memory_mb(self.device))
        # another process began an epoch that was resumed
        epoch_s = None if first_step else time.perf_counter() - began_s
        self.summary["epoch_s"] = epoch_s
        self._epoch_row(epoch, "train", epoch_s, self.meter)
        self.meter = Meter(self.device)

    def advance(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], lr: float) -> None:
        images, target = next(batches)
        for group in self.strategy.optimizer.param_groups:
            group["lr"] = lr
        loss, output = self.strategy.step(images, target)
        if loss is not None and output is not None:
            self.meter.update(loss, output, target)
        self.losses.append(loss)
        self.steps_run += 1
        self.steps_unsaved += 1

    def _window_due(self, n: int, first_step: int) -> bool:
        """Not in an epoch's first step, which waits for the loader."""
        warm, requested = self.steps_run >= self.config.warmup_steps, len(self.windows) < self.config.windows
        fits = first_step < n <= self.strategy.train.num_steps - self.config.window_steps
        return warm and requested and fits and not self.clock.running

    def _end_timed_step(self) -> None:
        is_last = self.clock.num_steps + 1 == self.config.window_steps
        if is_last and self.strategy.layout.period:  # ranks of local SGD are apart between two averages
            self.all_reduce(torch.zeros(1, device=self.device))
        self.clock.tick()
        if not is_last:
            return
        seconds, step_ms = self.clock.stop()
        window = Window(self.config.global_batch * len(step_ms), seconds, time.monotonic())
        self.record.note_window(len(self.windows), window, step_ms, self.steps_run - len(step_ms))
        self.windows.append(window)
        self.step_ms += step_ms

    def _check_and_save(self, epoch: int, next_step: int) -> None:
        checkpoint_due = 0 < self.config.checkpoint_steps <= self.steps_unsaved
        ended = next_step == self.strategy.train.num_steps
        if not (checkpoint_due or ended or len(self.losses) >= self.steps_to_check):
            return
        step_s = (time.monotonic() - self.checked_at) / len(self.losses)
        steps_done = epoch * self.strategy.train.num_steps + next_step
        signum, step_s = agree(self.strategy, self.losses, steps_done, self.signals, step_s)
        # at most twice as many as before: after fast steps the next ones may be slow
        num_steps = min(self.config.window_steps, 2 * self.steps_to_check, int(CHECK_S / max(step_s, 1e-9)))
        self.steps_to_check = max(1, num_steps)
        self.losses, self.checked_at = [], time.monotonic()
        self.record.report_progress(steps_done)
        if self.config.checkpoint_dir and (signum or (checkpoint_due and not ended)):  # the epoch's end saves by itself
            self.save("last.pt", epoch, next_step)
        if signum:
            self.all_reduce(torch.zeros(1, device=self.device))  # torchrun kills the others when one rank exits
            raise Stopped(signum, f"a checkpoint of step {next_step} of epoch {epoch} was saved")

    @torch.no_grad()
    def evaluate(self, epoch: int) -> None:
        """Over every validation image exactly once."""
        began_s = time.perf_counter()
        model, val = self.strategy.model, self.strategy.val
        sync_state(self.strategy)
        model.eval()
        meter, batches_left = Meter(self.device), val.num_steps
        val.set_epoch(epoch)
        for images, target in val:
            output = self.predict(images)
            target, batches_left = target.to(output.device), batches_left - 1
            meter.update(cross_entropy(output.float(), target), output, target)
        blank = torch.zeros(1, 3, self.config.image_size, self.config.image_size, device=self.device)
        for _ in range(batches_left):  # others may wait for the forward pass of a rank without images
            self.predict(blank)
        model.train()
        self._epoch_row(epoch, "val", time.perf_counter() - began_s, meter)
        self.checked_at = time.monotonic()

    def _epoch_row(self, epoch: int, phase: str, seconds: float | None, meter: Meter) -> None:
        totals = meter.totals(self.all_reduce)
        if totals is None:  # a synthetic set has nothing to validate
            return
        self.record.write_epoch(epoch, phase, seconds, totals)
        self.summary[f"{phase}_loss"] = totals.loss
        if phase == "val":
            self.summary |= {"acc1": totals.acc1, "acc5": totals.acc5, "val_samples": totals.images}

    def save_epoch(self, epoch: int) -> None:
        if not self.config.checkpoint_dir:
            return
        acc1 = self.summary.get("acc1", 0.0)
        if acc1 >= self.best_acc1:
            self.best_acc1 = acc1
            self.save("best.pt", epoch + 1, 0)
        self.save("last.pt", epoch + 1, 0)

    def save(self, name: str, epoch: int, step: int) -> None:
        """Training goes on at `step` of `epoch`."""
        self.steps_unsaved = 0
        sums = self.all_reduce(self.meter.sums.clone())
        self.checkpoints.save(name, {"epoch": epoch, "step": step, "best_acc1": self.best_acc1, "train_sums": sums})
        self.checked_at = time.monotonic()

    def resume(self) -> tuple[int, int]:
        """The epoch and the step in it to start from."""
        at, self.summary = self.checkpoints.resume()
        if at is None:
            check_windows_fit(self.config, self.strategy.train.num_steps)
            return 0, 0
        self.best_acc1 = at["best_acc1"]
        if self.rank.reports:  # the sums are over all ranks already
            self.meter.sums.copy_(at["train_sums"])
            print(f"resumed at step {at['step']} of epoch {at['epoch']}", flush=True)
        return at["epoch"], at["step"]

    def summarize(self) -> None:
        images = sum(window.images for window in self.windows)
        seconds = sum(window.seconds for window in self.windows)
        num_classes = self.strategy.train.num_classes
        memory_mb = gather([self.peak_memory_mb], self.rank, self.all_reduce)
        self.summary |= {
            "images_per_s": images / seconds if seconds else None,
            "windows": [dataclasses.astuple(window) for window in self.windows],
            "step_ms_p50": float(numpy.percentile(self.step_ms, 50)) if self.step_ms else None,
            "step_ms_p95": float(numpy.percentile(self.step_ms, 95)) if self.step_ms else None,
            "peak_memory_mb": memory_mb.max().item(),
            "flops_per_image": flops_per_image(self.config, num_classes) if self.rank.reports else None,
        }


@contextlib.contextmanager
def noted_signals(config: Config) -> Iterator[list[int]]:
    """Those that have asked a run with checkpoints to stop."""
    signals: list[int] = []
    before = {}
    if config.checkpoint_dir:
        before = {each: signal.signal(each, lambda number, frame: signals.append(number)) for each in STOP_SIGNALS}
    try:
        yield signals
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler or signal.SIG_DFL)


def agree(
    strategy: Strategy, losses: Sequence[torch.Tensor | None], steps_done: int, signals: Sequence[int], step_s: float
) -> tuple[int, float]:
    """One sum over the ranks: the signal to obey, or 0, and the mean of step_s. losses: of the last steps. Raises
    Diverged on every rank."""
    news = torch.zeros(len(losses) + 2, dtype=torch.float64, device=strategy.rank.device)
    known = [loss for loss in losses if loss is not None]
    if known:  # a rank has the loss of every step, or of none
        news[:-2] = ~torch.stack(known).isfinite()
    news[-2], news[-1] = bool(signals), step_s
    *bad, stop, sum_s = strategy.all_reduce(news).tolist()
    if any(bad):
        first = steps_done - len(bad) + next(n for n, value in enumerate(bad) if value)
        raise Diverged(f"the loss was not finite at step {first} (counted from 0); lower --lr or check the data")
    signum = (signals[0] if signals else signal.SIGTERM) if stop else 0
    return signum, sum_s / strategy.rank.world_size


def time_first_step(strategy: Strategy, columns: dict[str, Any]) -> Any:
    """Its first call, which compiles, is columns["compile_s"]."""

    def timed(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if columns.get("compile_s"):
            return strategy.step(images, target)
        synchronize(strategy.rank.device)
        began_s = time.perf_counter()
        result = strategy.step(images, target)
        synchronize(strategy.rank.device)
        columns["compile_s"] = time.perf_counter() - began_s
        return result

    return timed


def windows_that_fit(config: Config, num_steps: int) -> int:
    """After the warm-up. None has an epoch's first step."""
    firsts = (max(1, config.warmup_steps - epoch * num_steps) for epoch in range(config.epochs))
    return sum(max(0, num_steps - first) // config.window_steps for first in firsts)


def check_windows_fit(config: Config, num_steps: int) -> None:
    """Raises UserError where none does."""
    if not windows_that_fit(config, num_steps):
        raise UserError(
            f"no timed window fits: {config.epochs} epochs of {num_steps} steps, warmup_steps {config.warmup_steps}, "
            f"window_steps {config.window_steps}; lower one of the last two"
        )


def report_ranks(strategy: Strategy) -> dict[str, Any]:
    """For as_planned.py. A collective."""
    rank = strategy.rank
    threads = gather([torch.get_num_threads()], rank, strategy.all_reduce)
    return {
        "ranks": rank.world_size,
        "world_size": rank.world_size * len(rank.devices),
        "devices": count_devices(strategy),
        "device": rank.device.type,
        "threads": int(threads.min()),
    }


def count_devices(strategy: Strategy) -> int:
    """Distinct GPUs of all ranks, or on CPUs ranks. A collective."""
    rank = strategy.rank
    numbers = [float(rank.rank)]
    if rank.device.type == "cuda":  # by UUID: two tasks may share a GPU 0
        uuids = [str(torch.cuda.get_device_properties(device).uuid) for device in rank.devices]
        # 52 bits, which a float64 holds exactly
        numbers = [int(hashlib.sha256(uuid.encode()).hexdigest()[:13], 16) for uuid in uuids]
    return len(gather(numbers, rank, strategy.all_reduce).unique())


def peak_memory_mb(device: torch.device) -> float:
    """10^6 bytes, of the GPU that had most, or the process's RSS."""
    if device.type == "cuda":
        return max((torch.cuda.max_memory_allocated(gpu) for gpu in used_gpus(device)), default=0) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def reset_peak_memory(device: torch.device) -> None:
    for gpu in used_gpus(device):
        torch.cuda.reset_peak_memory_stats(gpu)
