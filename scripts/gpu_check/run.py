"""Everything that the suite says of GPUs, tried on the GPU of this machine.

    ./bench gpu-check --results results/gpu-check   # called again, it goes on from there

Without a GPU it is a dry run, with few and small images. RETRY=failed runs again what failed. Exit code: 0 where
nothing failed, 1 where a check did, 2 for a mistake found before the first one, 128 + the signal.
"""

import dataclasses
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import tyro

from benchmarks.common import machine
from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.machine import missing_compiler, processor_name
from scripts.gpu_check.check import DRY, GPU, NEEDS, Check, Here, Scale
from scripts.gpu_check.check_page import write_page
from scripts.gpu_check.check_queue import Capabilities, work
from scripts.gpu_check.check_state import Deadline, State
from scripts.gpu_check.checks import checks
from scripts.options.run_options import GpuCheckFlags
from scripts.runner import preflight
from scripts.runner.run_plan import interpreter_path
from scripts.runner.schedule import lock_result_set
from scripts.shared import gpus, source_version
from scripts.shared.commands import bench_command
from scripts.shared.options_as_typed import option_as_typed
from scripts.shared.programs import run_main_and_exit
from scripts.shared.repository import ROOT
from scripts.strategies import memory_check
from scripts.strategies.strategy_list import BASELINE

DEADLINE_S = 540.0
REPORT_S = 50.0  # after the deadline, with what the checks that began before it still took
BYTES_A_CHECK = 8e9  # of GPU memory: 32 images of ResNet-50 in fp32, CUDA's context, cuDNN's workspaces
ALIVE = "import torch; print(float(torch.ones(8, device='cuda').sum()))"


def main(options: GpuCheckFlags) -> int:
    began = time.monotonic()  # the imports and forecasts below take their part of the time
    num_gpus = machine.num_gpus()  # raises where there is a GPU that cannot be used, such as by an old driver
    os.environ["NUM_GPUS"] = str(num_gpus)  # a GPU that is lost later must not turn the plan into one for the CPU
    on_gpu = num_gpus > 0
    results = Path(os.environ.get("RESULTS") or ("results/gpu-check" if on_gpu else "results/gpu-check-dry"))
    here = Here(num_gpus, gpus.min_compute_capability(), not missing_compiler(on_gpu))

    def lacking(check: Check) -> str:
        return "; ".join(NEEDS[name][0] for name in check.needs if not NEEDS[name][1](here))[:200]

    scale, remarks = fitting(GPU, num_gpus) if on_gpu else (DRY, [])
    scale = dataclasses.replace(scale, data=os.environ.get("DATA", ""))
    listed = checks(scale, results)
    if options.list:
        for check in listed:
            print(
                f"{check.name}: {check.claim}{f'; needs {why}' if (why := lacking(check)) else ''}\n  {check.command}"
            )
        return 0
    results = preflight.open_result_set(results)
    signals: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, frame: signals.append(number))
    with lock_result_set(results):
        state = State(results / "checks", what_is_here())
        claim_mode(results, on_gpu)
        state.set_aside(listed)
        state.forget(os.environ.get("RETRY", "") or "-")
        seconds = (DEADLINE_S if on_gpu else 0.0) if options.deadline_s is None else options.deadline_s
        print_begin(on_gpu, listed, state, seconds)
        deadline = Deadline(seconds, began)
        capabilities = Capabilities(lacking, max_checks_at_once(num_gpus), on_gpu, gpu_gone)
        why_left = work(listed, state, deadline, capabilities, signals)
        page = partial(write_page, results, listed, state, why_left, on_gpu=on_gpu, remarks=remarks)
        page()  # first: nobody knows what time is left
        if not signals and make_report(results, deadline.left_s() + REPORT_S):
            page()  # with the link
    if signals:
        return 128 + signals[0]
    return print_end(listed, state, why_left, results)


