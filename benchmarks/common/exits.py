"""How a rank ends: an exit code, a line on stderr, and a note in the run's folder."""

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from benchmarks.common.errors import EarlyEnd, timed_out
from benchmarks.common.files import guard_output
from benchmarks.common.run_folder import RunFolder

STACKS_S = 2.0  # for the record to read the stacks of a rank that the others waited for
RANK_VARIABLES = ("RANK", "HOROVOD_RANK", "SLURM_PROCID")  # of torchrun, horovodrun and srun


def run_and_exit(main: Callable[[], None], rank: int | None = None) -> NoReturn:
    """By os._exit: an orderly shutdown would wait for ranks that wait for it, or a thread of gloo (pytorch issue
    190489). rank: where the environment does not say."""
    guard_output()
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the record asks a run that hangs for its stacks
    try:
        main()
        exit_at_once(0)
    except EarlyEnd as error:
        status, code, text = error.status, error.exit_code, str(error)
        print(f"{'error' if status == 'failed' else status}: {text}", file=sys.stderr)
    except Exception as error:
        status, code, text = "failed", 1, f"{type(error).__name__}: {error}"
        traceback.print_exc()
    if folder := RunFolder.current():
        if rank is None:
            rank = int(next(filter(str.isdecimal, (os.environ.get(name, "") for name in RANK_VARIABLES)), 0))
        folder.write_cause(status, text, rank)
        if timed_out(text):
            time.sleep(STACKS_S)
    exit_at_once(code)


def exit_at_once(code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # a reader such as head has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
