"""The plan of `make sweep`: one strategy with several values of one configuration field, beside the baseline.

STRATEGY=ddp KEY=bucket_cap_mb VALUES="1 5 25 100" launchers/all.sh sweep          # or: make sweep
"""

from benchmarks.common.config.config import find_field, load_config
from benchmarks.common.config.settings import NOT_COMPARED
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from scripts.runner import preflight
from scripts.runner.make_variables import Given
from scripts.runner.options import value_flags
from scripts.runner.run_plan import MOST_VALUES, Run, baselines_in_other_precisions, runs_of_points
from scripts.sets.identity import STRATEGY_OPTIONS


def plan_runs(given: Given) -> list[Run]:
    """STRATEGY with each of VALUES of the field KEY, beside the baseline: once where KEY is an option of strategies,
    else with each value. Raises UserError for any value that is none."""
    for name in ("strategy", "key", "values"):
        if not getattr(given, name):
            example = 'STRATEGY=ddp KEY=bucket_cap_mb VALUES="1 5 25 100"'
            raise UserError(f"{name.upper()} is not set; for example: make sweep {example}")
    strategy, key = preflight.only(given.strategy), find_field(given.key)
    if key in NOT_COMPARED:
        raise UserError(f"KEY={key} cannot change what is measured ({NOT_COMPARED[key]}); sweep another option")
    values = [*dict.fromkeys(given.values.split())]
    if len(values) > MOST_VALUES:
        raise UserError(f"VALUES holds {len(values)} values, but must be at most {MOST_VALUES}; sweep some of them")
    own = [value_flags(key, text) for text in values]
    configs = [(load_config([*given.flags, *flags]), " ".join([given.args, *flags]).strip()) for flags in own]
    configs = [*{config: text for config, text in reversed(configs)}.items()][::-1]  # 5 and 5.0 are one
    preflight.check_ranks([config for config, _ in configs], [given.ranks_here])
    share, first = machine.threads_per_rank(given.ranks_here), preflight.CORE[0]
    points = [(strategy, config, 0, text, share) for config, text in configs]
    if strategy != first:
        plain, once = load_config(given.flags), key in STRATEGY_OPTIONS
        alone = [(first, plain, 0, given.args, share)] if once else [(first, *each[1:]) for each in points]
        points += (baselines_in_other_precisions(given, plain, [first, strategy]) if once else []) or alone
    return runs_of_points(given, points)


def chart_command(given: Given) -> list[str]:
    """The module that draws the chart of these runs, and its flags."""
    strategy = preflight.only(given.strategy)
    return ["scripts.studies.sweep.chart", "--strategy", strategy, "--key", find_field(given.key)]
