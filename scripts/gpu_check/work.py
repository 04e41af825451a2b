"""Checks at work: the order in which they start, the processes that they are, and what is kept of each that ended.

    work(listed, state, here, deadline)

What is timed runs alone; the others several at once. A check that ended is one JSON file, written whole, so that a
second call goes on where the first one was, however that came to its end.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from benchmarks.common.results import write_json
from scripts.gpu_check.check import Check
from scripts.gpu_check.judges import LOST, Ended, Verdict
from scripts.suite import plan, processes, schedule
from scripts.suite.attempt import die_with_parent

POLL_S, GRACE_S, KILLED_S = 0.1, 12.0, 5.0
OVERTIME_S = 20.0  # after the deadline, for what began before it
ROOT = Path(__file__).resolve().parents[2]


class State:
    """What became of the checks that have ended, in a folder: a file each."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.results = folder.parent
        folder.mkdir(parents=True, exist_ok=True)
        self.ended: dict[str, dict] = {}
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(ValueError, KeyError):
                found = json.loads(path.read_text())
                self.ended[found["name"]] = found

    def add(self, check: Check, verdict: Verdict, **more) -> None:
        found = {"name": check.name, "command": check.command, **dataclasses.asdict(verdict), **more}
        write_json(self.folder / f"{check.name.replace(' ', '-')}.json", found)
        self.ended[check.name] = found

    def forget(self, status: str) -> None:
        for name in [name for name, found in self.ended.items() if found["status"] == status]:
            del self.ended[name]

    def log_of(self, check: Check) -> Path:
        return self.folder / f"{check.name.replace(' ', '-')}.log"


@dataclasses.dataclass(frozen=True)
class Deadline:
    """seconds: after which nothing starts any more; 0: there is none."""

    seconds: float = 0.0
    began: float = dataclasses.field(default_factory=time.monotonic)

    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self.began) if self.seconds else float("inf")


class Running:
    """A check's command at work, in a session of its own."""

    def __init__(self, check: Check, state: State, deadline: Deadline, on_gpu: bool):
        self.check, self.state, self.on_gpu = check, state, on_gpu
        self.began = time.monotonic()
        self.run, self.folder, told = begin(check) if launcher_of(check) else (None, None, {})
        # a run's configuration is the one in its folder; what it is run by stays the check's own
        own = {name: value for name, value in check.variables.items() if name not in told or name == "PYTHON"}
        self.told = os.environ | told | own | {"PYTHONUNBUFFERED": "1"}
        limit_s, left_s = check.limit_s, deadline.left_s() + OVERTIME_S
        self.cut_short, self.limit_s = left_s < limit_s, min(limit_s, left_s)
        self.sent: list[int] = []
        with open(state.log_of(check), "wb") as log:
            self.child = subprocess.Popen(
                check.argv,
                cwd=ROOT,
                env=self.told,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def has_ended(self) -> bool:
        """Past its limit it is told to end, and GRACE_S later killed; nobody waits meanwhile, so that all are told."""
        over_s = time.monotonic() - self.began - self.limit_s
        for signum, after_s in ((signal.SIGTERM, 0.0), (signal.SIGKILL, GRACE_S)):
            if self.child.poll() is None and over_s > after_s and signum not in self.sent:
                self.sent.append(signum)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.child.pid, signum)
        return self.child.poll() is not None or over_s > GRACE_S + KILLED_S

    def end_now(self) -> None:
        self.limit_s = min(self.limit_s, time.monotonic() - self.began)

    def about_s(self) -> float:
        """Seconds that it may still take."""
        return max(0.0, self.check.estimate_s - (time.monotonic() - self.began))

    def bury(self) -> int:
        """End what is left of its runs, and write the row of the one that it is. Returns how many processes were."""
        paths = [self.folder.path] if self.folder else []
        has_own_set = self.check.results != self.state.results
        if not paths and self.sent and has_own_set:  # as a proof has, which would have ended them by itself
            paths = [path.resolve() for path in self.check.results.rglob("logs/*")]
        num_left = sum(len(processes.of_run(path)) for path in paths)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)
        for path in paths:
            processes.end_all(path, schedule.GRACE_S)
        if self.run and self.child.returncode:
            schedule.bury(self.run, self.folder, self.child.returncode, self.told, 0)
        return num_left

    def verdict(self) -> Verdict | None:
        """None where the deadline cut it short, so that nothing is known."""
        num_left = self.bury()
        if self.sent and self.cut_short:
            return None
        if self.sent:
            return Verdict("failed", f"not done after {self.limit_s:.0f} s, and was ended")
        run_id, log = self.folder.run_id if self.folder else "", self.state.log_of(self.check)
        of = (self.check.results, run_id, self.check.precision, self.on_gpu, num_left)
        return self.check.judge(Ended(self.child.returncode, log, *of))