def what_is_here() -> dict[str, str]:
    """On which code and device the checks run."""
    commit, changes = source_version.commit() or "", source_version.local_changes()
    return {"commit": commit, "local_changes": changes, "device": gpus.gpu_names() or processor_name()}


def fitting(scale: Scale, num_ranks: int) -> tuple[Scale, list[str]]:
    """The scale with 256 images on a GPU, halved until a step in fp32 fits; and a remark."""
    config = load_config(["--config", scale.config, "--batch-per-device", "256", "--precision", "fp32"])
    case = memory_check.MemoryCase(BASELINE, config, 1, 1)
    images, refused = memory_check.largest_fitting_batch([case], num_ranks)
    remarks = [f"{images} images of a step instead of 256, which do not fit: {why}" for why in refused.values()]
    return dataclasses.replace(scale, images=f"--batch-per-device {images}"), remarks


def max_checks_at_once(num_gpus: int) -> int:
    """Two cores for each, and memory on the GPU. On several GPUs one: a collective goes on only while all work for
    it."""
    if num_gpus > 1:
        return 1
    most = max(2, min(6, machine.num_cores() // 2))
    memory_bytes = gpus.gpu_memory_bytes(num_gpus) if num_gpus else None
    return most if memory_bytes is None else max(1, min(most, int(memory_bytes // BYTES_A_CHECK)))


def claim_mode(results: Path, on_gpu: bool) -> None:
    """A folder holds a dry run or a real one. Raises UserError."""
    path, mode = results / "checks/mode.txt", "GPU" if on_gpu else "dry run"
    if path.exists() and path.read_text().strip() != mode:
        other = f"choose {option_as_typed('RESULTS', '')}"
        raise UserError(f"{results} holds a {path.read_text().strip()} check, and this is a {mode}; {other}")
    write_text_atomically(path, mode + "\n")


def gpu_gone() -> str:
    """'' where it computes."""
    try:
        done = subprocess.run([interpreter_path(), "-c", ALIVE], capture_output=True, text=True, timeout=30, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return "it does not answer"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it does not compute"])[-1][:200]


def make_report(results: Path, limit_s: float) -> bool:
    """Of what was timed; returns whether it was written."""
    if not (results / "runs.csv").exists():
        return False
    command = [interpreter_path(), "-m", "scripts.pages.page", "--results", str(results)]
    try:
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=limit_s).returncode == 0
    except subprocess.TimeoutExpired:
        again = f"{bench_command('report', results=results)} --no-measure"
        print(f"warning: no time was left for the report; {again} writes it")
        return False


def print_begin(on_gpu: bool, listed: list[Check], state: State, seconds: float) -> None:
    if not on_gpu:
        print("dry run: there is no NVIDIA GPU here, and the CPU takes its place; its speeds say nothing")
    done = sum(map(state.is_done, listed))
    until = f", of which nothing starts after {seconds:g} s" if seconds else ""
    print(f"{len(listed) - done} of {len(listed)} checks are left{until}", flush=True)


def print_end(listed: list[Check], state: State, why_left: dict[str, str], results: Path) -> int:
    """Returns the exit code: 1 where one failed, or none passed."""
    found = {check.name: state.ended[check.name]["status"] for check in listed if check.name in state.ended}
    failed = [name for name, status in found.items() if status == "failed"]
    counts = [f"{[*found.values()].count(status)} {status}" for status in ("passed", "failed", "skipped", "left")]
    needing = sum(why.startswith("needs ") for why in why_left.values())
    not_reached = len(why_left) - needing
    print(f"\n{', '.join(counts)} for several GPUs, {needing} need what is not here, {not_reached} not reached")
    print(f"page: {results / 'gpu-check.html'}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    if "passed" not in found.values():
        print("no check passed; the page says why each was left")
        return 1
    return int(bool(failed))


if __name__ == "__main__":
    run_main_and_exit(
        lambda: main(tyro.cli(GpuCheckFlags, description=__doc__)), errors=(UserError, ValueError), writes="gpu-check"
    )
