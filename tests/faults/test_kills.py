"""SIGKILL, and Ctrl-C twice, at random moments of real suites: every row is true, no process is left after 15 s,
and the same command finishes the set."""

import contextlib
import csv
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from fault_runs import processes_of, start, until
from support import ROOT

from benchmarks.common.rows import read_table

pytestmark = pytest.mark.real_interpreter

GONE_S = 15
VICTIMS = {  # by what is in the command line
    "loop": "bench run",
    "launcher": "launchers/",
    "record": "scripts.runner.record",
    "torchrun": "torch.distributed.run",
    "rank": "-m benchmarks.",
}


def cases(num_cases: int, num_fast: int) -> list:
    """Seeds; those after the first are slow."""
    return [pytest.param(seed, marks=pytest.mark.slow if seed >= num_fast else ()) for seed in range(num_cases)]


def victims(results: Path, kind: str) -> list[psutil.Process]:
    """Processes of the set whose command line says that they are of this kind and of none before it."""
    found = []
    for process in processes_of(results):
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if next((name for name, text in VICTIMS.items() if text in words), "") == kind:
                found.append(process)
    return found


def run_of(process: psutil.Process) -> Path | None:
    """The folder of its run, where it has no result yet."""
    with contextlib.suppress(psutil.Error):
        words, variables = process.cmdline(), process.environ()
        path = Path(words[words.index("--run") + 1]).parent if "--run" in words else Path(variables.get("RUN_DIR", ""))
        return path if path.name and not (path / "summary.json").exists() else None
    return None


def suite(rng: random.Random, *strategies: str) -> dict:
    """Options for one to six runs."""
    choices = strategies or ("single", "ddp", "ddp single")
    return {"STRATEGIES": rng.choice(choices), "REPEATS": rng.choice([1, 2, 3]), "NPROC": 2}


def start_suite(results: Path, options: dict) -> subprocess.Popen:
    return start([ROOT / "bench"], results, **options)


def check_rows(results: Path) -> None:
    """Each attempt has one row at most, ok means two timed windows, and each file is whole."""
    for path in results.glob("*.csv"):
        text = path.read_text()
        header, *rows = csv.reader(text.splitlines())
        assert text.endswith("\n") and all(len(row) == len(header) for row in rows), path
    runs, windows = read_table(results, "runs"), read_table(results, "windows")
    assert runs.run_id.is_unique
    for run in runs[(runs.status == "ok") & (runs.repeat > 0)].itertuples():
        assert (windows.run_id == run.run_id).sum() == 2, run.run_id


def check_set_is_finished(results: Path, options: dict) -> None:
    """The same command ends well, and leaves a row of each run that is not interrupted."""
    again = start_suite(results, options)
    assert again.wait(600) == 0 and processes_of(results) == []
    check_rows(results)
    runs = read_table(results, "runs")
    runs = runs[(runs.repeat > 0) & (runs.status != "interrupted")]
    done = {(run.strategy, int(run.repeat)) for run in runs.itertuples()}
    assert len(done) == len(runs) == len(options["STRATEGIES"].split()) * options["REPEATS"]


@pytest.mark.parametrize("seed", cases(20, 5))
def test_a_kill_at_any_moment_leaves_true_rows_and_no_process(tmp_path, seed):
    rng, results = random.Random(seed), tmp_path / "a set"
    kind, patience_s = [*VICTIMS][seed % len(VICTIMS)], rng.uniform(0, 3)
    options = suite(rng, "ddp", "ddp single") if kind == "torchrun" else suite(rng)
    process = start_suite(results, options)
    until(lambda: victims(results, kind) or process.poll() is not None, kind, 120)
    time.sleep(patience_s if kind != "launcher" else 0)
    found = victims(results, kind)
    folder = None
    if found:
        victim = rng.choice(found)
        folder = run_of(victim)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    if kind != "loop":
        assert process.wait(600) in (0, 1)
    until(lambda: not processes_of(results), "no process is left", GONE_S)
    process.wait()
    check_rows(results)
    if folder and kind != "loop":
        statuses = read_table(results, "runs").set_index("run_id").status
        assert statuses.get(folder.name) in ("failed", "warm-up"), kind
    check_set_is_finished(results, options)


@pytest.mark.parametrize("seed", cases(3, 1))
def test_loop_and_record_killed_at_once_leave_nothing(tmp_path, seed):
    """Nobody of ours is left to end the run."""
    rng, results = random.Random(seed), tmp_path / "a set"
    options = {"STRATEGIES": "ddp", "REPEATS": 1, "NPROC": 2}
    process = start_suite(results, options)
    until(lambda: victims(results, "torchrun"), "torchrun", 120)
    time.sleep(rng.uniform(0, 2))
    os.killpg(process.pid, signal.SIGKILL)  # torchrun has a session of its own
    process.wait()
    until(lambda: not processes_of(results), "no process is left", GONE_S)
    check_rows(results)
    check_set_is_finished(results, options)


@pytest.mark.parametrize("seed", cases(3, 1))
def test_ctrl_c_twice_keeps_the_finished_rows_and_leaves_no_process(tmp_path, seed):
    """Ctrl-C reaches the whole foreground group, and people press it again."""
    rng, results = random.Random(100 + seed), tmp_path / "a set"
    options = suite(rng)
    process = start_suite(results, options)
    until(lambda: victims(results, rng.choice(["record", "rank"])), "a run", 120)
    time.sleep(rng.uniform(0, 3))
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(rng.uniform(0, 0.5))
    assert process.wait(60) == 130
    until(lambda: not processes_of(results), "no process is left", GONE_S)
    check_rows(results)
    check_set_is_finished(results, options)
