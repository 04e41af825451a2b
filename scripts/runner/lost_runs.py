"""The row of a run whose supervisor could not write it: `record_failed_launcher` where the supervisor has died, and
`record_lost_runs`, by the next suite, where the suite has, too."""

import contextlib
import json
import re
import signal
import sys
from pathlib import Path

from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock
from benchmarks.common.rows import SCHEMA, append_rows, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.runner import processes
from scripts.runner.run_plan import Run
from scripts.runner.start_row import row_at_start, warm_up_status
from scripts.sets.settings import add_settings
from scripts.shared.forward_signals import ENDING_SIGNALS
from scripts.stats.formatting import printable


def record_failed_launcher(run: Run, folder: RunFolder, code: int, env: dict[str, str], signum: int) -> None:
    """End the processes of a run whose launcher failed, and write its row where the supervisor has not."""
    processes.end_processes(folder.path, processes.GRACE_S)
    if (read_table(folder.results, "runs").run_id == folder.run_id).any():
        return
    finished = read_unrecorded(folder)
    if "status" in finished:
        row = with_settings(folder, finished | {"run_id": folder.run_id})
    else:
        row = row_at_start(folder, run.strategy, run.round, run.requested, env) | why_lost(code, signum)
        if run.round == 0:
            row |= warm_up_status(row)
        row |= {"settings": add_settings(folder.results, run.requested), "options": run.flags}
    append_rows(folder.results, "runs", [row])
    reason = printable(str(row.get("reason", "")))
    print(f"{env['LABEL']:>7} {run.name:<22} #{run.round}  {row['status']:<11}            {reason}", flush=True)


def why_lost(code: int, signum: int) -> dict[str, str]:
    """Status and reason of a run about which nothing else is known. code: the launcher's, negative for a signal.
    signum: the signal that the suite got, 0 without one."""
    if signum and -code in ENDING_SIGNALS:
        return {"status": "interrupted", "reason": f"{signal.Signals(signum).name} to the suite, before the run began"}
    ended = f"{signal.Signals(-code).name} ended the supervisor" if code < 0 else f"the launcher ended with code {code}"
    return {"status": "failed", "reason": f"{ended}; its processes were ended, and nothing is known"}


def record_lost_runs(results: Path) -> None:
    for path in sorted(results.resolve().glob("logs/*/unrecorded")):
        try:
            with hold_lock(path, limit_s=0):
                record_lost_run(RunFolder(path.parent))
                path.unlink()
        except TimeoutError:
            print(
                f"warning: another process holds the lock of {path}; the row of this run is not written yet",
                file=sys.stderr,
            )


def record_lost_run(folder: RunFolder) -> None:
    """Its lock is held."""
    processes.end_processes(folder.path, processes.GRACE_S)
    if not (read_table(folder.results, "runs").run_id == folder.run_id).any():
        append_rows(folder.results, "runs", [lost_row(folder)])


def lost_row(folder: RunFolder) -> dict:
    """The columns of the start; all, where the run had ended."""
    row = {"schema": SCHEMA, "run_id": folder.run_id}
    if named := re.fullmatch(r"(.+?)-(\d+)-.*", folder.run_id):
        row |= {"strategy": named[1], "repeat": int(named[2])}
    left = read_unrecorded(folder)
    if "status" in left:
        return with_settings(folder, row | left)
    row |= left
    row |= {"status": "failed", "reason": "its supervisor was killed or could not write this row, and nothing is known"}
    if row.get("repeat") == 0:
        row |= warm_up_status(row)
    return with_settings(folder, row)


def read_unrecorded(folder: RunFolder) -> dict:
    """What the supervisor knew of the row, by column: with a status where the run had ended; {} where it had not
    begun."""
    with contextlib.suppress(OSError, ValueError):
        known = {*TABLES["runs"]} - {"run_id"}  # an older or a newer suite may have written it
        found = json.loads(folder.unrecorded.read_bytes())
        return {name: value for name, value in found.items() if name in known}
    return {}


def with_settings(folder: RunFolder, row: dict) -> dict:
    """The row with the hash of the settings in the run's folder, where it has them."""
    with contextlib.suppress(UserError):
        settings = folder.settings()
        return row | {"settings": add_settings(folder.results, settings["asked"], settings.get("met"))}
    return row
