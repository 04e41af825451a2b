"""How ranks agree: on losses and signals by a script's own all-reduce, on the step to stop at by files in the run's
folder.

    with stop_request(config, context) as stop:      # a signal waits for a checkpoint
        stop.steps_begun += 1                       # before each step
        if stop.signum and stop.is_due(): ...       # all ranks stop before this step
        signum = agree(losses, stop.signum, steps_done, context.device, all_reduce)

`agree`, `gather` and `count_devices` are collectives: every rank calls them, with the same number of losses or values.
"""

import contextlib
import hashlib
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import torch

from benchmarks.common.config import Config
from benchmarks.common.rank import AllReduce, RankContext
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.errors import Diverged

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # each requests a checkpoint
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


def gather(values: Sequence[float], context: RankContext, all_reduce: AllReduce) -> torch.Tensor:
    """Every rank's values on every rank: float64 (ranks, values)."""
    table = torch.zeros(context.world_size, len(values), dtype=torch.float64, device=context.device)
    table[context.rank] = torch.tensor(values, dtype=torch.float64)
    return all_reduce(table)


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
