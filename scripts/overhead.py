"""What the suite costs: its ddp beside a bare DDP loop, and a timed window with its clock beside one without.

    python -m scripts.overhead --pairs 5                       # images/s of benchmarks.ddp / of scripts.bare_ddp
    python -m scripts.overhead --what instrumentation          # seconds of a window with marks / without

`loop`: each pair is two torchruns of the same model, data, batches and threads, one after the other, in changing
order; 1 means that the suite is as fast. `instrumentation`: windows of the same training in one process, by turns
with and without the clock; 1 means that it costs nothing. Beside the wall clock, CPU time (user and system, of the
first rank) gives a second ratio, which other programs on the machine disturb less.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unittest import mock

import numpy
import tyro
from scipy.stats import t as student_t
from tqdm import tqdm

from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
WARMUP_STEPS, WINDOW_STEPS = 4, 10
SHORT_WINDOW_STEPS, PAIRS_OF_A_SAMPLE = 2, 25  # short, so that both windows of a pair meet the same machine
NUM_EMPTY_WINDOWS = 1000


@dataclasses.dataclass(frozen=True)
class Options:
    what: Literal["loop", "instrumentation"] = "loop"
    """Compare the suite with a bare loop, or a window with its clock with one without."""
    pairs: int = 5
    """Pairs of runs; for windows, hundreds of pairs."""
    config: str = "configs/smoke.yaml"
    data: str = ""
    """Default: the configuration's."""
    steps: int = 40
    """Timed steps of a run (loop)."""
    fail_under: float = 0.0
    """Exit with 1 where the ratio of the wall clock lies below."""


def main(options: Options) -> int:
    if options.pairs < 2:
        raise UserError(f"--pairs is {options.pairs}, but a spread needs at least 2")
    flags = ["--config", options.config, *(["--data", options.data] if options.data else [])]
    compare = compare_loops if options.what == "loop" else compare_windows
    ratios = compare(options, flags)
    for name, values in ratios.items():
        value, low, high = interval(values)
        spread = f"from {min(values):.4f} to {max(values):.4f}, standard deviation {statistics.stdev(values):.4f}"
        print(f"{name}: {value:.4f} [{low:.4f}, {high:.4f}] (95 %, n={len(values)}); {spread}")
    return int(interval(next(iter(ratios.values())))[0] < options.fail_under)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the ratios of pairs and its 95 % interval, by Student's t of their logarithms."""
    logs = numpy.log(ratios)
    margin = student_t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    return tuple(float(numpy.exp(logs.mean() + shift)) for shift in (0, -margin, margin))


def compare_loops(options: Options, flags: list[str]) -> dict[str, list[float]]:
    """Images a second, and a CPU second, of benchmarks.ddp over those of the bare loop, for each pair."""
    config = load_config(flags)
    num_ranks = int(os.environ.get("NPROC") or 2)
    commands = {"suite": suite_command(options, config, flags), "bare": bare_command(options, config)}
    measured: dict[str, list[dict]] = {"suite": [], "bare": []}
    with tqdm(total=2 * options.pairs, desc="runs", disable=None, leave=False) as bar:
        for pair in range(options.pairs):
            for name in sorted(commands, reverse=pair % 2 == 0):
                measured[name].append(run(num_ranks, commands[name]))
                bar.update()
    return {
        f"suite / bare, images per {unit}": [
            suite[key] / bare[key] for suite, bare in zip(measured["suite"], measured["bare"], strict=True)
        ]
        for unit, key in (("second", "images_per_s"), ("CPU second", "images_per_cpu_s"))
    }


