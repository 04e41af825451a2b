"""The plan of `./bench study sweep`: one strategy with several values of one configuration field, beside the baseline.

./bench study sweep --strategy ddp --key bucket_cap_mb --values 1 5 25 100
"""

import dataclasses

from benchmarks.common import machine
from benchmarks.common.config import NOT_COMPARED, find_field, load_config
from benchmarks.common.errors import UserError
from scripts.runner import preflight
from scripts.runner.make_variables import MakeVariables
from scripts.runner.run_plan import MAX_VALUES, Run, RunTemplate, baselines_in_other_precisions, make_runs
from scripts.sets.settings import READERS
from scripts.shared.options_as_typed import option_as_typed
from scripts.strategies import strategy_list
from scripts.studies.sweep.field_flags import value_flags

EXAMPLE = "./bench study sweep --strategy ddp --key bucket_cap_mb --values 1 5 25 100"


def plan_runs(variables: MakeVariables) -> list[Run]:
    """STRATEGY with each of VALUES of the field KEY, beside the baseline: once where KEY is an option of strategies,
    else with each value. Raises UserError for any value that is none."""
    for name in ("strategy", "key", "values"):
        if not getattr(variables, name):
            raise UserError(f"{option_as_typed(name.upper())} is not set; for example: {EXAMPLE}")
    strategy, key = strategy_list.parse_strategy(variables.strategy), find_field(variables.key)
    if key in NOT_COMPARED:
        raise UserError(
            f"{option_as_typed('KEY', key)} cannot change what is measured ({NOT_COMPARED[key]}); sweep another option"
        )
    values = [*dict.fromkeys(variables.values.split())]
    if len(values) > MAX_VALUES:
        raise UserError(
            f"{option_as_typed('VALUES')} holds {len(values)} values, but must be at most {MAX_VALUES}; "
            "sweep some of them"
        )
    flags_of_values = [value_flags(key, text) for text in values]
    configs = [
        (load_config([*variables.flags, *flags]), " ".join([variables.args, *flags]).strip())
        for flags in flags_of_values
    ]
    configs = [*{config: text for config, text in reversed(configs)}.items()][::-1]  # 5 and 5.0 are one
    preflight.check_ranks([config for config, _ in configs], [variables.ranks_here])
    threads, baseline = machine.threads_per_rank(variables.ranks_here), strategy_list.BASELINE
    templates = [RunTemplate(strategy, config, text, threads) for config, text in configs]
    if strategy != baseline:
        templates += _baselines(variables, templates, key)
    return make_runs(variables, templates)


def _baselines(variables: MakeVariables, templates: list[RunTemplate], key: str) -> list[RunTemplate]:
    """The baseline with each swept value, or one baseline where only the strategy has the option."""
    baseline = strategy_list.BASELINE
    if key not in READERS:
        return [dataclasses.replace(template, strategy=baseline) for template in templates]
    config = load_config(variables.flags)
    in_its_precision = baselines_in_other_precisions(variables, config, [baseline, templates[0].strategy])
    return in_its_precision or [RunTemplate(baseline, config, variables.args, templates[0].threads)]


def chart_command(variables: MakeVariables) -> list[str]:
    """The module that draws the chart of these runs, and its flags."""
    strategy = strategy_list.parse_strategy(variables.strategy)
    return ["scripts.studies.sweep.chart", "--strategy", strategy, "--key", find_field(variables.key)]
