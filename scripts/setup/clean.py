"""Removes the result sets that are not published, after a question. Sets and checkouts that are in use stay. Standard
library only.

    make clean              # asks on the terminal
    make clean YES=yes      # does not ask
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.files import guard_output, hold_lock
from scripts.shared.repository import CHECKOUTS_NAME, ROOT, process_space

KEPT_NAMES = ("published", "README.md")
LOCKS = (".suite", "logs/*/run.yaml")  # loop.lock_result_set holds the first, and a run's record the second


def main(yes: bool, results: Path = ROOT / "results") -> int:
    found = sorted(path for path in results.glob("*") if path.name not in KEPT_NAMES)
    with contextlib.ExitStack() as held:
        why_kept = {path: why for path in found if (why := held.enter_context(_claim(path)))}
        why_kept |= {
            path: "links to a set that is kept" for path in found if path.is_symlink() and path.resolve() in why_kept
        }
        free = [path for path in found if path not in why_kept]
        for path, why in why_kept.items():
            print(f"kept: {path}: {why}")
        if not free:
            print("no result set to remove")
            return 0
        print("to remove:", *(f"  {path}{_num_runs_text(path)}" for path in free), sep="\n")
        if not yes:
            if not sys.stdin.isatty():
                print(
                    "error: nothing is removed: there is no terminal to ask on; use make clean YES=yes", file=sys.stderr
                )
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


@contextlib.contextmanager
def _claim(path: Path) -> Iterator[str]:
    """Why it must stay, or ''."""
    if path.is_symlink() or not path.is_dir():
        yield ""
        return
    with contextlib.ExitStack() as held:
        why = _why_checkouts_stay(path)
        try:
            for lock in [lock for name in LOCKS for lock in path.rglob(name)]:
                held.enter_context(hold_lock(lock, limit_s=0))
        except TimeoutError:
            why = "a suite or a run is writing it"
        yield why


def _why_checkouts_stay(path: Path) -> str:
    found = CHECKOUTS_NAME.fullmatch(path.name)
    if not found:
        return ""
    if found["space"] != process_space():
        return f"checkouts of a process elsewhere ({found['space']}); remove the folder yourself once that has ended"
    return "checkouts that a process runs in" if Path(f"/proc/{found['pid']}").exists() else ""


def _num_runs_text(path: Path) -> str:
    runs = path / "runs.csv"
    if path.is_symlink() or not runs.is_file():
        return ""
    num_lines = runs.read_bytes().count(b"\n")
    return f" ({max(0, num_lines - 1)} runs)"


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
