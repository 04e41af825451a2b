"""Training with a clock: warm-up, timed windows, exact evaluation, checkpoints, rows.

The engine never measures inside what it measures: losses and accuracies stay on the device, and everything
that looks at them, or talks to the other ranks, happens in `_pulse`, between two windows.
"""

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import torch
from torch.nn.functional import cross_entropy

from benchmarks.common.account import WithoutExchange, account
from benchmarks.common.checkpoint import about, load_checkpoint, save_checkpoint
from benchmarks.common.clock import Clock
from benchmarks.common.config import Config
from benchmarks.common.data import STOP_SIGNALS, Loader
from benchmarks.common.devices import Reduce, Worker, peak_memory_mb, share_buffers
from benchmarks.common.errors import Diverged, Stopped, UserError
from benchmarks.common.meters import Meter
from benchmarks.common.model import flops_per_image, learning_rate
from benchmarks.common.record import Record

Step = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor | None, torch.Tensor | None]]
"""One optimizer step on this rank's (images, target): detached (loss, output), or Nones without them."""


def fit(
    config: Config,
    worker: Worker,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Loader,
    val: Loader,
    step: Step,
    *,
    reduce: Reduce = lambda tensor: tensor,
    predict: Callable[[torch.Tensor], torch.Tensor] | None = None,
    gather: Callable[[], None] | None = None,
    extra: dict | None = None,
    without_exchange: WithoutExchange | None = None,
    **row,
) -> None:
    """Train `model` by `step` for config.epochs, evaluate after each, time windows, write rows.

    model: the bare model, without a wrapper. reduce: sums a tensor over the ranks. predict: images to scores of
    all classes (default: the model). gather: brings the whole trained state to every rank before it is
    evaluated or saved (default: rank 0's buffers, since each rank's BatchNorm saw only its shard). extra: more
    objects with a state_dict to save, such as a gradient scaler. without_exchange: a context in which `step` leaves
    out all talk between ranks, so that the account can tell what it costs. row: columns of runs.csv that only the
    script knows, such as parallel=False. Raises Diverged where the loss stops being a number, Stopped after a signal.
    """
    run = _Run(config, worker, model, optimizer, train, val, step, reduce, predict or model, gather, extra or {})
    first_epoch, first_step = run.resume()
    with _stop_requests(config) as run.stop_requests:
        for epoch in range(first_epoch, config.epochs):
            run.train_epoch(epoch, first_step if epoch == first_epoch else 0)
            run.evaluate(epoch)
            run.save_epoch(epoch)
    run.summarize()
    if config.account_steps:
        run.account(without_exchange, row.get("world_size", worker.world_size))
    run.record.finish(run.summary | row)


