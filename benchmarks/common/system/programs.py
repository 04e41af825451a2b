"""How a program ends: its exit code, and one line on stderr for a mistake of the user's. Needs no torch.

if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(Options)))
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.options_as_typed import option_as_typed
from benchmarks.common.system.output import guard_output

Errors = tuple[type[Exception], ...]


def run_main_and_exit(main: Callable[[], int | None], *, errors: Errors = (UserError,), writes: str = "") -> NoReturn:
    """Run `main` and exit with its exit_code. A closed stdout or stderr does not end the program. What it makes is
    writable by the user and the group at most, whatever the umask."""
    os.umask(os.umask(0o077) | 0o002)
    guard_output()
    sys.exit(exit_code(main, errors=errors, writes=writes))


def exit_code(main: Callable[[], int | None], *, errors: Errors = (UserError,), writes: str = "") -> int:
    """The code that `main` returns, where None is 0; 2 after one of `errors`, which is printed as a line on stderr.

    writes: what the program writes to RESULTS. With it an OSError, such as that of a full disk, is such a line as well.
    """
    try:
        return main() or 0
    except errors as error:
        print(f"error: {without_control_codes(str(error))}", file=sys.stderr)
    except OSError as error:
        if not writes:
            raise
        print(
            f"error: {error.filename or writes}: {error.strerror}; choose another {option_as_typed('RESULTS', '')}",
            file=sys.stderr,
        )
    return 2


def without_control_codes(text: str) -> str:
    """The text with ? for what could steer a terminal. A message may hold names from somebody else's files."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
