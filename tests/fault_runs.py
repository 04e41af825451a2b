"""Real runs with planted faults, and a look for what they leave."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import ROOT, bench_words, environment, hear_sigint, launcher_flags

from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder

FAULTS = ROOT / "tests" / "faults"  # its sitecustomize.py reads FAULT
LONGEST_S = 1600  # every process of these tests ends before; a fault that hangs ends by the suite's own limits
TINY_YAML = """
arch: resnet18
image_size: 32
global_batch: 4
loader: synthetic
steps: 8
warmup_steps: 1
windows: 2
window_steps: 2
workers: 0
timeout_s: {timeout_s}
limit_s: 1500
"""


@dataclasses.dataclass
class Ended:
    code: int
    output: str
    results: Path

    @property
    def row(self) -> dict:
        """The last row of runs.csv."""
        return read_table(self.results, "runs").iloc[-1].to_dict()

    @property
    def log(self) -> str:
        return (self.results / self.row["log_path"]).read_text(errors="replace")

    @property
    def causes(self) -> list[dict]:
        """Of its ranks, the earliest first."""
        return RunFolder(self.results / "logs" / self.row["run_id"]).causes()


def patience(seconds: int) -> int:
    """What `seconds` of a quiet machine are on this one now."""
    return math.ceil(seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))))


def start(command: list, results: Path, fault: str | None = None, **variables) -> subprocess.Popen:
    """In a session of its own; its output goes to a file beside `results`."""
    config = results.parent / "tiny.yaml"
    config.write_text(TINY_YAML.format(timeout_s=patience(20)))
    planted = {"FAULT": fault, "PYTHONPATH": FAULTS} if fault else {}
    variables = {"CONFIG": config, **planted, **variables}
    if Path(command[0]).name == "bench":
        words, variables = bench_words(" ".join(command[1:]) or "run", **{"RESULTS": results} | variables)
        command, variables = [sys.executable, command[0], *words], variables | {"SETUP": "no"}
    elif command[0] == "make":
        variables |= {"RESULTS": results} if "RESULTS" not in variables else {}
    else:
        command = [*command, *launcher_flags(variables.pop("ARGS", ""), variables)]
        variables |= {"RESULTS": results}
    session = {"start_new_session": True, "preexec_fn": hear_sigint}
    with open(output_of(results), "wb") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment(**variables), stdout=output, stderr=output, **session
        )


def output_of(results: Path) -> Path:
    return results.parent / f"{results.name}.output"


def finish(process: subprocess.Popen, results: Path) -> Ended:
    """A launcher that does not end fails the test, and is ended."""
    try:
        code = process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        pytest.fail(f"not ended after {LONGEST_S} s: {process.args}")
    output = output_of(results).read_text(errors="replace")
    print(output)  # pytest shows it if the test fails
    return Ended(code, output, results)


def run(strategy: str, results: Path, fault: str | None = None, **variables) -> Ended:
    """launchers/<strategy>.sh to its end."""
    return finish(start([ROOT / "launchers" / f"{strategy}.sh"], results, fault, **variables), results)


def until(condition, what: str, limit_s: float = LONGEST_S):
    """The first true value of `condition()`."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{limit_s:g} s and still not: {what}"
        time.sleep(0.05)
    return value


def until_planted(results: Path) -> Path:
    """The folder of the run, once its fault is there."""
    return until(lambda: next(results.glob("logs/*-[1-9]-*/fault-at"), None), "the fault is there").parent


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every live process that knows `folder`: by working folder, argument or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            traces = [process.cwd(), *process.cmdline(), *process.environ().values()]
            ours = any(str(folder) in trace for trace in traces)
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
