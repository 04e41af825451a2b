"""The proof cases: the settings of a set's runs, or of the runs that bench-all would make, each once.

A proof runs at the settings of the run that it is about. Only what `proof_config` replaces may differ.
"""

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import machine
from benchmarks.common.config import FIELDS, IMAGE_FIELDS, Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.data.check import check_image_folder
from scripts.results.settings import settings_hash
from scripts.runner import preflight
from scripts.runner.plan import Run, RunTemplate, make_run
from scripts.runner.request import Request
from scripts.shared import strategy_list
from scripts.shared.commands import bench_command

if TYPE_CHECKING:
    import pandas

NUM_EPOCHS = 2  # the second has an order of its own, which a forgotten set_epoch would miss
FEW_STEPS = 6  # of a proof in which each step is compared by itself
REQUIRED_SETTINGS = ("strategy", "ranks", "nodes", "threads_per_rank", "fingerprint", "seed", "loader")


def proof_config(config: Config, num_steps: int, *, exact: bool) -> Config:
    """The configuration of the proof of a run at `config`: two short epochs, with a checkpoint in the middle of each.

    exact: only the state after the last step is compared. Otherwise the run keeps a state after each step, for which
    no window may have two. Raises UserError for a number of steps that does not make two epochs of at least two steps.
    """
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
    """The same run, which keeps its state after each step: for kernels that round differently from the reference's."""
    return run.with_config(proof_config(run.config, run.config.epochs * run.config.steps, exact=False))


def sums_are_exact(ranks: int) -> bool:
    """Whether every sum over the ranks is of two numbers, on CPUs, and so equals the reference's to the last bit."""
    return machine.num_gpus() == 0 and ranks <= 2


def unreadable_images(loader: str, pack: str) -> str:
    """The settings of images that no reference reads, such as synthetic ones; '' for images that it reads."""
    if loader == "packed":
        return "" if pack == "full" else f"loader packed, pack {pack}"
    return "" if loader == "folder" else f"loader {loader}"


def cases_of_set(request: Request, results: Path, num_steps: int, data: str = "") -> list[Run]:
    """A proof for each strategy and setting with ok runs in the set. Says on stderr which it cannot prove.

    Raises UserError where they cannot run here, `data` has other images, or the set lacks a strategy that was named.
    """
    runs = read_table(results, "runs")
    strategies = strategy_list.parse_strategies(request.strategies)
    if request.strategies.strip() not in ("", "all"):
        _check_ran(results, runs, strategies)
    else:
        strategies += _external_strategies(results, runs)
    ok = runs[(runs.status == "ok") & runs.strategy.isin(strategies)]
    settings_of_runs: dict[tuple[str, int], dict[str, Any]] = {}
    for run_id in ok.run_id:
        try:
            settings = _read_settings(results, run_id)
        except UserError as error:
            print_warning(f"{error}; the same --config and the flags after -- would prove it")
            continue
        requested = settings["asked"]
        # rounds of one group may have seeds of their own
        settings_of_runs.setdefault((settings_hash(requested), requested["seed"]), settings)
    proofs = []
    for settings in settings_of_runs.values():
        requested = settings["asked"]
        if unreadable := unreadable_images(requested["loader"], requested.get("pack", "")):
            print_warning(f"{requested['strategy']} with {unreadable} is not proved: no reference reads its images")
        else:
            check_machine(results, settings)
            proofs.append(_case_of_settings(request, results, settings, num_steps, data))
    return _without_duplicates(proofs)


def _external_strategies(results: Path, runs: "pandas.DataFrame") -> list[str]:
    others = sorted({*runs.strategy} - {*strategy_list.all_strategies(), ""})
    found = [name for name in others if strategy_list.is_known(name)]
    for name in others:
        if name not in found:
            print_warning(f"{results} has {name!r}, which is not proved: --strategy-dir names no folder with it")
    return found


def _check_ran(results: Path, runs: "pandas.DataFrame", strategies: Iterable[str]) -> None:
    for name in strategies:
        statuses = {*runs.status[runs.strategy == name]}
        if "ok" in statuses:
            continue
        if "skipped" not in statuses:
            again = bench_command(f"run {name}", results=results)
            raise UserError(f"{results} has no ok run of {name}, so that nothing of it would be proved; {again}")
        print_warning(f"{results} has {name} as skipped only, so that nothing of it is proved")


