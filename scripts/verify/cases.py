"""The runs of proofs."""

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import machine
from benchmarks.common.config import FIELDS, IMAGE_FIELDS, Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import Half, RunFolder
from scripts.data.check import check_image_folder
from scripts.results.settings import settings_hash
from scripts.runner import preflight
from scripts.runner.plan import Run, make_run
from scripts.runner.request import Request
from scripts.shared import strategy_list
from scripts.shared.commands import bench_command

if TYPE_CHECKING:
    import pandas

NUM_EPOCHS = 2  # the second has an order of its own, which a forgotten set_epoch would miss
FEW_STEPS = 6  # of a proof in which each step is compared by itself


def proof_config(config: Config, num_steps: int, *, exact: bool) -> Config:
    """Two short epochs, with a checkpoint in the middle of each; nothing else may differ from `config`. exact: only the
    last state is compared; else the run keeps a state after each step, for which no window may have two."""
    if num_steps < 2 * NUM_EPOCHS or num_steps % NUM_EPOCHS:
        raise UserError(f"steps is {num_steps}, but must be an even number, 4 or more: half of them in each epoch")
    steps = (num_steps if exact else min(num_steps, FEW_STEPS)) // NUM_EPOCHS
    proof = dataclasses.replace(
        config,
        config="",
        epochs=NUM_EPOCHS,
        steps=steps,
        warmup_steps=0,
        windows=1,
        window_steps=steps - 1 if exact else 1,
        account_steps=0,
        checkpoint_steps=steps // 2 if exact else 1,
        checkpoint_keep=not exact,
        resume=False,
        resume_from="last",
    )
    if machine.num_gpus():
        # else run and reference would choose other algorithms, and round differently
        proof = dataclasses.replace(proof, cudnn_benchmark=False, cudnn_deterministic=True)
    return proof


def with_every_state(run: Run) -> Run:
    return run.with_config(proof_config(run.config, run.config.epochs * run.config.steps, exact=False))


def sums_are_exact(ranks: int) -> bool:
    """A sum of two numbers has one order."""
    return machine.num_gpus() == 0 and ranks <= 2


def unreadable_images(loader: str, pack: str) -> str:
    """'' for images that the reference reads."""
    if loader == "packed":
        return "" if pack == "full" else f"loader packed, pack {pack}"
    return "" if loader == "folder" else f"loader {loader}"


def cases_of_set(request: Request, results: Path, num_steps: int, data: str = "") -> list[Run]:
    """For each strategy and setting with ok runs, once; warns of those that cannot be proved."""
    runs = read_table(results, "runs")
    ok = runs[runs.status == "ok"]
    if request.strategies.strip() in ("", "all"):
        names = sorted({*ok.strategy})
    else:
        names = strategy_list.parse_strategies(request.strategies)
        check_ran(results, runs, names)
    if unknown := [name for name in names if not strategy_list.is_known(name)]:
        print_warning(f"{', '.join(unknown)} of {results} is not proved: --strategy-dir names no folder with it")
    settings_of_runs: dict[tuple[str, int], tuple[Half, Half]] = {}
    for run_id in ok.run_id[ok.strategy.isin({*names} - {*unknown})]:
        folder = RunFolder(results / "logs" / run_id)
        try:
            requested = folder.requested()
        except UserError as error:
            print_warning(f"{error}; the same --config and the flags after -- would prove it")
            continue
        # rounds of one group may have seeds of their own
        settings_of_runs.setdefault((settings_hash(requested), requested["seed"]), (requested, folder.resolved()))
    proofs = []
    for requested, resolved in settings_of_runs.values():
        if unreadable := unreadable_images(requested["loader"], requested["pack"]):
            print_warning(f"{requested['strategy']} with {unreadable} is not proved: no reference reads its images")
        else:
            run = _case_of_settings(request, requested, num_steps, data)
            check_machine_and_images(results, requested, resolved, run)
            proofs.append(run)
    return _without_duplicates(proofs)


def check_ran(results: Path, runs: "pandas.DataFrame", strategies: Iterable[str]) -> None:
    for name in strategies:
        statuses = {*runs.status[runs.strategy == name]}
        if "skipped" in statuses and "ok" not in statuses:
            print_warning(f"{results} has {name} as skipped only, so that nothing of it is proved")
        elif "ok" not in statuses:
            again = bench_command(f"run {name}", results=results)
            raise UserError(f"{results} has no ok run of {name}, so that nothing of it would be proved; {again}")


def check_machine_and_images(results: Path, requested: Half, resolved: Half, run: Run) -> None:
    """Where a run had others than its proof would have, raises UserError."""
    measured = {**requested, "device": resolved.get("device")}
    here = {**run.requested, "device": "cuda" if machine.num_gpus() else "cpu"}
    for name in ("device", "ranks", "nodes", *IMAGE_FIELDS):
        if measured.get(name) not in ("", None, here[name]):
            raise UserError(
                f"{results} has {run.strategy} with {name} {measured[name]}, and here it is {here[name]}; "
                "prove it where it ran, with the same NNODES, HOSTS or Slurm nodes, or set --data to its images"
            )


def _case_of_settings(request: Request, requested: Half, num_steps: int, data: str) -> Run:
    config = Config(**{name: requested[name] for name in FIELDS if name in requested})
    config = dataclasses.replace(config, data=data or config.data)
    return _proof_run(request, requested["strategy"], config, requested["ranks"] // requested["nodes"], num_steps)


def cases_of_request(request: Request, num_steps: int) -> list[Run]:
    config = load_config(request.flags)
    if unreadable := unreadable_images(config.loader, config.pack):
        raise UserError(f"no reference reads the images of {unreadable}; leave --loader out")
    strategies = strategy_list.parse_strategies(request.strategies)
    return _without_duplicates(_proof_run(request, name, config, request.ranks_here, num_steps) for name in strategies)


def _proof_run(request: Request, strategy: str, config: Config, ranks_here: int, num_steps: int) -> Run:
    preflight.check_ranks([config], [ranks_here])
    if config.loader == "packed":
        check_image_folder(config.data)  # the reference reads the files
    exact = sums_are_exact(strategy_list.total_ranks_and_nodes(strategy, ranks_here)[0])
    # one thread a rank, and for the reference: other threads, other sums
    proof = proof_config(config, num_steps, exact=exact)
    return make_run(request, strategy, proof, threads=1, ranks_here=ranks_here).in_round(1)


def _without_duplicates(runs: Iterable[Run]) -> list[Run]:
    return list({run.key: run for run in runs}.values())


def print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
