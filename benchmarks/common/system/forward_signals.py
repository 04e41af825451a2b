"""One process after the other, and a way for signals to end them all: the loop of runs, and the parts of a report."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, since a forked child should load nothing


def ending_signals() -> list[signal.Signals]:
    """The signals by which people and schedulers end a process; without SIGHUP where nohup has disabled it."""
    return [each for each in ENDING_SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]


def die_with_parent() -> Callable[[], None]:
    """For subprocess's preexec_fn: the kernel sends the child SIGTERM when this process ends, even by SIGKILL.

    The kernel does so when the thread ends that started the child, so start the child from the main thread. The setting
    survives exec (prctl(2)).
    """
    parent = os.getpid()

    def ask_the_kernel() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before prctl
            os.kill(os.getpid(), signal.SIGTERM)

    return ask_the_kernel


class SignalForwarder:
    """Runs processes, one at a time. SIGINT, SIGTERM, SIGHUP or SIGQUIT to us is a SIGTERM to the one in progress.

    SIGTERM for a SIGINT too, which a shell may have told it to ignore. It has the time that it needs to clean up. It
    also gets SIGTERM when we are killed.
    """

    def __init__(self):
        self.signum = 0
        """The first signal that was heard; 0: none."""
        self._num_heard = 0
        self._child: subprocess.Popen | None = None

    def run(self, command: Sequence, **popen) -> int:
        """Run `command` to its end; returns its exit code, less than 0 where a signal ended it.

        The child inherits inheritable file descriptors, such as a set's lock, and so holds the lock until its own end.
        """
        num_heard = self._num_heard
        words = [str(word) for word in command]
        self._child = subprocess.Popen(words, preexec_fn=die_with_parent(), close_fds=False, **popen)
        if self._num_heard != num_heard:  # before the child had a name
            self._child.terminate()
        code = self._child.wait()
        self._child = None
        return code

    def _pass_on(self, signum: int, frame) -> None:
        self.signum = self.signum or signum
        self._num_heard += 1
        if self._child:
            self._child.terminate()


@contextlib.contextmanager
def forward_signals() -> Iterator[SignalForwarder]:
    """A Relay that hears this process's signals; HUP only where nohup has not silenced it."""
    found, before = SignalForwarder(), {}
    for signum in ending_signals():
        before[signum] = signal.signal(signum, found._pass_on)
    try:
        yield found
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler or signal.SIG_DFL)