def launcher_of(check: Check) -> Path | None:
    """The launcher that a check starts, whose run is planned here: a plan of its own would load torch first."""
    found = Path(check.argv[-1])
    return found if found.parent == Path("launchers") and found.stem != "all" else None


def begin(check: Check):
    """(run, folder, variables) of a check that is one run."""
    run = planned(check)
    check.results.mkdir(parents=True, exist_ok=True)
    if check.timed:
        (run,) = plan.fitted([run])
    return run, *plan.begin(run, check.results)


def planned(check: Check) -> plan.Run:
    """The run of a check's command, as its launcher would plan it. Raises UserError where it would refuse it."""
    given = plan.read_variables()
    flags = ["--config", check.variables["CONFIG"]]
    flags += ["--data", os.environ["DATA"]] if os.environ.get("DATA") else []
    args = check.variables["ARGS"]
    ranks = int(check.variables.get("NPROC") or given.ranks_here)
    return plan.make_run(
        dataclasses.replace(given, args=args, ranks_here=ranks),
        launcher_of(check).stem,
        1,
        load_config([*flags, *args.split()]),
        ranks_here=ranks,
        flags=args,
    )


def work(
    listed: Sequence[Check],
    state: State,
    deadline: Deadline,
    lacking: Callable[[Check], str],
    *,
    lanes: int = 1,
    on_gpu: bool = False,
    gpu_gone: Callable[[], str] = lambda: "",
    signals: Sequence[int] = (),
) -> dict[str, str]:
    """Run what has not ended yet, until all has, the deadline is near, or a signal has come.

    lacking: what a check needs that is not here, '' where nothing. gpu_gone: asked where a check failed as if the GPU
    were lost: how it is. Returns why each of the others has not ended, by name.
    """
    queue = [check for check in listed if check.name not in state.ended]
    left = {check.name: f"needs {why}" for check in queue if (why := lacking(check))}
    queue = [check for check in queue if check.name not in left]
    running: list[Running] = []
    bar = tqdm(total=len(queue), desc="checks", disable=None, leave=False)
    try:
        while (queue or running) and not signals:
            for one in [one for one in running if one.has_ended()]:
                running.remove(one)
                bar.update()
                verdict = one.verdict()
                if verdict is None:
                    left[one.check.name] = "not reached: the deadline cut it short"
                    continue
                seconds = time.monotonic() - one.began
                state.add(one.check, verdict, seconds=round(seconds, 1), log=str(one.state.log_of(one.check)))
                say(one.check, verdict, seconds)
                if on_gpu and reads_lost(verdict) and deadline.left_s() > 0 and (how := gpu_gone()):
                    gone = [check for check in queue if uses_gpu(check)]
                    left |= {check.name: f"not reached: the GPU was lost in {one.check.name}: {how}" for check in gone}
                    queue = [check for check in queue if check not in gone]
            check = next_ready(queue, running, state, lanes)
            if check is None:
                time.sleep(POLL_S)
                continue
            queue.remove(check)
            late = deadline.left_s() < check.estimate_s
            if why_not := missing_before(check, state) or ("not reached before the deadline" if late else ""):
                left[check.name] = why_not
                bar.update()
                continue
            try:
                running.append(Running(check, state, deadline, on_gpu))
            except (UserError, OSError) as error:  # its plan is refused, or its program is missing
                verdict = Verdict("failed", str(error))
                state.add(check, verdict, seconds=0.0)
                say(check, verdict, 0.0)
                bar.update()
    finally:
        for one in running:
            one.end_now()
        while not all([one.has_ended() for one in running]):  # a list: each is told at once
            time.sleep(POLL_S)
        for one in running:
            one.bury()
        bar.close()
    left |= dict.fromkeys([one.check.name for one in running] + [check.name for check in queue], "not reached")
    return left


def next_ready(queue: Sequence[Check], running: Sequence[Running], state: State, lanes: int) -> Check | None:
    """The first that may start now: one that runs alone; beside what it waits for, another that is done by then."""
    if any(runs_alone(one.check) for one in running) or len(running) >= lanes:
        return None
    to_come = {check.name for check in queue} | {one.check.name for one in running}
    waits = False
    for check in queue:
        if check.after in to_come:
            continue
        if runs_alone(check) and running:
            waits = True
        elif not waits or check.estimate_s < max(one.about_s() for one in running):
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


def uses_gpu(check: Check) -> bool:
    return not check.name.startswith("build ")


def say(check: Check, verdict: Verdict, seconds: float) -> None:
    print(f"{verdict.status:<8} {seconds:6.1f} s  {check.name}: {verdict.words}", flush=True)
    if verdict.status == "failed":
        print(f"{'':18}{check.command}", file=sys.stderr)
