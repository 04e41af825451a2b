"""What there is to prove: the settings of a set's runs, or what bench-all would run, each once.

A proof runs at the settings of the run that it is about. Only what `at_proof` replaces may differ.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.config import FIELDS, Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.results import read_table
from benchmarks.common.settings import settings_hash
from scripts.analysis.sets import load_set
from scripts.suite import preflight
from scripts.suite.plan import Given, Run, make_run

NUM_EPOCHS = 2  # the second has an order of its own, which a forgotten set_epoch would miss
SMALL_LR = 3e-6


def at_proof(config: Config, num_steps: int, *, exact: bool) -> Config:
    """The configuration of the proof of a run at `config`: without augmentation, over two short epochs.

    exact: the learning rate is the run's own. Elsewhere it is so small that training amplifies rounding but little.
    Raises UserError for steps that make no two epochs of at least two steps.
    """
    if num_steps < 2 * NUM_EPOCHS or num_steps % NUM_EPOCHS:
        raise UserError(f"steps is {num_steps}, but must be an even number, 4 or more: half of them in each epoch")
    steps = num_steps // NUM_EPOCHS
    length = {"epochs": NUM_EPOCHS, "steps": steps}
    timed = {"warmup_steps": 0, "windows": 1, "window_steps": steps - 1, "account_steps": 0}
    rate = {"lr": SMALL_LR, "lr_batch": config.global_batch, "lr_warmup_epochs": 0.0, "lr_schedule": "cosine"}
    places = {"config": "", "resume": False, "checkpoint_steps": 0}
    return dataclasses.replace(config, augment=False, **length, **timed, **places, **({} if exact else rate))


def sums_have_one_order(ranks: int) -> bool:
    """Whether every sum over the ranks is the reference's to the last bit: of two, and not on a GPU's many threads."""
    return machine.num_gpus() == 0 and ranks <= 2


def of_set(given: Given, results: Path, num_steps: int) -> list[Run]:
    """A proof for each strategy and setting with ok runs in the set; [] where it has none.

    Raises UserError where this machine cannot run it, or DATA holds other images.
    """
    strategies = preflight.chosen(given.strategies)
    groups = load_set(results).groups if (results / "runs.csv").exists() else []
    asked = [group.identity.asked for group in groups if len(group.ok) and group.identity.recorded]
    return _once(_of_asked(given, results, half, num_steps) for half in asked if half["strategy"] in strategies)


def _of_asked(given: Given, results: Path, asked: Mapping, num_steps: int) -> Run:
    ranks, nodes = asked["ranks"], asked["nodes"]
    if machine.all_ranks(ranks // nodes) != (ranks, nodes):
        raise UserError(
            f"{results} has {asked['strategy']} on {ranks} ranks of {nodes} nodes; prove it where that runs, with the "
            "same NNODES, NODES or HOSTS, or leave it out: STRATEGIES"
        )
    config = Config(**{name: asked[name] for name in FIELDS if name in asked})
    config = dataclasses.replace(config, data=given.data or config.data)
    preflight.check_ranks([config], [ranks // nodes])
    run = _proof(given, asked["strategy"], config, ranks // nodes, num_steps)
    if run.asked["fingerprint"] != asked["fingerprint"]:
        raise UserError(
            f"{config.data} (fingerprint {run.asked['fingerprint']}) proves other images than {results} was measured "
            f"with ({asked['fingerprint']}); set DATA to these"
        )
    return run


def of_variables(given: Given, num_steps: int) -> list[Run]:
    """A proof for each strategy that bench-all would run with the same variables."""
    config = load_config(given.flags)
    preflight.check_ranks([config], [given.ranks_here])
    strategies = preflight.chosen(given.strategies)
    return _once(_proof(given, name, config, given.ranks_here, num_steps) for name in strategies)


def _proof(given: Given, strategy: str, config: Config, ranks_here: int, num_steps: int) -> Run:
    if config.loader == "synthetic":
        raise UserError(
            "loader synthetic has no images that a reference could deal; prove the same settings with --loader folder"
        )
    exact = sums_have_one_order(machine.all_ranks(ranks_here)[0])
    # one thread a rank, and for the reference: other threads, other sums
    run = make_run(given, strategy, 1, at_proof(config, num_steps, exact=exact), ranks_here=ranks_here, threads=1)
    return dataclasses.replace(run, variables=run.variables | {"CPUS_PER_TASK": "1"})


def _once(runs) -> list[Run]:
    return list({run.key: run for run in runs}.values())


def not_proved(runs: list[Run], results: Path) -> list[Run]:
    """The runs without a row in the set's equivalence.csv."""
    asked = (json.loads(cell) for cell in read_table(results, "equivalence").asked if cell)
    proved = {settings_hash(half) for half in asked}
    return [run for run in runs if settings_hash(run.asked) not in proved]
