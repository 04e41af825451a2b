"""Proves that strategies compute the same update: each one's weights against those of a single process.

    python -m scripts.proof.verify --results results/x          # or: make verify RESULTS=results/x
    CONFIG=configs/smoke.yaml ARGS="--split-size 8" STRATEGIES=model_parallel python -m scripts.proof.verify

Proves what the runs of a set were asked, each strategy and setting once; where CONFIG or ARGS is given, or the set has
no runs, what bench-all would run. Every proof is a run through the strategy's launcher, at the same settings but for
its length, augmentation and threads; scripts/proof/reference.py is trained as the run says that it divides its work,
and the two are compared. Writes equivalence.csv into the set and the runs into its verify/. Exit code: 1 where a
strategy fails, 2 for a mistake found before the first run.
"""

import contextlib
import dataclasses
import datetime
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import tyro

from benchmarks.common.errors import UserError
from benchmarks.common.relay import relay
from benchmarks.common.results import append_rows, json_cell, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.proof import wanted
from scripts.proof.judge import judge
from scripts.suite import plan, preflight, schedule

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Options:
    steps: int = 20
    """Optimizer steps of each proof, over two epochs."""
    results: Path | None = None
    """Result set; default: RESULTS, else results/latest, else a new one."""
    missing: bool = False
    """Prove only what has no row in the set's equivalence.csv yet."""


def main(options: Options) -> int:
    given = plan.read_variables()
    results = options.results or given.results or newest()
    runs = to_prove(given, results, options.steps)
    if options.missing:
        runs = wanted.not_proved(runs, results)
    results = preflight.open_set(results).resolve()
    folder = preflight.open_set(results / "verify")
    torch.set_num_threads(1)  # as the ranks have: other threads, other sums
    print(f"{'strategy':<18} {'ranks':>5} {'steps':>5}  {'largest relative difference':<28} {'tolerance':>9}  verdict")
    verdicts = []
    # in the set, so that all nodes of a cluster see it
    with schedule.claimed(folder), tempfile.TemporaryDirectory(prefix="weights-", dir=folder) as scratch:
        for number, run in enumerate(runs, 1):
            row = prove(run, folder, Path(scratch), f"{number}/{len(runs)}")
            append_rows(results, "equivalence", [row])
            print(line_of(row), flush=True)
            verdicts.append(row["verdict"])
    print(f"\ndifference: max |a - b| / max |b| of the worst tensor of weights and BatchNorm statistics\nin {results}")
    return int("failed" in verdicts)


def newest() -> Path | None:
    latest = Path("results/latest")
    return latest.resolve() if latest.exists() else None


def to_prove(given: plan.Given, results: Path | None, num_steps: int) -> list[plan.Run]:
    """What CONFIG and ARGS say, where one is given; else the set's own; for one without runs, what bench-all would."""
    typed = os.environ.get("CONFIG") or given.args
    runs = [] if typed or results is None else wanted.of_set(given, results, num_steps)
    return runs or wanted.of_variables(given, num_steps)


def prove(run: plan.Run, folder: Path, scratch: Path, label: str) -> dict:
    """Run `run` in the set `folder`, compare its weights with its reference's, and return its row of the table."""
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    row = {"strategy": run.strategy, "steps": run.config.epochs * run.config.steps, "started_at": began}
    row["asked"] = json_cell(run.asked)
    weights_dir = scratch / label.replace("/", "-of-")
    started = start(
        dataclasses.replace(run, config=dataclasses.replace(run.config, checkpoint_dir=str(weights_dir))), folder, label
    )
    told = read_table(folder, "runs").set_index("run_id").loc[started.run_id]
    row["run_id"] = started.run_id
    if told.status != "ok":
        return row | {"verdict": "skipped" if told.status == "skipped" else "failed", "reason": told.reason}
    met = started.settings()["met"]
    row |= {"world_size": met["world_size"], "met": json_cell(met)}
    weights = torch.load(weights_dir / "last.pt", map_location="cpu", weights_only=True)["model"]
    shutil.rmtree(weights_dir)  # 90 MB a strategy
    if met["backend"] != "none" and run.asked["ranks"] > met["num_shards"] * met["num_stages"] == 1:
        return row | {"verdict": "failed", "reason": "ran on one rank, so that nothing was divided"}
    return row | judge(weights, run.config, met)


def start(run: plan.Run, folder: Path, label: str) -> RunFolder:
    """Run a strategy's launcher to its end; returns the run's folder, whose row is in the set."""
    number, total = map(int, label.split("/"))
    started: list[RunFolder] = []
    with relay() as children:
        schedule.run_each(
            [run],
            folder,
            children,
            lambda _, made: started.append(made),
            first=number,
            total=total,
            stdout=subprocess.DEVNULL,
        )
    if children.signum:
        sys.exit(128 + children.signum)
    return started[0]


def line_of(row: dict) -> str:
    """A row of the table on the terminal."""
    difference, tolerance = row.get("max_relative_difference"), row.get("tolerance")
    shown = "" if difference is None else f"{difference:.1e}" if difference else "0"
    shown += " (bit-identical)" if row.get("bit_identical") else ""
    verdict = row["verdict"].upper() if row["verdict"] == "failed" else row["verdict"]
    return (
        f"{row['strategy']:<18} {row.get('world_size', ''):>5} {row['steps']:>5}  {shown:<28} "
        f"{'' if tolerance is None else f'{tolerance:.1e}' if tolerance else '0':>9}  {verdict}"
        + (f": {row['reason']}" if row["reason"] else "")
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            sys.exit(main(tyro.cli(Options, description=__doc__)))
        sys.exit(130)
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
