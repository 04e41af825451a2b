"""How a run ends early without a bug: the status of its row, and the exit code of its rank."""

import re
import signal


class EarlyEnd(Exception):
    """The text says what was wrong, where, and what to do next."""

    status = "failed"
    exit_code = 2


class UserError(EarlyEnd):
    """A mistake in what the user named or set."""


class Unavailable(EarlyEnd):
    """This machine cannot run the strategy."""

    status = "skipped"
    exit_code = 77  # as in automake


class Diverged(EarlyEnd):
    """The loss is no longer a number."""

    status = "invalid"
    exit_code = 3


class Stopped(EarlyEnd):
    """By a signal, between two steps. text: what was saved."""

    status = "interrupted"

    def __init__(self, signum: int, text: str):
        super().__init__(f"{signal.Signals(signum).name} stopped the run; {text}")
        self.exit_code = 128 + signum


def timed_out(reason: str) -> bool:
    """A remedy that names --timeout-s does not say so."""
    return bool(re.search("timed out|(?<!--)timeout", reason, re.IGNORECASE))
