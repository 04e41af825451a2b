"""Does a reference of fixed work explain this machine's noise? A sitting of launches, each window between references.

    python -m scripts.probe.yardstick --output results/yardstick.csv     # a sitting; some minutes
    python -m scripts.probe.yardstick --output results/yardstick.csv     # an hour later: the sittings are compared
    python -m scripts.probe.yardstick --output results/yardstick.csv --rounds 0     # only what the file says

A round launches the baseline and DDP on all ranks, each a process or torchrun of its own, in random order. The suite's
loop times its windows; before and after each, outside the clock, comes the reference: steps of the bare model on one
batch in memory, without loader or exchange. `together`: on every rank at once, the mean of their seconds, whose
expectation is another one for each number of ranks. `alone`: on rank 0 while the others wait, the same work for both.
"""

import dataclasses
import datetime
import functools
import itertools
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
from scipy.special import stdtrit
from tqdm import tqdm

from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from scripts.analysis.stats import judged, welch
from scripts.analysis.words import interval, text_table
from scripts.probe.measured import ROOT, add_rows

WARMUP_STEPS = 4
REFERENCES = ("reference_s", "alone_s")


@dataclasses.dataclass(frozen=True)
class Options:
    output: Path = Path("results/yardstick.csv")
    """CSV file of sittings, to which this one is added."""
    rounds: int = 6
    """Launches of each layout in this sitting; 0: none."""
    config: str = "configs/smoke.yaml"
    reference_steps: int = 6
    """Its steps; about a second of them is long enough."""
    seed: int = 0
    """Of the order in each round."""


def main(options: Options) -> int:
    if options.rounds:
        measure(options)
    if not options.output.exists():
        raise UserError(f"{options.output} is not there: measure a sitting first, with --rounds 6")
    launches = per_launch(pandas.read_csv(options.output))
    for table in (spreads(launches), between_sittings(launches), within_sitting(launches)):
        print(text_table(table, left=range(3)), end="\n\n")
    return 0


