"""What there is to prove: the settings of a set's runs, or what bench-all would run, each once.

A proof runs at the settings of the run that it is about. Only what `at_proof` replaces may differ.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from benchmarks.common.config.config import FIELDS, Config, load_config
from benchmarks.common.config.settings import settings_hash
from benchmarks.common.store.results import read_table
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from scripts.runner import preflight
from scripts.runner.allowed_settings import short_repr, why_not_allowed
from scripts.runner.make_variables import MakeVariables
from scripts.runner.run_plan import Run, make_run
from scripts.sets.safe_names import SAFE_NAME

NUM_EPOCHS = 2  # the second has an order of its own, which a forgotten set_epoch would miss
FEW_STEPS = 6  # where each is compared by itself, and keeps its state


def at_proof(config: Config, num_steps: int, *, exact: bool) -> Config:
    """The configuration of the proof of a run at `config`: two short epochs, with a checkpoint in each one's middle.

    exact: compared is the end. Elsewhere it keeps its state after the first step, after the first epoch, and after
    each step from then on; the steps in one window between are those in which nothing is shared. On GPUs cuDNN computes
    by the algorithms that the reference has.
    Raises UserError for steps that make no two epochs of at least two steps.
    """
    if num_steps < 2 * NUM_EPOCHS or num_steps % NUM_EPOCHS:
        raise UserError(f"steps is {num_steps}, but must be an even number, 4 or more: half of them in each epoch")
    steps = (num_steps if exact else min(num_steps, FEW_STEPS)) // NUM_EPOCHS
    length = {"epochs": NUM_EPOCHS, "steps": steps}
    timed = {"warmup_steps": 0, "windows": 1, "window_steps": steps - 1, "account_steps": 0}
    kept = {"checkpoint_steps": steps // 2 if exact else 1, "checkpoint_keep": not exact}
    kept |= {"resume": False, "resume_from": "last"}
    # On a GPU, run and reference would each time cuDNN's algorithms, take others, and round otherwise: by more than a
    # mistake in bf16 may be small.
    kernels = {"cudnn_benchmark": False, "cudnn_deterministic": True} if machine.num_gpus() else {}
    return dataclasses.replace(config, config="", **length, **timed, **kept, **kernels)


def step_by_step(run: Run) -> Run:
    """The proof of a run that rounds otherwise than the reference, although its sums have one order."""
    config = at_proof(run.config, run.config.epochs * run.config.steps, exact=False)
    return dataclasses.replace(run, config=config, requested=run.requested | dataclasses.asdict(config))


def sums_have_one_order(ranks: int) -> bool:
    """Whether every sum over the ranks is the reference's to the last bit: of two, and not on a GPU's many threads."""
    return machine.num_gpus() == 0 and ranks <= 2


def not_read(loader: str, pack: str) -> str:
    """What no reference reads: images without files, or of another size than their files'. Empty for the others."""
    if loader == "packed":
        return "" if pack == "full" else f"loader packed, pack {pack}"
    return "" if loader == "folder" else f"loader {loader}"


def of_set(variables: MakeVariables, results: Path, num_steps: int) -> list[Run]:
    """A proof for each strategy and setting with ok runs in the set.

    Says on stderr which it cannot prove. Raises UserError where they cannot be run here, or DATA holds other images.
    """
    runs = read_table(results, "runs")
    ok = runs[(runs.status == "ok") & runs.strategy.isin(preflight.parse_strategies(variables.strategies))]
    found = {}
    for run_id in ok.run_id:
        try:
            settings = _settings_of(results, run_id)
            asked = settings["asked"]
            found.setdefault((settings_hash(asked), asked["seed"]), settings)  # rounds of one group may have own seeds
        except UserError as error:
            warn(f"{error}; the same CONFIG and ARGS would prove it")
    proofs = []
    for settings in found.values():
        if unread := not_read(settings["asked"]["loader"], settings["asked"].get("pack", "")):
            warn(f"{settings['asked']['strategy']} with {unread} is not proved: no reference reads its images")
        else:
            check_place(results, settings)
            proofs.append(_of_asked(variables, results, settings["asked"], num_steps))
    return _once(proofs)