def suite_command(options: Options, config: Config, flags: list[str]) -> list[str]:
    """benchmarks.ddp with windows that hold options.steps steps after the same warm-up, in one epoch."""
    return [
        "scripts.overhead", "suite-rank", *flags, "--epochs", "1", "--steps", str(WARMUP_STEPS + options.steps),
        "--warmup-steps", str(WARMUP_STEPS), "--windows", str(options.steps // WINDOW_STEPS),
        "--window-steps", str(WINDOW_STEPS), "--account-steps", "0",
    ]  # fmt: skip


def bare_command(options: Options, config: Config) -> list[str]:
    shared = "arch data image_size global_batch workers momentum weight_decay".split()
    values = {name: getattr(config, name) for name in shared}
    values |= {"lr": config.lr * config.global_batch / config.lr_batch}
    values |= {"warmup_steps": WARMUP_STEPS, "timed_steps": options.steps // WINDOW_STEPS * WINDOW_STEPS}
    return ["scripts.bare_ddp", json.dumps(values)]


def run(num_ranks: int, module: list[str]) -> dict:
    """What a torchrun of `module` prints after `timed:`. Raises UserError where it fails."""
    threads = str(max(1, len(os.sched_getaffinity(0)) // num_ranks))
    env = os.environ | {"OMP_NUM_THREADS": threads, "THREADS_PER_RANK": threads, "GLOO_SOCKET_IFNAME": "lo"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    done = subprocess.run([*torchrun, "-m", *module], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("timed:"):
            return json.loads(line.removeprefix("timed:"))
    raise UserError(f"{module[0]} did not get to its end:\n{done.stderr[-2000:]}")


def suite_rank(flags: list[str]) -> None:
    """One rank of benchmarks.ddp, with CPU time taken at both ends of its timed windows."""
    from benchmarks import ddp
    from benchmarks.common.clock import Clock

    windows: list[tuple[int, float, float]] = []  # steps, seconds, CPU seconds

    class WatchedClock(Clock):
        def start(self):
            super().start()
            self.cpu_started_s = time.process_time()

        def stop(self):
            cpu_s = time.process_time() - self.cpu_started_s
            seconds, step_ms = super().stop()
            windows.append((len(step_ms), seconds, cpu_s))
            return seconds, step_ms

    config = load_config(flags)
    with mock.patch("benchmarks.common.engine.Clock", WatchedClock):
        ddp.main(config)
    steps, seconds, cpu_s = (sum(column) for column in zip(*windows, strict=True))
    images = config.global_batch * steps
    if os.environ["RANK"] == "0":
        print("timed:", json.dumps({"images_per_s": images / seconds, "images_per_cpu_s": images / cpu_s}), flush=True)


def compare_windows(options: Options, flags: list[str]) -> dict[str, list[float]]:
    """Seconds, and CPU seconds, of windows with the clock over those without.

    A sample is the median over pairs of neighbours: what disturbs one window in many does not count.
    """
    from benchmarks import single
    from benchmarks.common.clock import Clock
    from benchmarks.common.devices import synchronize

    os.environ["THREADS_PER_RANK"] = "1"  # more would wait for each other at the mercy of other programs
    # A short step, so that what the clock adds weighs most; with a learning rate of 0, so that the loss on the one
    # batch does not sink to numbers that a CPU is slow with.
    flags = [*flags, "--image-size", "32", "--global-batch", "8", "--loader", "synthetic", "--lr", "0"]
    flags += ["--steps", "1000000"]
    with mock.patch.object(single, "fit") as fit:  # everything that the script builds, without training
        single.main(load_config(flags))
    *_, train, _, step = fit.call_args.args
    batches, clock = iter(train), Clock(fit.call_args.args[1].device)

    def window(start: Callable, tick: Callable, stop: Callable) -> numpy.ndarray:
        """Seconds and CPU seconds of a window."""
        began = numpy.array([time.perf_counter(), time.process_time()])
        start()
        for _ in range(SHORT_WINDOW_STEPS):
            step(*next(batches))
            tick()
        stop()
        return numpy.array([time.perf_counter(), time.process_time()]) - began

    def idle():
        synchronize(clock.device)

    ways = {"with": (clock.start, clock.tick, clock.stop), "without": (idle, lambda: None, idle)}
    window(*ways["without"])
    samples = []
    for _ in tqdm(range(4 * options.pairs), desc="samples", disable=None, leave=False):
        ratios = []
        for pair in range(PAIRS_OF_A_SAMPLE):
            taken = {name: window(*ways[name]) for name in sorted(ways, reverse=pair % 2 == 0)}
            ratios.append(taken["with"] / taken["without"])
        samples.append(numpy.median(ratios, axis=0))
    seconds, cpu_s = numpy.transpose(samples).tolist()
    began = time.process_time()
    for _ in range(NUM_EMPTY_WINDOWS):
        clock.start()
        for _ in range(SHORT_WINDOW_STEPS):
            clock.tick()
        clock.stop()
    alone_us = 1e6 * (time.process_time() - began) / NUM_EMPTY_WINDOWS
    print(f"the clock by itself: {alone_us:.1f} us of CPU time a window of {SHORT_WINDOW_STEPS} steps")
    return {"window with / without clock, seconds": seconds, "window with / without clock, CPU seconds": cpu_s}


if __name__ == "__main__":
    if sys.argv[1:2] == ["suite-rank"]:
        suite_rank(sys.argv[2:])
        sys.exit()
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
