"""One process after the other, and a way for signals to end them all: the loop of runs, and the parts of a report."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence


class Relay:
    """Runs processes, one at a time. SIGINT, SIGTERM or SIGHUP to us is a SIGTERM to the one in progress.

    SIGTERM for a SIGINT too, which a shell may have told it to ignore. It has the time that it needs to clean up.
    """

    def __init__(self):
        self.signum = 0
        """The first signal that was heard; 0: none."""
        self._num_heard = 0
        self._child: subprocess.Popen | None = None

    def run(self, command: Sequence, **popen) -> int:
        """Run `command` to its end; returns its exit code, less than 0 where a signal ended it."""
        num_heard = self._num_heard
        self._child = subprocess.Popen([str(word) for word in command], **popen)
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
def relay() -> Iterator[Relay]:
    """A Relay that hears this process's signals; HUP only where nohup has not silenced it."""
    found, before = Relay(), {}
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            before[signum] = signal.signal(signum, found._pass_on)
    try:
        yield found
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler or signal.SIG_DFL)