def _settings_of(results: Path, run_id: str) -> dict:
    """settings.json of a run. Raises UserError where there is none, or where its values may not start a run: the set
    may come from somebody else."""
    if not SAFE_NAME.fullmatch(run_id):
        raise UserError(f"{results} has a run_id {short_repr(run_id)}, which is no name of a folder")
    settings = RunFolder(results / "logs" / run_id).settings()
    asked, met = settings["asked"], settings.get("met") or {}
    lacking = [name for name in ("strategy", "ranks", "nodes", "threads_per_rank", "fingerprint") if name not in asked]
    why = f"it lacks {lacking[0]}" if lacking else why_not_allowed(asked, met)
    if why or asked["strategy"] not in preflight.all_strategies():
        raise UserError(f"{results}, {run_id}: its settings.json cannot be run: {why or 'no such strategy'}")
    return settings


def check_place(results: Path, settings: dict) -> None:
    """Raises UserError where this machine is not such a one as a run had: its proof would be of something else."""
    asked, on_gpus, num_gpus = settings["asked"], settings.get("met", {}).get("device") == "cuda", machine.num_gpus()
    ranks_here = asked["ranks"] // asked["nodes"]
    possible = [preflight.ranks_and_nodes(asked["strategy"], number) for number in (ranks_here, asked["ranks"])]
    same_ranks = (asked["ranks"], asked["nodes"]) in possible
    if on_gpus != (num_gpus > 0) or 0 < num_gpus < ranks_here or not same_ranks:
        devices = "GPUs" if on_gpus else "CPUs"
        raise UserError(
            f"{results} has {asked['strategy']} on {devices}, {asked['ranks']} ranks, {asked['nodes']} nodes, and here "
            f"are {num_gpus} GPUs; prove it where it ran, with the same NNODES, NODES or HOSTS, or choose STRATEGIES"
        )


def _of_asked(variables: MakeVariables, results: Path, asked: dict, num_steps: int) -> Run:
    config = Config(**{name: asked[name] for name in FIELDS if name in asked})
    config = dataclasses.replace(config, data=os.environ.get("DATA") or config.data)
    run = _proof(variables, asked["strategy"], config, asked["ranks"] // asked["nodes"], num_steps)
    if run.requested["fingerprint"] != asked["fingerprint"]:
        raise UserError(
            f"{config.data} (fingerprint {run.requested['fingerprint']}) proves other images than {results} was "
            f"measured with ({asked['fingerprint']}); set DATA to these"
        )
    return run


def of_variables(variables: MakeVariables, num_steps: int) -> list[Run]:
    """A proof for each strategy that bench-all would run with the same variables."""
    config = load_config(variables.flags)
    if unread := not_read(config.loader, config.pack):
        raise UserError(f"no reference reads the images of {unread}; leave --loader out")
    preflight.check_ranks([config], [variables.ranks_here])
    strategies = preflight.parse_strategies(variables.strategies)
    return _once(_proof(variables, name, config, variables.ranks_here, num_steps) for name in strategies)


def _proof(variables: MakeVariables, strategy: str, config: Config, ranks_here: int, num_steps: int) -> Run:
    if config.loader == "packed":
        preflight.check_data(config.data)  # the reference reads the files
    exact = sums_have_one_order(preflight.ranks_and_nodes(strategy, ranks_here)[0])
    # one thread a rank, and for the reference: other threads, other sums
    run = make_run(variables, strategy, 1, at_proof(config, num_steps, exact=exact), ranks_here=ranks_here, threads=1)
    return dataclasses.replace(run, variables=run.variables | {"CPUS_PER_TASK": "1"})


def _once(runs) -> list[Run]:
    return list({run.key: run for run in runs}.values())


def not_proved(runs: list[Run], results: Path) -> list[Run]:
    """The runs without a proof in the set's equivalence.csv; one that failed or was skipped is tried again."""
    rows = read_table(results, "equivalence")
    asked = (json.loads(cell) for cell in rows[rows.verdict == "ok"].asked if cell)
    proved = {settings_hash(half) for half in asked}
    return [run for run in runs if settings_hash(run.requested) not in proved]


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
