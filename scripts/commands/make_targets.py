"""What the Makefile's targets run: `./bench make TARGET`, with Make's variables in the environment. Targets that
start runs read them as they are; for the others this module says which option each is."""

import difflib
import os
import re
import shlex
from collections.abc import Mapping

from benchmarks.common.errors import UserError
from scripts.commands import actions
from scripts.options.run_options import DEFAULT_STRATEGY
from scripts.shared.options_as_typed import VARIABLE_OF_OPTION

OPTIONS = {
    "compare": {"FAIL_OVER": "--fail-over"},
}
"""Of a target, by the variable that has their value. ARGS has further ones."""

OF_COMMANDS_ALONE = {"STRATEGY", "STRATEGY_DIR", "KEY", "VALUES", "RANKS"}
VARIABLES = {*VARIABLE_OF_OPTION.values()} - OF_COMMANDS_ALONE | {
    *("ARGS", "MEASURE", "SETUP", "PYTHON", "PIP_ARGS", "TORCH", "TORCH_INDEX", "DEVICE", "HOSTS", "NNODES"),
    *("NODE_RANK", "RDZV_ENDPOINT", "THREADS_PER_RANK", "PACKED", "NUM_GPUS", "GPU_MEMORY_GB", "APEX_GIT"),
}
"""Of targets that ./bench runs. Make exports every other one to the runs, too."""


def refuse_misspelt(makeflags: str) -> None:
    """Raises UserError where make's command line has a variable that looks like one of VARIABLES, such as REPEAT=3.
    makeflags: what make exports as MAKEFLAGS."""
    for name in re.findall(r"(?<!\\)\s(\w+)=", makeflags.partition("-- ")[1] + makeflags.partition("-- ")[2]):
        near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.77)
        if near and name not in VARIABLES:
            raise UserError(f"make has no variable {name}; did you mean {near[0]}?")


def words_of(target: str, variables: Mapping[str, str]) -> list[str] | None:
    """The command line of ./bench that the target stands for; None where it reads the variables itself."""
    if target == "plot":
        results = variables.get("RESULTS", "").split()
        return ["plot", *(["--results", *results] if results else [])]
    if target not in OPTIONS:
        return None
    words = [target]
    if target == "compare":
        words += [variables.get("A") or "results/latest", *filter(None, [variables.get("B")])]
    for name, option in OPTIONS[target].items():
        if variables.get(name):
            words += [option, variables[name]]
    try:
        return [*words, *shlex.split(variables.get("ARGS", ""))]
    except ValueError as error:
        raise UserError(f"ARGS is {variables['ARGS']!r}: {error}") from None


def run_with_variables(target: str) -> int:
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