def measure(options: Options) -> None:
    """A sitting: `rounds` launches of each layout, a row a window. What was measured before a failure stays."""
    num_ranks = int(os.environ.get("NPROC") or 2)
    threads = str(max(1, len(os.sched_getaffinity(0)) // num_ranks))
    config, rng = load_config(["--config", options.config]), random.Random(options.seed)
    flags = ["--config", options.config, "--loader", "folder", "--epochs", "1", "--account-steps", "0", "--lr", "0"]
    flags += ["--warmup-steps", str(WARMUP_STEPS), "--steps", str(WARMUP_STEPS + config.windows * config.window_steps)]
    work = [str(num_ranks), str(options.reference_steps)]
    env = os.environ | {"OMP_NUM_THREADS": threads, "THREADS_PER_RANK": threads, "GLOO_SOCKET_IFNAME": "lo"}
    sitting = datetime.datetime.now().isoformat(timespec="seconds")
    order = [ranks for _ in range(options.rounds) for ranks in rng.sample([1, num_ranks], 2)]
    for place, ranks in enumerate(tqdm(order, desc="launches", disable=None, leave=False)):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, *torchrun, "-m", "scripts.probe.yardstick", "rank", str(ranks), *work, *flags]
        before = _busy_s()
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"the ranks did not get to the end:\n{done.stderr[-2000:]}")
        of_launch = {"sitting": sitting, "round": place // 2, "ranks": ranks, "other_cores": _other_cores(before)}
        lines = [line.removeprefix("window: ") for line in done.stdout.splitlines() if line.startswith("window: ")]
        add_rows(options.output, [of_launch | {"window": n} | json.loads(line) for n, line in enumerate(lines)])


def _busy_s() -> numpy.ndarray:
    """[seconds by the clock, CPU seconds of the whole machine, of what this process started]"""
    times, own = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = times.user + times.system + times.nice + times.irq + times.softirq if psutil.LINUX else numpy.nan
    return numpy.array([time.perf_counter(), busy, own.ru_utime + own.ru_stime])


def _other_cores(before: numpy.ndarray) -> float:
    """How many cores other programs kept busy since then, on average."""
    wall_s, busy_s, own_s = _busy_s() - before
    return round((busy_s - own_s) / wall_s, 2)


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
            self.worker, self.reduce, self.last = worker, reduce, None
            self.net = build_model(config, num_classes, device)
            self.optimizer = build_optimizer(config, self.net)
            self.share, self.least = (config.global_batch // count for count in (worker.world_size, most_ranks))
            self.images = torch.randn(self.share, 3, config.image_size, config.image_size, device=device)
            self.target = torch.arange(self.share, device=device) % num_classes
            self.work(self.share)

        def work(self, images: int) -> float:
            synchronize(self.device)
            began_s = time.perf_counter()
            for _ in range(steps):
                self.optimizer.zero_grad()
                cross_entropy(self.net(self.images[:images]), self.target[:images]).backward()
                self.optimizer.step()
            synchronize(self.device)
            return time.perf_counter() - began_s

        def references(self) -> numpy.ndarray:
            """Seconds of both; every sum over the ranks makes them wait for each other."""
            gather([0.0], self.worker, self.reduce)
            together = gather([self.work(self.share)], self.worker, self.reduce).mean().item()
            alone_s = 0.0 if self.worker.rank else self.work(self.least)
            return numpy.array([together, gather([alone_s], self.worker, self.reduce)[0].item()])

        def start(self):
            self.last = self.references() if self.last is None else self.last
            super().start()

        def stop(self):
            seconds, step_ms = super().stop()
            after = self.references()
            found = dict(zip(REFERENCES, (self.last + after) / 2, strict=True))
            self.last = after
            if self.worker.rank == 0:
                print("window:", json.dumps({"steps": len(step_ms), "seconds": seconds} | found), flush=True)
            return seconds, step_ms

    def fit_with_references(config, worker, **parts):
        reduce = parts.get("reduce", lambda tensor: tensor)
        settings = {"config": config, "worker": worker, "num_classes": len(parts["train"].classes), "reduce": reduce}
        fit(config, worker, **parts, make_clock=functools.partial(YardstickClock, **settings))

    (single if ranks == 1 else ddp).main(load_config(flags), fit=fit_with_references)


def per_launch(windows: pandas.DataFrame) -> pandas.DataFrame:
    """A row a launch: log of steps a second, and of the same times each reference (steps in the reference's time)."""
    grouped = windows.groupby(["sitting", "ranks", "round"])
    launches = grouped[["steps", "seconds"]].sum().join(grouped[[*REFERENCES, "other_cores"]].mean())
    launches["raw"] = numpy.log(launches.steps / launches.seconds)
    for name in REFERENCES:
        launches[f"log_{name}"] = numpy.log(launches[name])
        launches[name] = launches.raw + launches[f"log_{name}"]
    return launches.reset_index()


def spreads(launches: pandas.DataFrame) -> list[tuple[str, ...]]:
    """Of each sitting and layout: sd over launches as it is and divided, and the correlation with each reference."""
    lines = [("sitting", "ranks", "launches", "other cores busy", "sd raw", "/ reference", "/ alone", "r", "r alone")]
    for (sitting, ranks), part in launches.groupby(["sitting", "ranks"]):
        sds = [f"{100 * part[name].std():.1f} %" for name in ("raw", *REFERENCES)]
        correlations = [f"{-part.raw.corr(part[f'log_{name}']):.2f}" for name in REFERENCES]
        lines.append((sitting, str(ranks), str(len(part)), f"{part.other_cores.mean():.2f}", *sds, *correlations))
    return lines


def between_sittings(launches: pandas.DataFrame) -> list[tuple[str, ...]]:
    """Each sitting over the one before: equal things, so that a ratio of 1 is right. Intervals of launches alone."""
    lines = [("later over earlier sitting", "ranks", "", "raw", "/ reference", "/ alone")]
    sittings = sorted(launches.sitting.unique())
    for earlier, later in itertools.pairwise(sittings):
        for ranks, part in launches.groupby("ranks"):
            two = [part[part.sitting == each] for each in (later, earlier)]
            cells = [_ratio(*(each[name].to_numpy() for each in two)) for name in ("raw", *REFERENCES)]
            lines.append((f"{later} / {earlier}", str(ranks), "", *cells))
    return lines


def within_sitting(launches: pandas.DataFrame) -> list[tuple[str, ...]]:
    """All ranks over one, paired by round: the reference alone may divide it only where its own ratio is 1."""
    lines = [("all ranks over one in a sitting", "", "", "raw", "/ alone", "sd raw", "sd / alone", "alone itself")]
    for sitting, part in launches.groupby("sitting"):
        wide = part.pivot(index="round", columns="ranks", values=["raw", "alone_s", "log_alone_s"]).dropna()
        logs = {name: (wide[name].iloc[:, -1] - wide[name].iloc[:, 0]).to_numpy() for name in wide.columns.levels[0]}
        sds = [f"{100 * logs[name].std(ddof=1):.1f} %" for name in ("raw", "alone_s")]
        ratios = [_ratio(logs[name]) for name in ("raw", "alone_s", "log_alone_s")]
        lines.append((sitting, "", "", *ratios[:2], *sds, ratios[2]))
    return lines


def _ratio(of: numpy.ndarray, to: numpy.ndarray | None = None) -> str:
    """exp of the difference of means of logs, or of the mean of paired differences, with its 95 % interval."""
    if min(len(of), len(of if to is None else to)) < 2:
        return "one launch"
    if to is None:
        difference, error, df = of.mean(), of.std(ddof=1) / len(of) ** 0.5, len(of) - 1
    else:
        difference, (error, df) = of.mean() - to.mean(), welch(of, to)
    estimate = judged(difference, error, df, stdtrit(df, 0.975))
    return f"{estimate.value:.3f} {interval(estimate.low, estimate.high, '{:.3f}'.format)}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(*map(int, sys.argv[2:5]), sys.argv[5:])
        sys.exit()
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
