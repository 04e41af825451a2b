"""Checks at work: the order in which they start, and what is said and kept of each that ended."""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence

from tqdm import tqdm

from benchmarks.common.errors import UserError
from scripts.gpu_check.check import Check
from scripts.gpu_check.check_process import Running
from scripts.gpu_check.check_state import Deadline, State
from scripts.gpu_check.verdicts import LOST, Verdict
from scripts.stats.formatting import printable

POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What the machine can do for checks."""

    lacking: Callable[[Check], str] = lambda check: ""
    """What a check needs that is not here; '' for nothing."""
    max_at_once: int = 1
    """Of those that are neither `timed` nor `alone`."""
    on_gpu: bool = False
    gpu_gone: Callable[[], str] = lambda: ""
    """How the GPU is, after a check failed as if it were lost; '' where it computes."""


def work(
    listed: Sequence[Check],
    state: State,
    deadline: Deadline,
    capabilities: Capabilities,
    signals: Sequence[int] = (),
) -> dict[str, str]:
    """Run the checks until all have ended, the deadline is near, or a signal has come. Returns why others have not,
    by name."""
    checks = CheckQueue(listed, state, deadline, capabilities)
    try:
        while (checks.queue or checks.running) and not signals:
            checks.record_ended()
            if not checks.start_next():
                time.sleep(POLL_S)
    finally:
        checks.end_all()
    return checks.why_left


class CheckQueue:
    def __init__(self, listed: Sequence[Check], state: State, deadline: Deadline, capabilities: Capabilities):
        self.state, self.deadline, self.capabilities = state, deadline, capabilities
        to_do = [check for check in listed if not state.is_done(check)]
        lacking = {check.name: what for check in to_do if (what := capabilities.lacking(check))}
        self.why_left = {name: f"needs {what}" for name, what in lacking.items()}
        self.queue = [check for check in to_do if check.name not in lacking]
        self.running: list[Running] = []
        self.bar = tqdm(total=len(self.queue), desc="checks", disable=None, leave=False)

    def record_ended(self) -> None:
        """Keep and print the verdicts of those that have ended."""
        for one in [one for one in self.running if one.has_ended()]:
            self.running.remove(one)
            self.bar.update()
            verdict = one.verdict()
            if verdict is None:
                self.why_left[one.check.name] = "not reached: the deadline cut it short"
                continue
            seconds = time.monotonic() - one.began
            self.state.add(one.check, verdict, seconds=round(seconds, 1), log=str(one.state.log_of(one.check)))
            print_verdict(one.check, verdict, seconds)
            if self.capabilities.on_gpu and reads_lost(verdict) and self.deadline.left_s() > 0:
                self._drop_if_gpu_gone(one.check)

    def _drop_if_gpu_gone(self, failed: Check) -> None:
        """Builds use none, and stay."""
        how = self.capabilities.gpu_gone()
        if not how:
            return
        gone = [check for check in self.queue if not check.name.startswith("build ")]
        self.why_left |= {check.name: f"not reached: the GPU was lost in {failed.name}: {how}" for check in gone}
        self.queue = [check for check in self.queue if check not in gone]

    def start_next(self) -> bool:
        """Start the next check, or note why it cannot. False where all have to wait."""
        check = next_ready(self.queue, self.running, self.capabilities.max_at_once)
        if check is None:
            return False
        self.queue.remove(check)
        late = self.deadline.left_s() < check.estimate_s
        if why_not := missing_before(check, self.state) or ("not reached before the deadline" if late else ""):
            self.why_left[check.name] = why_not
            self.bar.update()
            return True
        try:
            self.running.append(Running(check, self.state, self.deadline, self.capabilities.on_gpu))
        except (UserError, OSError) as error:  # its plan is refused, or its program is missing
            verdict = Verdict("failed", str(error))
            self.state.add(check, verdict, seconds=0.0)
            print_verdict(check, verdict, 0.0)
            self.bar.update()
        return True

    def end_all(self) -> None:
        for one in self.running:
            one.end_now()
        while not all([one.has_ended() for one in self.running]):  # a list: each gets its signal at once
            time.sleep(POLL_S)
        for one in self.running:
            one.clean_up()
        self.bar.close()
        left = [one.check.name for one in self.running] + [check.name for check in self.queue]
        self.why_left |= dict.fromkeys(left, "not reached")


def next_ready(queue: Sequence[Check], running: Sequence[Running], max_at_once: int) -> Check | None:
    """One that runs alone; beside what it waits for, another that is done by then."""
    if any(runs_alone(one.check) for one in running) or len(running) >= max_at_once:
        return None
    to_come = {check.name for check in queue} | {one.check.name for one in running}
    waits = False
    for check in queue:
        if check.after in to_come:
            continue
        if runs_alone(check) and running:
            waits = True
        elif not waits or check.estimate_s < max(one.remaining_s() for one in running):
            return check
    return None


def runs_alone(check: Check) -> bool:
    return check.timed or check.alone


def missing_before(check: Check, state: State) -> str:
    """Why a check that comes after another cannot run; '' where it can."""
    before = state.ended.get(check.after, {}).get("status") if check.after else "passed"
    return "" if before == "passed" else f"not started: {check.after} has not passed"


def reads_lost(verdict: Verdict) -> bool:
    return verdict.status == "failed" and LOST.search(verdict.words) is not None


def print_verdict(check: Check, verdict: Verdict, seconds: float) -> None:
    print(f"{verdict.status:<8} {seconds:6.1f} s  {check.name}: {printable(verdict.words)}", flush=True)
    if verdict.status == "failed":
        print(f"{'':18}{check.command}", file=sys.stderr)
