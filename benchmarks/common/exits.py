"""How a process ends: an exit code, a line on stderr, and a note of the cause for the supervisor.

The supervisor gives a run its folder in RUN_DIR. The earliest note in it is the first cause; the ranks that
fail after it are victims.
"""

import contextlib
import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from benchmarks.common.errors import Diverged, Stopped, Unavailable, UserError
from benchmarks.common.output import guard_output
from benchmarks.common.rank import find_rank_info
from benchmarks.common.run_folder import RunFolder

STACKS_S = 2.0  # for the supervisor to read the stacks of the rank that the others waited for
EXIT_FAILED, EXIT_USAGE, EXIT_INVALID, EXIT_UNAVAILABLE = 1, 2, 3, 77  # 77: automake's code for "skipped"


def boot_id() -> str:
    """Tells machines apart, and with them the clocks that time.monotonic reads; empty where nothing does."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def timed_out(reason: str) -> bool:
    """Whether a rank gave up waiting for another one. A remedy that names the option --timeout-s does not say so."""
    return bool(re.search("timed out|(?<!--)timeout", reason, re.IGNORECASE))


def run_and_exit(main: Callable[[], None], rank: int | None = None) -> NoReturn:
    """Call `main`, on an exception note the cause, and end the process at once: this never returns.

    At once means os._exit: an interpreter that shuts down in order would wait for ranks that wait for it, or for a
    thread of gloo (pytorch issue 190489). rank: of this process, where the environment does not say.
    """
    guard_output()
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the supervisor asks a run that hangs for its stacks
    try:
        main()
        exit_at_once(0)
    except UserError as error:
        status, code, text = "failed", EXIT_USAGE, str(error)
        print(f"error: {text}", file=sys.stderr)
    except Unavailable as error:
        status, code, text = "skipped", EXIT_UNAVAILABLE, str(error)
        print(f"skipped: {text}", file=sys.stderr)
    except Diverged as error:
        status, code, text = "invalid", EXIT_INVALID, str(error)
        print(f"invalid: {text}", file=sys.stderr)
    except Stopped as error:
        status, code, text = "interrupted", 128 + error.signum, str(error)
        print(f"interrupted: {text}", file=sys.stderr)
    except Exception as error:
        status, code, text = "failed", EXIT_FAILED, f"{type(error).__name__}: {error}"
        traceback.print_exc()
    note_cause(status, text, rank)
    if timed_out(text) and RunFolder.current():
        time.sleep(STACKS_S)
    exit_at_once(code)


def exit_at_once(code: int) -> NoReturn:
    """End the process, with its output written and nothing else of it in order."""
    with contextlib.suppress(OSError):  # of a reader that has gone, such as head
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def note_cause(status: str, reason: str, rank: int | None) -> None:
    """Leave `status` and `reason` for the supervisor, where one started this process."""
    folder = RunFolder.current()
    if folder is None:
        return
    if rank is None:
        try:
            rank = find_rank_info().rank
        except UserError:
            rank = 0
    folder.write_cause(status, reason, rank)
