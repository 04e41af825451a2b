"""The plan of `./bench study sweep`: one strategy with several values of one configuration field, beside the baseline.

./bench study sweep --strategy ddp --key bucket_cap_mb --values 1 5 25 100
"""

import dataclasses

from benchmarks.common import machine
from benchmarks.common.config import NOT_COMPARED, find_field, load_config
from benchmarks.common.errors import UserError
from scripts.options.run_options import SweepOptions
from scripts.results.settings import READERS
from scripts.runner import preflight
from scripts.runner.plan import MAX_VALUES, Run, RunTemplate, baselines_in_other_precisions, make_runs
from scripts.runner.request import Request
from scripts.shared import strategy_list
from scripts.studies.sweep.field_flags import value_flags

EXAMPLE = "./bench study sweep --strategy ddp --key bucket_cap_mb --values 1 5 25 100"


def plan_runs(request: Request, options: SweepOptions) -> list[Run]:
    """The strategy with each value of the field, beside the baseline: once where the field is an option of strategies,
    else with each value. Raises UserError for any value that is none."""
    for name in ("key", "values"):
        if not getattr(options, name):
            raise UserError(f"--{name} is missing; for example: {EXAMPLE}")
    strategy, key = strategy_list.parse_strategy(options.strategy), find_field(options.key)
    if key in NOT_COMPARED:
        raise UserError(f"--key {key} cannot change what is measured ({NOT_COMPARED[key]}); sweep another option")
    values = [*dict.fromkeys(options.values)]
    if len(values) > MAX_VALUES:
        raise UserError(f"--values holds {len(values)} values, but must be at most {MAX_VALUES}; sweep some of them")
    flags_of_values = [value_flags(key, text) for text in values]
    configs = [
        (load_config([*request.flags, *flags]), " ".join([request.own_text, *flags]).strip())
        for flags in flags_of_values
    ]
    configs = [*{config: text for config, text in reversed(configs)}.items()][::-1]  # 5 and 5.0 are one
    preflight.check_ranks([config for config, _ in configs], [request.ranks_here])
    threads, baseline = machine.threads_per_rank(request.ranks_here), strategy_list.BASELINE
    templates = [RunTemplate(strategy, config, text, threads) for config, text in configs]
    if strategy != baseline:
        templates += _baselines(request, templates, key)
    return make_runs(request, templates)


def _baselines(request: Request, templates: list[RunTemplate], key: str) -> list[RunTemplate]:
    """The baseline with each swept value, or one baseline where only the strategy has the option."""
    baseline = strategy_list.BASELINE
    if key not in READERS:
        return [dataclasses.replace(template, strategy=baseline) for template in templates]
    config = load_config(request.flags)
    in_its_precision = baselines_in_other_precisions(request, config, [baseline, templates[0].strategy])
    return in_its_precision or [RunTemplate(baseline, config, request.own_text, templates[0].threads)]


def chart_command(options: SweepOptions) -> list[str]:
    """The module that draws the chart of these runs, and its flags."""
    strategy = strategy_list.parse_strategy(options.strategy)
    return ["scripts.studies.sweep.chart", "--strategy", strategy, "--key", find_field(options.key)]
