"""An import that is killed at a moment of its own, counted in calls that open, make, rename or remove something."""

import itertools
import os
import signal
import sys

from scripts.data_import import import_images
from scripts.options.data_options import ImportOptions

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "shutil.rmtree")


def run_killed(options: ImportOptions, moment: int) -> tuple[int, int]:
    """Import in a fork that is killed before its moment-th call that changes something below TO; 0: never.

    Returns the fork's exit code, and how many of these calls come before the clean-up, which begins by removing a file
    or a folder.
    """
    calls = options.to.with_suffix(".calls")
    child = os.fork()
    if not child:
        counter, removals = itertools.count(1), []

        def look(event: str, words: tuple) -> None:
            if event in EVENTS and str(words[0]).startswith(f"{options.to}/"):
                number = next(counter)
                if number == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                if event in ("os.remove", "shutil.rmtree"):
                    removals.append(number)

        sys.addaudithook(look)
        code = 1
        try:
            code = import_images.main(options)
            calls.write_text(str(removals[0] - 1))
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), int(calls.read_text()) if calls.exists() else 0
