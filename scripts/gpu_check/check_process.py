"""One check at work: its process, the run that it is, and how both are ended.

Running(check, state, deadline, on_gpu)
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.common.config.config import load_config
from benchmarks.common.system.forward_signals import die_with_parent
from benchmarks.common.system.repository import ROOT
from scripts.gpu_check.check import Check
from scripts.gpu_check.check_state import Deadline, State
from scripts.gpu_check.judges import Ended, Verdict
from scripts.runner import processes, run_plan, schedule
from scripts.runner.make_variables import read_variables

GRACE_S, KILLED_S = 12.0, 5.0
OVERTIME_S = 20.0  # after the deadline, for what began before it


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
                preexec_fn=die_with_parent(),
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
        num_left = sum(len(processes.processes_of_run(path)) for path in paths)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)
        for path in paths:
            processes.end_processes(path, schedule.GRACE_S)
        if self.run and self.child.returncode:
            schedule.record_failed_launcher(self.run, self.folder, self.child.returncode, self.told, 0)
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
        (run,) = run_plan.skip_what_does_not_fit([run])
    return run, *run_plan.create_run_folder(run, check.results)


def planned(check: Check) -> run_plan.Run:
    """The run of a check's command, as its launcher would plan it. Raises UserError where it would refuse it."""
    variables = read_variables()
    flags = ["--config", check.variables["CONFIG"]]
    flags += ["--data", os.environ["DATA"]] if os.environ.get("DATA") else []
    args = check.variables["ARGS"]
    ranks = int(check.variables.get("NPROC") or variables.ranks_here)
    return run_plan.make_run(
        dataclasses.replace(variables, args=args, ranks_here=ranks),
        launcher_of(check).stem,
        1,
        load_config([*flags, *args.split()]),
        ranks_here=ranks,
        flags=args,
    )
