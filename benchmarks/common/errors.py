"""The four ways in which a run ends without a bug. `exit_codes.run_and_exit` turns each into an exit code."""

import signal


class UserError(Exception):
    """A mistake that the user can correct: the text says what was wrong, where, and what to do next."""


class Unavailable(Exception):
    """This machine cannot run the strategy: the text says why and what would change that."""


class Diverged(Exception):
    """The loss is no longer a number: whatever was timed is not a training step."""


class Stopped(Exception):
    """A signal asked the run to stop, and it did so between two steps. `text` says what was saved."""

    def __init__(self, signum: int, text: str):
        super().__init__(f"{signal.Signals(signum).name} stopped the run; {text}")
        self.signum = signum
