"""What the Makefile's targets run: `./bench make TARGET`, with Make's variables in the environment.

The targets that start runs have the same variables as launchers (scripts/options/run_options.py), and read them as
they are. For the others this module says which option each variable is, and no other place does.
"""

import os
import shlex
from collections.abc import Mapping

from benchmarks.common.system.errors import UserError
from scripts.commands import actions
from scripts.options.run_options import DEFAULT_STRATEGY

OPTIONS = {
    "gallery": {},
    "gpu-check": {"RESULTS": "--results", "DATA": "--data", "RETRY": "--retry"},
    "compare": {"FAIL_OVER": "--fail-over"},
}
"""The options of a target, by the variable that has their value. ARGS has further ones."""


def words_of(target: str, variables: Mapping[str, str]) -> list[str] | None:
    """The command line of ./bench that the target stands for; None where it runs with the variables as they are.

    Raises UserError where the text of ARGS has a quote without its end.
    """
    if target == "plot":
        results = variables.get("RESULTS", "").split()
        return ["plot", *(["--results", *results] if results else [])]
    if target not in OPTIONS:
        return None
    words = [target]
    if target == "compare":
        words += [variables.get("A") or "results/latest", *filter(None, [variables.get("B")])]
    for name, option in OPTIONS[target].items():
        words += [option, variables[name]] if variables.get(name) else []
    try:
        return [*words, *shlex.split(variables.get("ARGS", ""))]
    except ValueError as error:
        raise UserError(f"ARGS is {variables['ARGS']!r}: {error}") from None


def run_with_variables(target: str) -> int:
    """Run a target that reads the variables itself; returns its exit code."""
    if target == "setup":
        return 0
    if code := actions.ensure_data():
        return code
    if target == "data":
        return 0
    if target == "slurm-all":
        return actions.start_slurm_job()
    if target == "verify":
        return actions.prove()
    if target == "report":
        os.environ["STRATEGY"] = os.environ.get("STRATEGY") or DEFAULT_STRATEGY
        return actions.write_report(os.environ.get("RESULTS") or "results/latest", os.environ.get("MEASURE") != "no")
    if target == "bench-all":
        return actions.start_plan("all")
    raise UserError(f"the Makefile has no target {target!r} that ./bench runs")
