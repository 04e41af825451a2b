"""How a run ended: its status and, where it failed, the first cause, from its ranks' notes and its log."""

import dataclasses
import os
import re
import signal

from benchmarks.common.errors import timed_out
from benchmarks.common.run_folder import RunFolder

# What a rank reports when it has lost another rank, which is not the cause. Some exceptions always mean that; of others
# the library's words decide.
LOST_RANK_NAME = re.compile(
    r"(Dist(Backend|Network|Store)?|HorovodInternal|Connection\w+|BrokenPipe)Error|Process(Exited|Raised)Exception"
)
MAY_BE_LOST_RANK = re.compile(r"(Runtime|Timeout|\w*(Torch|Dynamo)\w*)Error|BackendCompilerFailed")
LOST_RANK_TEXT = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed out waiting|timeout caused pair closure|wait timeout"
    r"|\bsocket\b.*(closed|timeout)|gloo\b.*\berror|nccl\b.*(abort|error|timeout)"
    r"|\b(dist(backend|network|store)|horovodinternal)error\b|\b(tcp|file)store\b",
    re.IGNORECASE | re.DOTALL,
)
EXCEPTION = re.compile(r"(\w+): ?(.*)", re.DOTALL)
REMEDIES = (
    (r"nccl\b.*unhandled system error", "NCCL_DEBUG=INFO has NCCL log the call that failed"),
    (
        # ranks of one machine exchange in it, of which docker gives 64 MB
        r"nccl\b.*unhandled system error|/dev/shm|shared memory|\bbus error\b",
        "/dev/shm may be too small; docker gives more by --shm-size=1g",
    ),
    (
        r"unable to find (address|interface) for: |no socket interface found",  # of gloo and of NCCL
        "unset GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or name an interface that all nodes have (ip link)",
    ),
    (
        r"OutOfMemoryError|DefaultCPUAllocator: can't allocate memory",
        "a smaller --global-batch needs less, ./bench forecast-memory says how much",
    ),
    (
        r"can't start new thread|thread creation failed|pthread_create|temporarily unavailable",
        "raise ulimit -u, or the limit of a container's processes",
    ),
    (r"too many open files", "raise ulimit -n"),
    (r"no space left on device", "the disk or /dev/shm is full; --workers 0 needs no /dev/shm"),
)
# What torch's process group for NCCL says before it aborts its rank. The last two are those of torch 2.15's `nccl`.
NCCL_WAITED = re.compile(
    r"\[(?:Rank |TC\]\[rank=)(\d+)\]"
    r".*(?:Watchdog caught collective operation timeout|Operation timed out after|due to timeout)"
)
KILLED = (
    re.compile(r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s+: -(?P<signum>\d+)"),  # torchrun
    re.compile(r"process (?P<rank>\d+) terminated with signal SIG(?P<word>\w+)"),  # torch.multiprocessing
    re.compile(r"Process name: (?P<rank>\d+)\s+Exit code: (?P<code>\d+)"),  # horovodrun: the first that ended
    re.compile(r"srun: error: \S+ tasks? (?P<rank>\d+).*: (?P<word>Killed|Aborted|Segmentation fault|Bus error)"),
)
OFTEN_MEANS: dict[int, str] = {
    signal.SIGKILL: ", possibly out of memory",
    signal.SIGBUS: ", a bus error: a file that it had mapped was cut short, or /dev/shm is full",
}
SIGNALS = {"Killed": 9, "Aborted": 6, "Segmentation fault": 11, "Bus error": 7}
SIGNALS |= {signum.name.removeprefix("SIG"): signum.value for signum in signal.Signals}
BY_TORCHRUN = "forcefully exiting via"  # torchrun kills what ignores its SIGTERM for 30 s
RAISED = re.compile(r"^(?:\[\S+<std\w+>:\s*)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)", re.MULTILINE)
SOURCE_LINE = re.compile(r"\[\S+\.(cc|cpp|h):\d+\] ")  # of a library's source, in its messages


@dataclasses.dataclass
class RunEnd:
    """How the command of a run ended."""

    exit_code: int
    wall_s: float
    began: float
    limit_s: float = 0.0
    num_ranks: int = 1
    timed_out: bool = False
    signum: int = 0
    grace_s: float = 0.0
    """Seconds that ranks had to write a checkpoint before they were killed; 0 where they write none."""


def find_status(run_end: RunEnd, folder: RunFolder, has_result: bool) -> dict[str, str]:
    """Status and, unless it is ok, reason. has_result: whether the run left what it measured, as on the first node."""
    if run_end.signum:
        return {"status": "interrupted", "reason": why_interrupted(run_end, folder)}
    if run_end.timed_out:
        slow = "the stacks are in the log; raise -- --limit-s if the run is only slow"
        return {"status": "timeout", "reason": f"not done after {run_end.limit_s:g} s; {slow}"}
    if run_end.exit_code == 0 and (has_result or os.environ.get("NODE_RANK", "0") != "0"):
        return {"status": "ok"}
    log = folder.log.read_bytes().decode(errors="replace")
    status, reason = first_cause(folder.causes(), log, run_end.exit_code, run_end.num_ranks)
    return {"status": status, "reason": reason + remedies(reason)}


def why_interrupted(run_end: RunEnd, folder: RunFolder) -> str:
    received = f"{signal.Signals(run_end.signum).name} to the launcher"
    saved = [cause["reason"].partition("; ")[2] for cause in folder.causes() if cause["status"] == "interrupted"]
    if not saved and run_end.grace_s:
        saved = ["no checkpoint was written after it"]
    return "; ".join([received, *saved[:1]])


def first_cause(notes: list[dict], log: str, exit_code: int, num_ranks: int) -> tuple[str, str]:
    """(status, reason) of a run that did not finish."""
    own = [note for note in notes if not is_lost_connection(note["reason"])]
    if own:
        return own[0]["status"], describe_note(own[0])
    if timed_out_ranks := {int(rank) for rank in NCCL_WAITED.findall(log)}:
        silent = describe_silent_rank(timed_out_ranks, num_ranks)
        return "timeout", f"rank {min(timed_out_ranks)}: a collective timed out{silent}"
    if victim := find_killed_rank(log):
        return "failed", victim
    if notes and timed_out(notes[0]["reason"]):
        return "timeout", describe_note(notes[0]) + describe_silent_rank({note["rank"] for note in notes}, num_ranks)
    if notes:
        return notes[0]["status"], describe_note(notes[0])
    if exit_code < 0:
        return "failed", f"its command: {describe_kill(-exit_code)}; the remaining processes were ended"
    if exit_code == 0:
        return "failed", "ended with exit code 0 but left no result"
    return "failed", f"exit code {exit_code}: {find_error_line(log)[:200]}"


def is_lost_connection(reason: str) -> bool:
    """Whether a rank's note only says that this rank has lost another one. reason: an exception, as `Name: text`, or a
    sentence of this suite."""
    exception = EXCEPTION.fullmatch(reason)
    if not exception or "in DataLoader worker process" in reason:
        return False
    name, text = exception.groups()
    return bool(LOST_RANK_NAME.fullmatch(name) or (MAY_BE_LOST_RANK.fullmatch(name) and LOST_RANK_TEXT.search(text)))


def find_killed_rank(log: str) -> str:
    """'rank 1: signal 9, possibly out of memory', where the log says so; but not what torchrun sends to the others."""
    for found in (match.groupdict() for pattern in KILLED for match in pattern.finditer(log)):
        code = int(found.get("code") or 0)
        signum = int(found.get("signum") or SIGNALS.get(found.get("word") or "", max(0, code - 128)))
        by_torchrun = signum == signal.SIGKILL and BY_TORCHRUN in log
        if signum not in (0, signal.SIGTERM) and not by_torchrun:
            return f"rank {found['rank']}: {describe_kill(signum)}"
    return ""


def find_error_line(log: str) -> str:
    if raised := RAISED.search(log):
        return raised.group(1)
    return log.strip().rpartition("\n")[2] or "the log is empty"


def describe_kill(signum: int) -> str:
    return f"signal {signum}{OFTEN_MEANS.get(signum, '')}"


def describe_silent_rank(reported: set[int], num_ranks: int) -> str:
    """Names the rank that hangs, where every other rank has reported."""
    silent = set(range(num_ranks)) - reported
    return f"; rank {min(silent)} gave no sign" if len(silent) == 1 else ""


def describe_note(note: dict) -> str:
    where = f"rank {note['rank']}: " if note["status"] == "failed" else ""
    return where + SOURCE_LINE.sub("", note["reason"])


def remedies(reason: str) -> str:
    return "".join(f"; {text}" for pattern, text in REMEDIES if re.search(pattern, reason, re.IGNORECASE | re.DOTALL))
