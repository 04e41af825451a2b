"""Proves that strategies compute the same update: compares each one's weights with those of a single process.

    ./bench verify --results results/x
    ./bench verify model_parallel -- --split-size 8

Of the settings of a set's ok runs, each once; with --config or flags, or without an ok run, of what ./bench run would
run. Method: docs/proof.md. Writes equivalence.csv into the set, and runs into its verify/. Exit code: 1 where one fails
or cannot be proved, 2 for a mistake before the first run.
"""

import dataclasses
import datetime
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common.rows import append_rows, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.memory.memory_check import layout_function
from scripts.results.formatting import printable
from scripts.results.settings import json_cell
from scripts.runner import loop, plan, preflight
from scripts.runner.default_batch import with_fitting_batch
from scripts.runner.request import Request, read_request
from scripts.shared.forward_signals import forward_signals
from scripts.verify import cases
from scripts.verify.options import VerifyOptions

if TYPE_CHECKING:
    from scripts.verify.reference import SavedState, Training

Row = dict[str, Any]
"""Columns of equivalence.csv."""

COLUMN_NOTE = (
    "nearest its tolerance: of the relative differences of weights, momentum and BatchNorm statistics of the run, "
    "evaluated and resumed, the one that is largest relative to its own tolerance"
)


@dataclasses.dataclass(frozen=True)
class Proof:
    """number: such as 2/9."""

    results: Path
    scratch: Path
    number: str


def main(options: VerifyOptions, flags: Sequence[str]) -> int:
    request = read_request(options, flags)
    preflight.check_rendezvous()
    results = request.results or latest_set()
    runs = to_prove(request, results, options)
    results = preflight.open_result_set(results).resolve()
    folder = preflight.open_result_set(results / "verify")
    print(f"{'strategy':<18} {'devices':>7} {'steps':>5}  {'nearest its tolerance':<28} {'tolerance':>9}  verdict")
    verdicts = set()
    with loop.lock_result_set(folder):
        for number, run in enumerate(plan.skip_what_does_not_fit(runs), 1):
            # in the set, so that all nodes of a cluster see it
            with tempfile.TemporaryDirectory(prefix="weights-", dir=folder) as scratch:
                proof = Proof(folder, Path(scratch), f"{number}/{len(runs)}")
                row = row_of(run) | prove(run, proof)
            append_rows(results, "equivalence", [row])
            print(line_of(row), flush=True)
            verdicts.add(row["verdict"])
    print(f"\n{COLUMN_NOTE}\nin {results}")
    if verdicts == {"skipped"}:
        print("nothing was proved: all were skipped")
        return 1
    return int(not verdicts <= {"ok", "skipped"})


def latest_set() -> Path | None:
    latest = Path("results/latest")
    return latest.resolve() if latest.exists() else None


def to_prove(request: Request, results: Path | None, options: VerifyOptions) -> list[plan.Run]:
    """Of a configuration and flags, else of the set's ok runs."""
    chosen = request.names_config or request.own_flags
    if chosen or results is None or not (read_table(results, "runs").status == "ok").any():
        request = with_fitting_batch(dataclasses.replace(request, results=results))
        return cases.cases_of_request(request, options.steps)
    return cases.cases_of_set(request, results, options.steps, str(options.data or ""))


def row_of(run: plan.Run) -> Row:
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    steps = run.config.epochs * run.config.steps
    return {"strategy": run.strategy, "steps": steps, "started_at": began, "asked": json_cell(run.requested)}


def prove(run: plan.Run, proof: Proof) -> Row:
    if run.skip:  # of plan.skip_what_does_not_fit
        return not_proved(f"would not fit: {run.skip}")
    import torch  # which nobody needs where nothing is left to prove

    from scripts.verify import trained_states

    run = dataclasses.replace(run, config=dataclasses.replace(run.config, checkpoint_dir=str(proof.scratch)))
    finished, problem = start(run, proof)
    row: Row = {"run_id": finished.run_id}
    if problem:
        return row | problem
    resolved = finished.resolved()
    row |= {"world_size": resolved["world_size"], "met": json_cell(resolved)}
    if resolved["backend"] != "none" and run.requested["ranks"] > resolved["world_size"] == 1:
        return row | {"verdict": "failed", "reason": "ran on one device, so that nothing was divided"}
    training = trained_states.training_of(run.config, resolved)
    if not training.exact and not run.config.checkpoint_keep:  # it rounds otherwise, which only the run could say
        again = cases.with_every_state(run)
        more = dataclasses.replace(proof, scratch=proof.scratch / "step by step")
        return row | {"steps": again.config.epochs * again.config.steps} | prove(again, more)
    if why_not := trained_states.why_no_reference(training):
        return row | {"verdict": "skipped", "reason": why_not}
    try:
        states = trained_states.saved_states(proof.scratch, training)
        found = compare_states(run, training, states, finished)
        return row | found | (prove_resumed(run, training, finished, proof) if found["verdict"] == "ok" else {})
    except torch.OutOfMemoryError:
        reason = "the reference, whole on one GPU, ran out of memory; prove a smaller --global-batch"
        return row | not_proved(f"would not fit: {reason}")
    finally:
        torch.cuda.empty_cache()  # else the next run finds that much less


