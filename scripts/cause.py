"""The first cause of a failed run, from the notes its ranks left and the log of what started them."""

import json
import re
import signal
from pathlib import Path

# What a rank says when another one has left it: true, but not the cause.
VICTIM = re.compile(
    r"connection (closed|reset|refused)|broken pipe|gloo.*(timed out|timeout|error)|nccl.*(abort|error|timeout)"
    r"|horovodinternalerror|horovod has been shut down|processexitedexception|process \d+ terminated"
    r"|processraisedexception|socket.*(closed|timeout)|wait timeout|store",
    re.IGNORECASE | re.DOTALL,
)
KILLED = (
    re.compile(r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s+: -(?P<signum>\d+)"),  # torchrun
    re.compile(r"process (?P<rank>\d+) terminated with signal (?P<name>SIG\w+)"),  # torch.multiprocessing
    re.compile(r"Process name: \S*<?\[?(?P<rank>\d+)\]?>?\s+Exit code: -(?P<signum>\d+)"),  # horovodrun
    re.compile(r"srun: error: \S+ task (?P<rank>\d+): (?P<word>Killed|Terminated|Aborted|Segmentation fault)"),
)
WORDS = {"Killed": 9, "Terminated": 15, "Aborted": 6, "Segmentation fault": 11}


def notes_of(run_dir: Path) -> list[dict]:
    """The notes that the run's processes left (outcome.note), the earliest first."""
    notes = []
    for path in run_dir.glob("cause-*.json"):
        try:
            notes.append(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            print(f"warning: {path} cannot be read: {error}")
    return sorted(notes, key=lambda note: note["at"])


def killed_rank(log: str) -> str | None:
    """'rank 1: signal 9, possibly out of memory', where the log says that a rank was killed."""
    for pattern in KILLED:
        if match := pattern.search(log):
            said = match.groupdict()
            signum = int(
                said.get("signum") or WORDS.get(said.get("word") or "", 0) or signal.Signals[said["name"]].value
            )
            hint = ", possibly out of memory" if signum == signal.SIGKILL else ""
            return f"rank {said['rank']}: signal {signum}{hint}"
    return None


def first_cause(notes: list[dict], log: str, exit_code: int) -> tuple[str, str]:
    """(status, reason) of a run that ended with `exit_code` and did not finish."""
    culprits = [note for note in notes if not VICTIM.search(note["reason"])]
    if culprits:
        note = culprits[0]
        where = "" if note["status"] in ("skipped", "invalid") else f"rank {note['rank']}: "
        return note["status"], where + note["reason"]
    if killed := killed_rank(log):
        return "failed", killed
    if notes:
        return notes[0]["status"], f"rank {notes[0]['rank']}: {notes[0]['reason']}"
    if exit_code < 0:
        return "failed", f"{signal.Signals(-exit_code).name} ended the launcher; its workers were swept"
    if exit_code == 0:
        return "failed", "ended with exit code 0 but left no result"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return "failed", f"exit code {exit_code}: {lines[-1][:200] if lines else 'the log is empty'}"
