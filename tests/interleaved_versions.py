"""Does this version train as fast as an earlier one? Both at once, and their timed windows alternate.

    PYTHONPATH=. .venv/bin/python tests/interleaved_versions.py 03b5e43 HEAD --strategy ddp

`./bench ab` times whole runs, each of a minute or more, and a machine's speed changes from one to the next. Here the
ranks of both versions run at the same time, and only those of one version compute: the others wait at the start of
their next timed window. So two windows that are compared are seconds apart. A launch is one start of both versions; the
interval is over launches. No file of a version is changed: each rank hands its engine a clock that waits.
Writes results/measured/versions.csv. On two cores a launch of six pairs took about 50 seconds.
"""

import contextlib
import dataclasses
import functools
import importlib
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

WARMUP_STEPS, WINDOW_STEPS = 4, 2
START_LIMIT_S, WINDOW_LIMIT_S = 180, 120


@dataclasses.dataclass(frozen=True)
class Options:
    first: tyro.conf.Positional[str]
    second: tyro.conf.Positional[str]
    strategy: str = "single"
    num_ranks: int = 1
    launches: int = 8
    pairs: int = 6
    """Pairs of windows in a launch."""
    flags: str = "--config configs/smoke.yaml"
    """Configuration fields of both versions."""


class Side:
    """The ranks of one version, which wait for their turns."""

    def __init__(self, connections: list[socket.socket], limit_s: float = WINDOW_LIMIT_S):
        self.files = []
        for connection in connections:
            connection.settimeout(limit_s)
            self.files.append(connection.makefile("rw"))

    def start_window(self) -> None:
        for file in self.files:
            file.write("go\n")
            file.flush()

    def finish_window(self) -> tuple[float, float]:
        """(seconds, CPU seconds of rank 0) of the window, once all ranks wait again or have ended."""
        times = {}
        for file in self.files:
            rank, seconds, cpu_s = file.readline().split()
            times[int(rank)] = float(seconds), float(cpu_s)
        self.wait_until_ready()
        return times[0]

    def wait_until_ready(self) -> None:
        for file in self.files:
            line = file.readline()
            assert line in ("ready\n", ""), line


@contextlib.contextmanager
def running_ranks(tree: Path, options: Options) -> Iterator[Side]:
    """The ranks of the version in `tree`, at the start of their first timed window."""
    from scripts.studies.allreduce.launch_ranks import rank_environment, torchrun_command

    num_windows = options.pairs + 1  # after the last one the ranks exit, which is no condition for a window to count
    steps = WARMUP_STEPS + WINDOW_STEPS * num_windows
    flags = [*options.flags.split(), "--epochs", "1", "--steps", str(steps), "--windows", str(num_windows)]
    flags += ["--warmup-steps", str(WARMUP_STEPS), "--window-steps", str(WINDOW_STEPS), "--account-steps", "0"]
    flags += ["--lr", "0"]  # the same work for ever: a loss that sinks meets numbers that a CPU is slow with
    with tempfile.TemporaryDirectory(prefix="versions-") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/turns")
        server.listen()
        server.settimeout(START_LIMIT_S)
        words, variables = [sys.executable], {}
        if options.strategy != "single":
            words, variables = torchrun_command(options.num_ranks, folder)
        variables = rank_environment(threads=1) | variables | {"PYTHONPATH": str(tree)}
        command = [*words, __file__, "rank", f"{folder}/turns", options.strategy, *flags]
        with (
            Path(folder, "log").open("w+") as log,
            subprocess.Popen(command, cwd=tree, env=variables, stdout=log, stderr=log) as ranks,
        ):
            try:
                side = Side([server.accept()[0] for _ in range(options.num_ranks)])
                side.wait_until_ready()
                yield side
                assert ranks.wait(WINDOW_LIMIT_S) == 0
            except BaseException:
                log.seek(0)
                print(log.read(), file=sys.stderr)
                raise
            finally:
                ranks.terminate()


