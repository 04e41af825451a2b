"""How a program ends. Needs no torch.

if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(Options)))
"""

import sys
from collections.abc import Callable
from typing import NoReturn

from benchmarks.common.errors import UserError
from benchmarks.common.files import guard_output, without_controls

Errors = tuple[type[Exception], ...]


def run_main_and_exit(main: Callable[[], int | None], *, errors: Errors = (UserError,), writes: str = "") -> NoReturn:
    """A closed stdout or stderr does not end the program."""
    guard_output()
    sys.exit(exit_code(main, errors=errors, writes=writes))


def exit_code(main: Callable[[], int | None], *, errors: Errors = (UserError,), writes: str = "") -> int:
    """2 after one of `errors`, which is a line on stderr. writes: to RESULTS; then an OSError is such a line, too."""
    try:
        return main() or 0
    except errors as error:
        print(f"error: {without_controls(str(error))}", file=sys.stderr)
    except OSError as error:
        if not writes:
            raise
        print(
            f"error: {error.filename or writes}: {error.strerror}; choose another --results",
            file=sys.stderr,
        )
    return 2
