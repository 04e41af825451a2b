"""How the user typed an option: `--repeats 5` after ./bench, `REPEATS=5` with make or before a launcher.

    print(f"lower {option_as_typed('REPEATS')}")

An option of ./bench reaches launchers and jobs as an environment variable, which VARIABLE_OF_OPTION names. `./bench
COMMAND` lists the options that COMMAND has in the variable TYPED_OPTIONS. Needs no torch.
"""

import os
from collections.abc import Iterable, Sequence

VARIABLE_OF_OPTION = {
    "strategies": "STRATEGIES",
    "strategy": "STRATEGY",
    "strategy_dir": "STRATEGY_DIR",
    "data": "DATA",
    "config": "CONFIG",
    "results": "RESULTS",
    "repeats": "REPEATS",
    "until": "UNTIL",
    "budget": "BUDGET",
    "seeds": "SEEDS",
    "aa": "AA",
    "plan": "PLAN",
    "retry": "RETRY",
    "limit_s": "TIMEOUT",
    "nproc": "NPROC",
    "key": "KEY",
    "values": "VALUES",
    "ranks": "RANKS",
    "a": "A",
    "b": "B",
    "fail_over": "FAIL_OVER",
    "nodes": "NODES",
    "tasks_per_node": "TASKS_PER_NODE",
    "gpus_per_node": "GPUS_PER_NODE",
    "cpus_per_task": "CPUS_PER_TASK",
    "partition": "PARTITION",
    "account": "ACCOUNT",
    "qos": "QOS",
    "gpu_type": "GPU_TYPE",
    "memory": "MEMORY",
    "exclusive": "EXCLUSIVE",
    "time_min": "TIME",
    "warning_s": "WARNING_S",
    "container": "CONTAINER",
}
"""The variable of each option, by the option's name in scripts/options."""
MORE_VARIABLES = {"measure": "MEASURE"}
"""Those that no launcher reads."""
TYPED_OPTIONS = "TYPED_OPTIONS"
OPTION_OF = {variable: name for name, variable in (VARIABLE_OF_OPTION | MORE_VARIABLES).items()}
AFTER_DASHES = "the options after --"


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command line before the first `--`, and those after it."""
    at = [*words, "--"].index("--")
    return [*words[:at]], [*words[at + 1 :]]


def remember_options(names: Iterable[str]) -> None:
    """Note that the user typed a command of ./bench, which has options with these names."""
    os.environ[TYPED_OPTIONS] = " ".join(["--", *names])


def option_as_typed(variable: str, value: object = None) -> str:
    """The option that has this variable, as the user types it; with a value, as the user types both.

    `--measure` with the value `no` is --no-measure. A variable that the typed command has no option for keeps its name.
    """
    typed = os.environ.get(TYPED_OPTIONS, "").split()
    if variable == "ARGS" and typed:
        return AFTER_DASHES
    name = OPTION_OF.get(variable, "")
    if not name or name not in typed:
        return variable if value is None else f"{variable}={value}"
    flag = name.replace("_", "-")
    if value == "no":
        return f"--no-{flag}"
    return f"--{flag}" if value in (None, "", "yes") else f"--{flag} {value}"