def time_launch(trees: tuple[Path, Path], options: Options) -> list[tuple[float, float]]:
    """Logarithms of the ratios of speeds, second over first version, a pair each: by the wall clock, by CPU time."""
    from tqdm import tqdm

    ratios = []
    with running_ranks(trees[0], options) as first, running_ranks(trees[1], options) as second:
        for pair in tqdm(range(options.pairs), desc="pairs of windows", disable=None, leave=False):
            times = {}
            for side in (first, second) if pair % 2 else (second, first):
                side.start_window()
                times[side] = side.finish_window()
            ratios.append((math.log(times[first][0] / times[second][0]), math.log(times[first][1] / times[second][1])))
        for side in (first, second):
            side.start_window()
            side.finish_window()
    return ratios


def rank(socket_path: str, strategy: str, flags: list[str]) -> None:
    """One rank of the version whose folder is the current one."""
    import torch

    new = Path("benchmarks/common/train").exists()
    common = "benchmarks.common."
    Clock = importlib.import_module(common + ("train.clock" if new else "clock")).Clock
    fit = importlib.import_module(common + ("train.engine" if new else "engine")).fit
    load_config = importlib.import_module(common + ("config.config" if new else "config")).load_config
    turns = socket.socket(socket.AF_UNIX)
    turns.connect(socket_path)
    turn = turns.makefile("rw")

    class WaitingClock(Clock):
        def start(self) -> None:
            turn.write("ready\n")
            turn.flush()
            assert turn.readline() == "go\n"
            self.cpu_started_s = time.process_time()
            super().start()

        def stop(self) -> tuple[float, list[float]]:
            seconds, step_ms = super().stop()
            cpu_s = time.process_time() - self.cpu_started_s
            turn.write(f"{os.environ.get('RANK', 0)} {seconds} {cpu_s}\n")
            turn.flush()
            return seconds, step_ms

    module: Any = importlib.import_module(f"benchmarks.{strategy}")
    config = load_config(flags)
    torch.manual_seed(0)
    if not new:  # before strategies were objects
        module.main(config, fit=functools.partial(fit, make_clock=WaitingClock))
        return
    built = module.build(config)
    fit(built, WaitingClock(built.context.device, built.devices))


def main(options: Options) -> None:
    import numpy

    from scripts.stats.intervals import geometric_mean
    from scripts.studies.ab.worktrees import checked_out, find_commit
    from scripts.studies.measured_csv import MEASURED_FOLDER, add_rows

    commits = [find_commit(options.first), find_commit(options.second)]
    with checked_out(commits) as folders:
        trees = Path(folders[commits[0]]), Path(folders[commits[1]])
        for tree in trees:
            data = tree / "data"
            if not (data / "imagenet-mini").exists():
                data.mkdir(exist_ok=True)
                (data / "imagenet-mini").symlink_to(Path("data/imagenet-mini").resolve())
        launches = []
        for number in range(options.launches):
            launches.append(numpy.mean(time_launch(trees, options), axis=0))
            print(f"launch {number + 1}: {numpy.exp(launches[-1])}", flush=True)
    rows = []
    for quantity, logs in zip(("images per second", "images per CPU second"), numpy.transpose(launches), strict=True):
        ratio, low, high = geometric_mean(logs)
        rows.append({"strategy": options.strategy, "first": commits[0][:12], "second": commits[1][:12]})
        rows[-1] |= {"quantity": quantity, "ratio": ratio, "ci_low": low, "ci_high": high}
        rows[-1] |= {"num_launches": options.launches, "num_pairs": options.launches * options.pairs}
        print(f"{options.strategy}, {quantity}: {ratio:.4f} [{low:.4f}, {high:.4f}]")
    add_rows(MEASURED_FOLDER / "versions.csv", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], sys.argv[3], sys.argv[4:])
        sys.exit()
    main(tyro.cli(Options, description=__doc__))