class _Run:
    def __init__(self, config, worker, model, optimizer, train, val, step, reduce, predict, gather, extra):
        self.config, self.worker, self.model, self.optimizer = config, worker, model, optimizer
        self.train, self.val, self.step, self.reduce = train, val, step, reduce
        self.predict, self.extra = predict, extra
        # not a bound method: that cycle would keep the ranks' connections open after the script has closed them
        self.gather = gather or functools.partial(share_buffers, model, worker, reduce)
        self.record = Record(config, worker, config.epochs * train.num_steps)
        self.clock = Clock(worker.device)
        self.meter = Meter(worker.device)
        self.losses: list[torch.Tensor | None] = []  # of the steps since the last pulse
        self.steps_run = self.steps_unsaved = 0
        self.windows: list[tuple[int, float, float]] = []  # images, seconds, when it ended
        self.step_ms: list[float] = []
        self.summary: dict = {}
        self.best_acc1 = 0.0
        self.stop_requests: list[int] = []

    def train_epoch(self, epoch: int, first_step: int) -> None:
        config, num_steps = self.config, self.train.num_steps
        began_s = time.perf_counter()
        self.train.set_epoch(epoch, first_step)
        batches = iter(self.train)
        for n in range(first_step, num_steps):
            if self._window_due(n, first_step):
                self.record.mark("training outside windows" if self.windows else "warm-up")
                self.clock.start()
            self.advance(batches, learning_rate(config, epoch + n / num_steps))
            if self.clock.running and self.clock.tick() == config.window_steps:
                self._close_window()
            if not self.clock.running:
                self._pulse(epoch, n + 1)
        # of an epoch that another process began, nobody knows how long it took
        seconds = None if first_step else time.perf_counter() - began_s
        self.summary["epoch_s"] = seconds
        self._epoch_row(epoch, "train", seconds, self.meter, "train_loss")
        self.meter = Meter(self.worker.device)
        self.record.mark("training outside windows")

    def advance(self, batches: Iterator, lr: float) -> None:
        """One optimizer step on the next batch."""
        images, target = next(batches)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss, output = self.step(images, target)
        if loss is not None:
            self.meter.update(loss, output, target)
        self.losses.append(loss)
        self.steps_run += 1
        self.steps_unsaved += 1

    def _window_due(self, n: int, first_step: int) -> bool:
        """After the warm-up, where the epoch has room for a whole window, and not in an epoch's first step,
        which waits for the loader to start."""
        return (
            not self.clock.running
            and len(self.windows) < self.config.windows
            and self.steps_run >= self.config.warmup_steps
            and first_step < n <= self.train.num_steps - self.config.window_steps
        )

    def _close_window(self) -> None:
        seconds, step_ms = self.clock.stop()
        now = time.monotonic()
        self.record.mark("timed windows", now)
        images = self.config.global_batch * len(step_ms)
        self.record.window(len(self.windows), images, seconds, step_ms, self.steps_run - len(step_ms))
        self.windows.append((images, seconds, now))
        self.step_ms += step_ms

    def _pulse(self, epoch: int, next_step: int) -> None:
        """Between windows: are the losses still numbers, is a stop wanted, is a checkpoint due?"""
        save = 0 < self.config.checkpoint_steps <= self.steps_unsaved
        ended = next_step == self.train.num_steps
        if not (save or ended or len(self.losses) >= self.config.window_steps):
            return
        stop = self._agree(epoch * self.train.num_steps + next_step)
        self.record.progress(epoch * self.train.num_steps + next_step)
        if self.config.checkpoint_dir and (save or stop) and not (ended and not stop):
            self.save("last.pt", epoch, next_step)
        if stop:
            raise Stopped(stop, f"{signal.Signals(stop).name} stopped the run after step {next_step} of epoch {epoch}")

    def _agree(self, steps_done: int) -> int:
        """One sum over the ranks tells all of them whether any has lost its loss or was asked to stop.

        Returns the signal's number or 0. Raises Diverged on every rank, with the first bad step.
        """
        news = torch.zeros(len(self.losses) + 1, dtype=torch.float64, device=self.worker.device)
        if self.losses and self.losses[0] is not None:
            news[:-1] = ~torch.stack(self.losses).isfinite()
        news[-1] = bool(self.stop_requests)
        *bad, stop = self.reduce(news).tolist()
        if any(bad):
            first = steps_done - len(bad) + next(n for n, value in enumerate(bad) if value)
            raise Diverged(f"the loss was not finite at step {first} (counted from 0); lower --lr or check the data")
        self.losses = []
        return (self.stop_requests or [signal.SIGTERM])[0] if stop else 0

    @torch.no_grad()
    def evaluate(self, epoch: int) -> None:
        """Loss and accuracy over every validation image exactly once."""
        began_s = time.perf_counter()
        self.gather()
        self.model.eval()
        meter = Meter(self.worker.device)
        self.val.set_epoch(epoch)
        for images, target in self.val:
            output = self.predict(images)
            target = target.to(output.device)
            meter.update(cross_entropy(output.float(), target), output, target)
        self.model.train()
        self._epoch_row(epoch, "val", time.perf_counter() - began_s, meter, "val_loss")
        self.record.mark("evaluation")

    def _epoch_row(self, epoch: int, phase: str, seconds: float, meter: Meter, loss_column: str) -> None:
        totals = meter.totals(self.reduce)
        if totals is None:  # a synthetic set has nothing to validate
            return
        self.record.epoch(epoch, phase, seconds, totals)
        self.summary[loss_column] = totals.loss
        if phase == "val":
            self.summary |= {"acc1": totals.acc1, "acc5": totals.acc5, "val_samples": totals.images}

    def save_epoch(self, epoch: int) -> None:
        """last.pt after every epoch, and best.pt where top-1 accuracy is the best so far."""
        if not self.config.checkpoint_dir:
            return
        acc1 = self.summary.get("acc1", 0.0)
        best = acc1 >= self.best_acc1
        self.best_acc1 = max(acc1, self.best_acc1)
        if best:
            self.save("best.pt", epoch + 1, 0)
        self.save("last.pt", epoch + 1, 0)

    def save(self, name: str, epoch: int, step: int) -> None:
        """Write a checkpoint from which training goes on at `step` of `epoch`."""
        self.gather()
        self.steps_unsaved = 0
        sums = self.reduce(self.meter.sums.clone())
        if self.worker.reports:
            state = {
                "about": about(self.config, len(self.train.classes)),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": epoch,
                "step": step,
                "best_acc1": self.best_acc1,
                "train_sums": sums,
                "random": torch.get_rng_state(),
                "extra": {key: value.state_dict() for key, value in self.extra.items()},
            }
            save_checkpoint(Path(self.config.checkpoint_dir), name, state)
        self.record.mark("checkpoints")

    def resume(self) -> tuple[int, int]:
        """The epoch and the step in it to start from, with everything restored if --resume found a checkpoint.

        Every rank reads the file itself, so that states which ranks do not share need no broadcast.
        """
        state = load_checkpoint(self.config, len(self.train.classes))
        if state is None:
            if not self._num_windows_that_fit():
                raise UserError(
                    f"no timed window fits: {self.config.epochs} epochs of {self.train.num_steps} steps, warmup_steps "
                    f"{self.config.warmup_steps}, window_steps {self.config.window_steps}; lower one of the last two"
                )
            return 0, 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for key, value in self.extra.items():
            if key not in state["extra"]:
                raise UserError(f"the checkpoint holds no {key}: another strategy wrote it; start without --resume")
            value.load_state_dict(state["extra"][key])
        self.gather()  # a no-op where every rank has read the same file
        torch.set_rng_state(state["random"])
        self.best_acc1 = state["best_acc1"]
        if self.worker.reports:  # the sums are over all ranks already: one rank brings them in again
            self.meter.sums.copy_(state["train_sums"])
            print(f"resumed at step {state['step']} of epoch {state['epoch']}", flush=True)
        return state["epoch"], state["step"]

    def _num_windows_that_fit(self) -> int:
        num_steps, fit_in = self.train.num_steps, 0
        for epoch in range(self.config.epochs):
            first = max(1, self.config.warmup_steps - epoch * num_steps)
            fit_in += max(0, (num_steps - first) // self.config.window_steps)
        return fit_in

    def summarize(self) -> None:
        """The summary of the run, from the windows and the last evaluation."""
        images, seconds, _ = (sum(column) for column in zip((0, 0.0, 0.0), *self.windows, strict=True))
        memory = torch.zeros(self.worker.world_size, dtype=torch.float64, device=self.worker.device)
        memory[self.worker.rank] = peak_memory_mb(self.worker.device)
        bad_files = torch.tensor([float(self.train.num_bad_files + self.val.num_bad_files)], device=memory.device)
        self.summary |= {
            "images_per_s": images / seconds if seconds else None,
            "windows": self.windows,
            "step_ms_p50": float(numpy.percentile(self.step_ms, 50)) if self.step_ms else None,
            "step_ms_p95": float(numpy.percentile(self.step_ms, 95)) if self.step_ms else None,
            "peak_memory_mb": self.reduce(memory).max().item(),
            "flops_per_image": flops_per_image(self.config, len(self.train.classes)) if self.worker.reports else None,
            "skipped_files": int(self.reduce(bad_files).item()),
        }
        self.record.mark("summary")

    def account(self, without_exchange: WithoutExchange | None, num_devices: int) -> None:
        """Take further steps apart. The results are final by now: nothing that these do is kept."""
        first_step = self.steps_run + 1  # one step goes before those that are accounted for
        parts = self.config, self.worker, self.optimizer, self.train, self.advance, self.reduce
        rows, medians = account(*parts, without_exchange, num_devices)
        self.record.account(rows, first_step)
        self.summary |= medians


@contextlib.contextmanager
def _stop_requests(config: Config) -> Iterator[list[int]]:
    """Signals that arrived, where there is a checkpoint to write before obeying them; else they kill at once.

    SIGTERM is what schedulers and launchers send, SIGINT what torch.multiprocessing sends to ranks whose parent has
    gone; SIGUSR1 is what launchers/slurm.sh asks Slurm to send first.
    """
    requests: list[int] = []
    with contextlib.ExitStack() as undo:
        for signum in STOP_SIGNALS if config.checkpoint_dir else ():
            before = signal.signal(signum, lambda number, frame: requests.append(number))
            undo.callback(signal.signal, signum, before or signal.SIG_DFL)
        yield requests
