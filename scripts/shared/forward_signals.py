"""What an ending signal does to a program. Standard library alone.

end_on_signals()                    # before the imports, which take seconds
with forward_signals() as child_runner:
    child_runner.run(["launchers/ddp.sh"])      # the signal goes to this process
"""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1
STDERR = 2
_LIBC = ctypes.CDLL(None)  # a forked child should load nothing


def ending_signals() -> list[signal.Signals]:
    """Without SIGHUP where nohup has disabled it."""
    return [each for each in ENDING_SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]


def die_with_parent() -> Callable[[], None]:
    """For preexec_fn: the child gets SIGTERM when this process ends, even by SIGKILL. Start it from the main thread,
    whose end counts (prctl(2))."""
    return functools.partial(_end_with, os.getpid())


def _end_with(parent: int) -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before prctl
        os.kill(os.getpid(), signal.SIGTERM)


def end_on_signals() -> None:
    """With one line on stderr and exit code 128 + signal, by SystemExit; at the third signal at once. A
    second signal is ignored, since a terminal and make may both send one."""
    owner, received = os.getpid(), 0

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        if os.getpid() != owner:
            for each in ENDING_SIGNALS:
                signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
            signal.raise_signal(signum)
            return
        received += 1
        if received == 1:
            with contextlib.suppress(OSError):  # a terminal that has gone
                os.write(STDERR, f"stopped by {signal.Signals(signum).name}\n".encode())
            raise SystemExit(128 + signum)
        if received > 2:
            os._exit(128 + signum)

    for signum in ending_signals():
        signal.signal(signum, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


class SignalForwarder:
    """Runs processes, one at a time. An ending signal to this process is a SIGTERM to its child."""

    def __init__(self) -> None:
        self.signum = 0
        """The first signal that was received; 0: none."""
        self._num_received = 0
        self._child: subprocess.Popen[Any] | None = None
        self._has_session = False

    def run(self, command: Sequence[object], *, after_signal: bool = False, **popen: Any) -> int:
        """The exit code, less than 0 for a signal. after_signal: start it although a signal was received before. popen:
        keywords of Popen; with start_new_session, a signal goes to the child's group."""
        num_received = self._num_received  # first: what comes from here on ends the child
        if self.signum and not after_signal:
            return -self.signum
        words = [str(word) for word in command]
        self._has_session = bool(popen.get("start_new_session"))
        # SIGINT is blocked until the child sets handlers: no traceback of a program that is still starting
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._child = subprocess.Popen(words, preexec_fn=die_with_parent(), close_fds=False, **popen)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._num_received != num_received:  # before the child had a name
            self._terminate()
        code = self._child.wait()
        self._child = None
        return code

    def _forward(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        self._num_received += 1
        if self._child:
            self._terminate()

    def _terminate(self) -> None:
        assert self._child is not None
        if self._has_session and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGTERM)
        else:
            self._child.terminate()


@contextlib.contextmanager
def forward_signals() -> Iterator[SignalForwarder]:
    forwarder, before = SignalForwarder(), {}
    for signum in ending_signals():
        before[signum] = signal.signal(signum, forwarder._forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    try:
        yield forwarder
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler or signal.SIG_DFL)
