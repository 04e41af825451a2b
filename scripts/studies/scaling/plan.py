"""The plan of `./bench study scaling`: one strategy on several numbers of devices, beside the baseline.

./bench study scaling --strategy ddp --ranks 1 2 4
"""

import dataclasses
import os
from collections.abc import Sequence

from benchmarks.common import machine
from benchmarks.common.config import load_config, resolve_global_batch
from benchmarks.common.errors import UserError
from scripts.options.run_options import ScalingOptions
from scripts.runner import preflight
from scripts.runner.plan import MAX_VALUES, Run, RunTemplate, make_runs
from scripts.runner.request import Request
from scripts.shared import strategy_list


def plan_runs(request: Request, options: ScalingOptions) -> list[Run]:
    """The runs of the strategy on each number of ranks, and the baseline's.

    Strong scaling: every number of ranks has the configured batch. Weak scaling: every rank has as many images as a
    rank of the most ranks has in strong scaling. Every rank has as many threads as among the most ranks. The baseline
    computes in the strategy's precision. Raises UserError for a number that is missing or wrong.
    """
    strategy, ranks = strategy_list.parse_strategy(options.strategy), parse_ranks(options.ranks)
    config, most = load_config(request.flags), ranks[-1]
    preflight.check_ranks([config], ranks, "--ranks")
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
        flags = f"{request.own_text} --global-batch {global_batch}".strip()
        if precision := precision_of.get(name):
            scaled, flags = dataclasses.replace(scaled, precision=precision), f"{flags} --precision {precision}"
        return RunTemplate(name, scaled, flags, threads, num_ranks)

    return make_runs(request, [make_template(*point) for point in points])


def parse_ranks(words: Sequence[str]) -> list[int]:
    """The numbers of ranks, in their order. Raises UserError where there are fewer than two, or a word is no number."""
    text, example = " ".join(words), "for example: ./bench study scaling --strategy ddp --ranks 1 2 4"
    valid = [word.isascii() and word.isdecimal() and int(word) > 0 for word in words]
    if not all(valid) or len(words) > MAX_VALUES:
        raise UserError(f"--ranks is {text[:80]!r}, but must be some numbers of ranks; {example}")
    if elsewhere := [name for name in ("HOSTS", "NODES", "TASKS_PER_NODE") if os.environ.get(name)]:
        raise UserError(f"--ranks are numbers of ranks on this machine; leave {elsewhere[0]} out")
    ranks = sorted({int(word) for word in words})
    if len(ranks) < 2:
        raise UserError(f"--ranks is {text!r}, which shows no scaling; give two numbers or more; {example}")
    return ranks


def chart_command(options: ScalingOptions) -> list[str]:
    """The module that draws the chart of these runs, and its flags."""
    return ["scripts.studies.scaling.chart", "--strategy", strategy_list.parse_strategy(options.strategy)]
