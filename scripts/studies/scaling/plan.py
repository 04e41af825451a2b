"""The plan of `make scaling`: one strategy on several numbers of ranks, strong and weak, beside the baseline.

STRATEGY=ddp RANKS="1 2 4" launchers/all.sh scaling          # or: make scaling
"""

import dataclasses
import os

from benchmarks.common.config.config import load_config, resolve_global_batch
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from scripts.runner import preflight
from scripts.runner.make_variables import Given
from scripts.runner.run_plan import MOST_VALUES, Run, in_rounds, make_run


def plan_runs(given: Given) -> list[Run]:
    """STRATEGY on each of RANKS: with the configured batch (strong), and with as many images a rank as the most
    ranks get of it (weak), beside the baseline; every rank has the threads that it has among the most."""
    from scripts.sets.result_set import BASELINE  # pandas, which nothing else here needs

    if not given.strategy or not given.ranks:
        raise UserError('STRATEGY and RANKS must be set; for example: make scaling STRATEGY=ddp RANKS="1 2 4"')
    words = given.ranks.split()
    fit = [word.isascii() and word.isdecimal() and len(word) <= machine.MAX_DIGITS and int(word) > 0 for word in words]
    if not all(fit) or len(words) > MOST_VALUES:
        raise UserError(f"RANKS is {given.ranks[:80]!r}, but must be some numbers of ranks, such as 1 2 4")
    if elsewhere := [name for name in ("HOSTS", "NODES", "TASKS_PER_NODE") if os.environ.get(name)]:
        raise UserError(f"RANKS are numbers of ranks on this machine; leave {elsewhere[0]} out")
    strategy, ranks = preflight.only(given.strategy), sorted({int(word) for word in given.ranks.split()})
    if len(ranks) < 2:
        raise UserError(f"RANKS is {given.ranks!r}: one number of ranks shows no scaling; give two or more")
    config, most = load_config(given.flags), ranks[-1]
    preflight.check_ranks([config], ranks, "RANKS")
    batch, threads = resolve_global_batch(config, most).global_batch, machine.threads_per_rank(most)
    # with the most ranks, strong and weak scaling are the same run
    shapes = dict.fromkeys([(n, batch) for n in ranks] + [(n, batch // most * n) for n in ranks])

    def make(name: str, number: int, num_ranks: int, size: int) -> Run:
        own = dataclasses.replace(config, global_batch=size, batch_per_device=0)
        flags = f"{given.args} --global-batch {size}".strip()
        where = {"ranks_here": num_ranks, "threads": threads, "num_seeds": given.num_seeds}
        return make_run(given, name, number, own, **where, flags=flags)

    # what the strategy costs even on one rank
    alone = [] if strategy == BASELINE else [(BASELINE, 1, size) for size in dict.fromkeys([batch, batch // most])]
    points = [*alone, *((strategy, *shape) for shape in shapes)]
    return in_rounds(given, lambda number: [make(name, number, *shape) for name, *shape in points])


def chart_command(given: Given) -> list[str]:
    """The module that draws the chart of these runs, and its flags."""
    return ["scripts.studies.scaling.chart", "--strategy", preflight.only(given.strategy)]
