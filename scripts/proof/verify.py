"""Proves that strategies compute the same update: each one's weights against those of a single process.

    RESULTS=results/x python -m scripts.proof.verify          # or: make verify RESULTS=results/x
    ARGS="--split-size 8" STRATEGIES=model_parallel python -m scripts.proof.verify

Proves what the ok runs of RESULTS (results/latest) were asked, each strategy and setting once; where CONFIG or ARGS is
given, or there are none, what bench-all would run. A proof is a run through the strategy's launcher, at the same
settings but for what scripts/proof/wanted.py says: length, augmentation, threads. scripts/proof/reference.py then
divides a step's work as the run says that it did, and the weights of both are compared. Writes equivalence.csv into
the set and the runs into its verify/. Exit code: 1 where a strategy fails, 2 for a mistake found before the first run.
"""

import contextlib
import dataclasses
import datetime
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tyro

from benchmarks.common.errors import UserError
from benchmarks.common.relay import relay
from benchmarks.common.results import append_rows, json_cell, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.proof import wanted
from scripts.suite import plan, preflight, schedule

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Options:
    steps: int = 20
    """Optimizer steps of each proof, over two epochs."""
    missing: bool = False
    """Prove only what has no row in the set's equivalence.csv yet."""


def main(options: Options) -> int:
    given = plan.read_variables()
    preflight.check_rendezvous()
    results = given.results or newest()
    runs = to_prove(given, results, options.steps)
    if options.missing and results:
        runs = wanted.not_proved(runs, results)
        if not runs:
            return 0
    results = preflight.open_set(results).resolve()
    folder = preflight.open_set(results / "verify")
    print(f"{'strategy':<18} {'ranks':>5} {'steps':>5}  {'largest relative difference':<28} {'tolerance':>9}  verdict")
    verdicts = []
    with schedule.claimed(folder):
        for number, run in enumerate(runs, 1):
            # in the set, so that all nodes of a cluster see it
            with tempfile.TemporaryDirectory(prefix="weights-", dir=folder) as scratch:  # 90 MB a strategy
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
    """What CONFIG and ARGS say, where one is given or the set has no ok run; else what the set's ok runs were asked."""
    has_runs = results is not None and (read_table(results, "runs").status == "ok").any()
    if os.environ.get("CONFIG") or given.args or not has_runs:
        return wanted.of_variables(given, num_steps)
    return wanted.of_set(given, results, num_steps)


def prove(run: plan.Run, folder: Path, scratch: Path, label: str) -> dict:
    """Run `run` in the set `folder`, compare its weights with its reference's, and return its row of the table."""
    from scripts.proof.judge import judge  # torch, which nobody needs where nothing is left to prove

    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    row = {"strategy": run.strategy, "steps": run.config.epochs * run.config.steps, "started_at": began}
    row["asked"] = json_cell(run.asked)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, checkpoint_dir=str(scratch)))
    made = start(run, folder, label)
    row["run_id"] = made.run_id
    rows = read_table(folder, "runs")
    status, reason = next(
        iter(rows.loc[rows.run_id == made.run_id, ["status", "reason"]].to_numpy()), ("", "left no row")
    )
    if status != "ok":
        return row | {"verdict": "skipped" if status == "skipped" else "failed", "reason": reason}
    met = made.settings()["met"]
    row |= {"world_size": met["world_size"], "met": json_cell(met)}
    if met["backend"] != "none" and run.asked["ranks"] > met["world_size"] == 1:
        return row | {"verdict": "failed", "reason": "ran on one rank, so that nothing was divided"}
    return row | judge(scratch / "last.pt", run.config, met)


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
    except (UserError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
