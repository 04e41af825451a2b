"""Does a reference of fixed work explain this machine's noise? A sitting of launches, each window between references.

    python -m scripts.probe.yardstick --output results/measured/yardstick.csv    # a sitting; again an hour later
    python -m scripts.probe.yardstick --output results/measured/yardstick.csv --rounds 0     # what the file says

A round launches the baseline and DDP on all ranks, each a torchrun or process of its own, in random order. The suite's
own loop times the windows. Before and after each, outside the clock, come steps of the bare model on one batch in
memory, without loader or exchange: `reference_s`, every rank at once with its share of the batch (mean of the ranks);
and `alone_s`, rank 0 with the least share while the others wait, the same work for both layouts.
"""

import dataclasses
import datetime
import functools
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pandas
import psutil
import tyro
from tqdm import tqdm

from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from scripts.analysis.words import text_table
from scripts.analysis.yardstick import RATIOS_ARE, REFERENCES, SPREADS_ARE, first_and_last, per_launch, spreads
from scripts.probe.measured import ROOT, add_rows

WARMUP_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Options:
    output: Path = Path("results/measured/yardstick.csv")
    """CSV file of sittings, to which this one is added."""
    rounds: int = 6
    """Launches of each layout, at least 2; 0: only say what the file says."""
    config: str = "configs/smoke.yaml"
    reference_steps: int = 6
    """Steps of a reference; together they should take about a second."""
    seed: int = 0
    """Of the order in each round."""


def main(options: Options) -> int:
    if options.rounds not in (0, *range(2, 1000)):
        raise UserError(f"--rounds is {options.rounds}, but a spread needs at least 2")
    if options.rounds:
        measure(options)
    if not options.output.exists():
        raise UserError(f"{options.output} is not there: measure a sitting first, without --rounds 0")
    launches = per_launch(pandas.read_csv(options.output))
    print(text_table(spreads(launches), left=[0]))
    print(SPREADS_ARE, end="\n\n")
    print(text_table(first_and_last(launches), left=[0]))
    print(RATIOS_ARE)
    return 0


def measure(options: Options) -> None:
    """A sitting, a row a window. What was measured before a launch fails stays in the file. Raises UserError."""
    config, rng = load_config(["--config", options.config]), random.Random(options.seed)
    num_ranks = int(os.environ.get("NPROC") or 2)
    threads = str(max(1, len(os.sched_getaffinity(0)) // num_ranks))
    env = os.environ | {"OMP_NUM_THREADS": threads, "THREADS_PER_RANK": threads, "GLOO_SOCKET_IFNAME": "lo"}
    flags = ["--config", options.config, "--loader", "folder", "--epochs", "1", "--account-steps", "0", "--lr", "0"]
    flags += ["--warmup-steps", str(WARMUP_STEPS), "--steps", str(WARMUP_STEPS + config.windows * config.window_steps)]
    sitting = datetime.datetime.now().isoformat(timespec="seconds")
    order = [ranks for _ in range(options.rounds) for ranks in rng.sample([1, num_ranks], 2)]
    for place, ranks in enumerate(tqdm(order, desc="launches", disable=None, leave=False)):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, *torchrun, "-m", "scripts.probe.yardstick", "rank", str(ranks), str(num_ranks)]
        before = _cpu_s()
        command += [str(options.reference_steps), *flags]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"the ranks did not get to the end:\n{done.stderr[-2000:]}")
        wall_s, busy_s, own_s = _cpu_s() - before
        launch = {"sitting": sitting, "round": place // 2, "ranks": ranks, "other_cores": (busy_s - own_s) / wall_s}
        lines = [line.removeprefix("window: ") for line in done.stdout.splitlines() if line.startswith("window: ")]
        add_rows(options.output, [launch | {"window": n} | json.loads(line) for n, line in enumerate(lines)])


def _cpu_s() -> numpy.ndarray:
    """[seconds by the clock, CPU seconds of all programs on the machine, of those that this process started]"""
    every, own = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return numpy.array([time.perf_counter(), every.user + every.nice + every.system, own.ru_utime + own.ru_stime])


def rank(ranks: int, most_ranks: int, steps: int, flags: list[str]) -> None:
    """One rank of the suite's own loop, with references around its windows. Rank 0 prints each window."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks import ddp, single
    from benchmarks.common.agreement import gather
    from benchmarks.common.clock import Clock
    from benchmarks.common.devices import synchronize
    from benchmarks.common.engine import fit
    from benchmarks.common.model import build_model, build_optimizer

    class YardstickClock(Clock):
        def __init__(self, device, config, worker, num_classes, reduce):
            super().__init__(device)
            self.gather, self.rank = functools.partial(gather, worker=worker, reduce=reduce), worker.rank
            self.net, self.before = build_model(config, num_classes, device), None
            self.optimizer = build_optimizer(config, self.net)
            self.share, self.least = (config.global_batch // count for count in (worker.world_size, most_ranks))
            self.images = torch.randn(self.share, 3, config.image_size, config.image_size, device=device)
            self.target = torch.arange(self.share, device=device) % num_classes
            self.work(self.share)

        def work(self, num_images: int) -> float:
            synchronize(self.device)
            began_s = time.perf_counter()
            for _ in range(steps):
                self.optimizer.zero_grad()
                cross_entropy(self.net(self.images[:num_images]), self.target[:num_images]).backward()
                self.optimizer.step()
            synchronize(self.device)
            return time.perf_counter() - began_s

        def references(self) -> numpy.ndarray:
            """Seconds of both; every sum over the ranks makes them wait for each other."""
            self.gather([0.0])
            together = self.gather([self.work(self.share)]).mean().item()
            alone = self.gather([0.0 if self.rank else self.work(self.least)])[0].item()
            return numpy.array([together, alone])

        def start(self):
            self.before = self.references() if self.before is None else self.before
            super().start()

        def stop(self):
            seconds, step_ms = super().stop()
            after = self.references()
            found = dict(zip(REFERENCES, (self.before + after) / 2, strict=True))
            self.before = after
            if self.rank == 0:
                print("window:", json.dumps({"steps": len(step_ms), "seconds": seconds} | found), flush=True)
            return seconds, step_ms

    def fit_with_references(config, worker, **parts):
        reduce = parts.get("reduce", lambda tensor: tensor)
        known = {"config": config, "worker": worker, "num_classes": len(parts["train"].classes), "reduce": reduce}
        fit(config, worker, **parts, make_clock=functools.partial(YardstickClock, **known))

    (single if ranks == 1 else ddp).main(load_config(flags), fit=fit_with_references)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(*map(int, sys.argv[2:5]), sys.argv[5:])
        sys.exit()
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