def _read_settings(results: Path, run_id: str) -> dict[str, Any]:
    folder = RunFolder(results / "logs" / run_id)
    requested = folder.requested()
    missing = [name for name in REQUIRED_SETTINGS if name not in requested]
    if missing or not strategy_list.is_known(requested["strategy"]):
        problem = f"it lacks {missing[0]}" if missing else "no such strategy"
        raise UserError(f"{folder.plan} cannot be run: {problem}")
    return {"asked": requested, "met": folder.resolved()}


def check_machine(results: Path, settings: dict[str, Any]) -> None:
    """Raises UserError where this machine does not have the GPUs and ranks of a run."""
    requested, num_gpus = settings["asked"], machine.num_gpus()
    on_gpus = settings["met"].get("device") == "cuda"
    ranks_here = requested["ranks"] // requested["nodes"]
    possible = [
        strategy_list.total_ranks_and_nodes(requested["strategy"], number)
        for number in (ranks_here, requested["ranks"])
    ]
    same_ranks = (requested["ranks"], requested["nodes"]) in possible
    if on_gpus != (num_gpus > 0) or 0 < num_gpus < ranks_here or not same_ranks:
        devices = "GPUs" if on_gpus else "CPUs"
        raise UserError(
            f"{results} has {requested['strategy']} on {devices}, {requested['ranks']} ranks, {requested['nodes']} "
            f"nodes, and here are {num_gpus} GPUs; prove it where it ran, with the same NNODES, HOSTS or nodes of a "
            "Slurm job, or name other strategies"
        )


def _case_of_settings(request: Request, results: Path, settings: dict[str, Any], num_steps: int, data: str) -> Run:
    requested = settings["asked"]
    config = Config(**{name: requested[name] for name in FIELDS if name in requested})
    config = dataclasses.replace(config, data=data or config.data)
    ranks_here = requested["ranks"] // requested["nodes"]
    run = _proof_run(request, requested["strategy"], config, ranks_here, num_steps)
    for name in IMAGE_FIELDS:
        measured, here = requested.get(name), run.requested[name]
        if measured not in ("", None, here):
            raise UserError(
                f"{config.data} ({name} {here}) proves other images than {results} was measured with ({measured}); "
                "set --data to these"
            )
    return run


def cases_of_request(request: Request, num_steps: int) -> list[Run]:
    """A proof for each strategy that ./bench run would run."""
    config = load_config(request.flags)
    if unreadable := unreadable_images(config.loader, config.pack):
        raise UserError(f"no reference reads the images of {unreadable}; leave --loader out")
    preflight.check_ranks([config], [request.ranks_here])
    strategies = strategy_list.parse_strategies(request.strategies)
    return _without_duplicates(_proof_run(request, name, config, request.ranks_here, num_steps) for name in strategies)


def _proof_run(request: Request, strategy: str, config: Config, ranks_here: int, num_steps: int) -> Run:
    if config.loader == "packed":
        check_image_folder(config.data)  # the reference reads the files
    exact = sums_are_exact(strategy_list.total_ranks_and_nodes(strategy, ranks_here)[0])
    # one thread a rank, and for the reference: other threads, other sums
    template = RunTemplate(strategy, proof_config(config, num_steps, exact=exact), threads=1, ranks_here=ranks_here)
    return make_run(request, template)


def _without_duplicates(runs: Iterable[Run]) -> list[Run]:
    return list({run.key: run for run in runs}.values())


def unproved(runs: list[Run], results: Path) -> list[Run]:
    """The runs without a proof in the set's equivalence.csv; one that failed or was skipped is tried again."""
    from scripts.results.frames import iterate_rows  # pandas, as read_table
    from scripts.results.recorded_settings import read_identity

    rows = iterate_rows(read_table(results, "equivalence"))
    identities = (read_identity(row.asked, "") for row in rows if row.verdict == "ok")
    proved = {settings_hash(identity.requested) for identity in identities if identity}
    return [run for run in runs if settings_hash(run.requested) not in proved]


def print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