def not_proved(reason: str) -> Row:
    return {"verdict": "not proved", "reason": reason}


def compare_states(run: plan.Run, training: "Training", states: "list[SavedState]", finished: RunFolder) -> Row:
    from scripts.verify.comparison import compare_with_reference

    num_parts = num_evaluated_parts(run.strategy, training, finished.resolved())
    return compare_with_reference(training, states, evaluation_of(finished), num_parts)


def num_evaluated_parts(strategy: str, training: "Training", resolved: dict[str, Any]) -> int:
    """One on each rank, which may have several devices."""
    layout = layout_function(strategy)(training.config, resolved["world_size"])
    return resolved["world_size"] if layout.whole_model_on_each else training.layout.num_shards


def prove_resumed(run: plan.Run, training: "Training", finished: RunFolder, proof: Proof) -> Row:
    """In the middle of the last epoch: the columns that change."""
    from scripts.verify import trained_states
    from scripts.verify.differences import compare_bits

    resumed = proof.scratch / "resumed"
    resumed.mkdir()
    shutil.copyfile(proof.scratch / "previous.pt", resumed / "last.pt")
    before = trained_states.read_saved_state(resumed / "last.pt", training)
    config = dataclasses.replace(run.config, checkpoint_dir=str(resumed), checkpoint_keep=False, resume=True)
    again, problem = start(dataclasses.replace(run, config=config), proof)
    if not problem:
        whole, last = (
            trained_states.read_saved_state(folder / "last.pt", training) for folder in (proof.scratch, resumed)
        )
        if compare_bits(last.state, whole.state).difference == 0 and evaluation_of(again) == evaluation_of(finished):
            return {}  # it is the run that was compared
        problem = compare_states(run, training, [before, last], again)
    if problem["verdict"] == "ok":
        return {}
    return problem | {"reason": f"resumed after step {before.step}: {problem['reason']}"}


def evaluation_of(finished_run: RunFolder) -> dict[str, float]:
    """By EVALUATED; nan where there is none. Imports torch."""
    from scripts.verify.comparison import EVALUATED

    epochs = read_table(finished_run.results, "epochs")
    of_run = epochs[(epochs.run_id == finished_run.run_id) & (epochs.phase == "val")]
    if of_run.empty:
        return dict.fromkeys(EVALUATED, float("nan"))
    return {name: float(of_run[name].iloc[-1]) for name in EVALUATED}


def start(run: plan.Run, proof: Proof) -> tuple[RunFolder, Row]:
    """(the run's folder, verdict and reason where it is not ok)."""
    run_folder, env = plan.create_run_folder(run, proof.results, proof.number)
    with forward_signals() as child_runner:
        loop.start_launcher(run, run_folder, env, child_runner, stdout=subprocess.DEVNULL)
    if child_runner.signum:
        sys.exit(128 + child_runner.signum)
    rows = read_table(proof.results, "runs")
    of_run = rows.loc[rows.run_id == run_folder.run_id, ["status", "reason"]].to_numpy()
    status, reason = next(iter(of_run), ("", "left no row"))
    problem = {"verdict": "skipped" if status == "skipped" else "failed", "reason": reason}
    return run_folder, {} if status == "ok" else problem


def line_of(row: Row) -> str:
    difference, tolerance = row.get("max_relative_difference"), row.get("tolerance")
    shown = "" if difference is None else f"{difference:.1e}" if difference else "0"
    shown += " (bit-identical)" if row.get("bit_identical") else ""
    verdict = row["verdict"] if row["verdict"] in ("ok", "skipped") else row["verdict"].upper()
    return (
        f"{row['strategy']:<18} {row.get('world_size', ''):>7} {row['steps']:>5}  {shown:<28} "
        f"{'' if tolerance is None else f'{tolerance:.1e}' if tolerance else '0':>9}  {verdict}"
        + (f": {printable(row['reason'])}" if row["reason"] else "")
    )
