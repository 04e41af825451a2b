"""The plan of `./bench study scaling`: one strategy on several numbers of devices, beside the baseline.

./bench study scaling --strategy ddp --ranks 1 2 4
"""

import dataclasses
import os

from benchmarks.common import machine
from benchmarks.common.config import load_config, resolve_global_batch
from benchmarks.common.errors import UserError
from scripts.runner import preflight
from scripts.runner.make_variables import MakeVariables
from scripts.runner.run_plan import MAX_VALUES, Run, RunTemplate, make_runs
from scripts.shared.options_as_typed import option_as_typed
from scripts.strategies import strategy_list


def plan_runs(variables: MakeVariables) -> list[Run]:
    """The runs of STRATEGY on each of RANKS, and the baseline's, REPEATS times.

    Strong scaling: every number of ranks has the configured batch. Weak scaling: every rank has as many images as a
    rank of the most ranks has in strong scaling. Every rank has as many threads as among the most ranks. The baseline
    computes in the strategy's precision. Raises UserError for a variable that is missing or wrong.
    """
    if not variables.strategy or not variables.ranks:
        both = f"{option_as_typed('STRATEGY')} and {option_as_typed('RANKS')}"
        raise UserError(f"{both} must be set; for example: ./bench study scaling --strategy ddp --ranks 1 2 4")
    strategy, ranks = strategy_list.parse_strategy(variables.strategy), parse_ranks(variables.ranks)
    config, most = load_config(variables.flags), ranks[-1]
    preflight.check_ranks([config], ranks, "RANKS")
    batch, threads = resolve_global_batch(config, most).global_batch, machine.threads_per_rank(most)
    # with the most ranks, strong and weak scaling are the same run
    shapes = dict.fromkeys([(n, batch) for n in ranks] + [(n, batch // most * n) for n in ranks])
    # the baseline has the batch that is divided, and the images of one rank
    baselines = [(strategy_list.BASELINE, 1, size) for size in dict.fromkeys([batch, batch // most])]
    alone = [] if strategy == strategy_list.BASELINE else baselines
    points = [*alone, *((strategy, *shape) for shape in shapes)]
    mixed = strategy_list.comparison_runs_of_mixed_precision(config, [strategy_list.BASELINE, strategy])
    precision_of = {name: precision for name, precision, _ in mixed if name == strategy_list.BASELINE}

    def make_template(name: str, num_ranks: int, global_batch: int) -> RunTemplate:
        scaled = dataclasses.replace(config, global_batch=global_batch, batch_per_device=0)
        flags = f"{variables.args} --global-batch {global_batch}".strip()
        if precision := precision_of.get(name):
            scaled, flags = dataclasses.replace(scaled, precision=precision), f"{flags} --precision {precision}"
        return RunTemplate(name, scaled, flags, threads, num_ranks)

    return make_runs(variables, [make_template(*point) for point in points])


def parse_ranks(text: str) -> list[int]:
    """The numbers of ranks in RANKS, in their order. Raises UserError where there are fewer than two, or the text is no
    list of numbers."""
    words = text.split()
    valid = [word.isascii() and word.isdecimal() and int(word) > 0 for word in words]
    if not all(valid) or len(words) > MAX_VALUES:
        raise UserError(
            f"{option_as_typed('RANKS')} is {text[:80]!r}, but must be some numbers of ranks, such as 1 2 4"
        )
    if elsewhere := [name for name in ("HOSTS", "NODES", "TASKS_PER_NODE") if os.environ.get(name)]:
        raise UserError(f"{option_as_typed('RANKS')} are numbers of ranks on this machine; leave {elsewhere[0]} out")
    ranks = sorted({int(word) for word in words})
    if len(ranks) < 2:
        raise UserError(
            f"{option_as_typed('RANKS')} is {text!r}: one number of ranks shows no scaling; give two or more"
        )
    return ranks


def chart_command(variables: MakeVariables) -> list[str]:
    """The module that draws the chart of these runs, and its flags."""
    return ["scripts.studies.scaling.chart", "--strategy", strategy_list.parse_strategy(variables.strategy)]
