"""One check at work: its process, the run that it is, and how both are ended."""

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.common.config import load_config
from benchmarks.common.run_folder import RunFolder
from scripts.gpu_check.check import Check
from scripts.gpu_check.check_state import Deadline, State
from scripts.gpu_check.verdicts import Ended, Verdict
from scripts.runner import lost_runs, processes, run_plan
from scripts.runner.make_variables import read_variables
from scripts.shared.forward_signals import die_with_parent
from scripts.shared.repository import ROOT

GRACE_S, KILLED_S = 12.0, 5.0
OVERTIME_S = 20.0  # after the deadline, for what began before it


class Running:
    """A check's command at work, in a session of its own."""

    def __init__(self, check: Check, state: State, deadline: Deadline, on_gpu: bool):
        self.check, self.state, self.on_gpu = check, state, on_gpu
        self.began = time.monotonic()
        self.run: run_plan.Run | None = None
        self.folder: RunFolder | None = None
        run_variables: dict[str, str] = {}
        if launcher_of(check):
            self.run, self.folder, run_variables = begin(check)
        # a run's configuration is the one in its folder; its interpreter is the check's own
        own = {name: value for name, value in check.variables.items() if name not in run_variables or name == "PYTHON"}
        self.env = os.environ | run_variables | own | {"PYTHONUNBUFFERED": "1"}
        limit_s, left_s = check.limit_s, deadline.left_s() + OVERTIME_S
        self.cut_short, self.limit_s = left_s < limit_s, min(limit_s, left_s)
        self.sent: list[int] = []
        with open(state.log_of(check), "wb") as log:
            self.child = subprocess.Popen(
                check.argv,
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    def has_ended(self) -> bool:
        """Does not wait: a check that is over its limit gets SIGTERM, and GRACE_S later SIGKILL."""
        over_s = time.monotonic() - self.began - self.limit_s
        for signum, after_s in ((signal.SIGTERM, 0.0), (signal.SIGKILL, GRACE_S)):
            if self.child.poll() is None and over_s > after_s and signum not in self.sent:
                self.sent.append(signum)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.child.pid, signum)
        return self.child.poll() is not None or over_s > GRACE_S + KILLED_S

    def end_now(self) -> None:
        self.limit_s = min(self.limit_s, time.monotonic() - self.began)

    def remaining_s(self) -> float:
        """The estimated number of seconds until the check ends."""
        return max(0.0, self.check.estimate_s - (time.monotonic() - self.began))

    def clean_up(self) -> int:
        """End the processes that are left, and write the row of a run that has none. Returns how many were left."""
        paths = [self.folder.path] if self.folder else []
        has_own_set = self.check.results != self.state.results
        if not paths and self.sent and has_own_set:  # as a proof has, which would have ended them by itself
            paths = [*self.check.results.resolve().rglob("logs/*")]
        num_left = sum(len(processes.processes_of_run(path)) for path in paths)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)
        for path in paths:
            processes.end_processes(path, processes.GRACE_S)
        if self.run and self.folder and self.child.returncode:
            lost_runs.record_failed_launcher(self.run, self.folder, self.child.returncode, self.env, 0)
        return num_left

    def verdict(self) -> Verdict | None:
        """None where the deadline ended the check."""
        num_left = self.clean_up()
        if self.sent and self.cut_short:
            return None
        if self.sent:
            return Verdict("failed", f"not done after {self.limit_s:.0f} s, and was ended")
        run_id, log = self.folder.run_id if self.folder else "", self.state.log_of(self.check)
        ended = Ended(
            self.child.returncode, log, self.check.results, run_id, self.check.precision, self.on_gpu, num_left
        )
        return self.check.find_verdict(ended)


def launcher_of(check: Check) -> Path | None:
    """The launcher that a check starts, whose run is planned here."""
    found = Path(check.argv[-1])
    return found if found.parent == Path("launchers") and found.stem != "all" else None


def begin(check: Check) -> tuple[run_plan.Run, RunFolder, dict[str, str]]:
    """(run, folder, variables) of a check that is one run."""
    run = planned(check)
    check.results.mkdir(parents=True, exist_ok=True)
    if check.timed:
        (run,) = run_plan.skip_what_does_not_fit([run])
    return run, *run_plan.create_run_folder(run, check.results)


def planned(check: Check) -> run_plan.Run:
    """The run that the launcher would plan. Raises UserError."""
    launcher = launcher_of(check)
    assert launcher is not None
    variables = read_variables()
    flags = ["--config", check.variables["CONFIG"]]
    if os.environ.get("DATA"):
        flags += ["--data", os.environ["DATA"]]
    args = check.variables["ARGS"]
    ranks = int(check.variables.get("NPROC") or variables.ranks_here)
    template = run_plan.RunTemplate(launcher.stem, load_config([*flags, *shlex.split(args)]), args)
    return run_plan.make_run(dataclasses.replace(variables, args=args, ranks_here=ranks), template)
