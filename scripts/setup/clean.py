"""Removes the result sets that are not published, after a question. Sets that are in use stay. Standard library only.

make clean              # asks on the terminal
make clean YES=yes      # does not ask
"""

import contextlib
import shutil
import sys
from pathlib import Path

from benchmarks.common.files import guard_output, hold_lock
from scripts.shared.repository import ROOT

KEPT_NAMES = ("published", "README.md")
LOCKS = (".suite", "logs/*/run.yaml")  # loop.lock_result_set holds the first, and a run's record the second


def main(yes: bool, results: Path = ROOT / "results") -> int:
    free = []
    with contextlib.ExitStack() as held:
        for path in sorted(results.glob("[!.]*")):  # ./bench ab keeps checkouts behind a dot, and removes them itself
            if path.name in KEPT_NAMES:
                continue
            locks = [] if path.is_symlink() else [lock for name in LOCKS for lock in path.rglob(name)]
            try:
                for lock in locks:
                    held.enter_context(hold_lock(lock, limit_s=0))
                free.append(path)
            except TimeoutError:
                print(f"kept: {path}: a suite or a run is writing it")
        if not free:
            print("no result set to remove")
            return 0
        print("to remove:", *(f"  {path}" for path in free), sep="\n")
        if not yes:
            if not sys.stdin.isatty():
                print("error: nothing is removed: there is no terminal to ask on; make clean YES=yes", file=sys.stderr)
                return 2
            if input(f"remove these {len(free)}? [y/N] ").strip().lower() not in ("y", "yes"):
                print("nothing is removed")
                return 1
        for path in free:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:  # of a link, the link alone
                path.unlink()
    return 0


if __name__ == "__main__":
    guard_output()  # a folder's name must not hide what is to be removed
    try:
        sys.exit(main(yes="--yes" in sys.argv[1:]))
    except (KeyboardInterrupt, EOFError):  # EOFError: Ctrl-D at the question
        print("\nnothing is removed")
        sys.exit(1)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}; fix its permissions, and try again", file=sys.stderr)
        sys.exit(2)
