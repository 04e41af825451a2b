"""The strategies, and the baselines of mixed precision. Needs no torch."""

import ast
import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks.common.config import Config, Precision, resolve_precision
from benchmarks.common.errors import UserError
from scripts.shared import gpus
from scripts.shared.external import BENCHMARKS, NAME, external_folder, external_script, load_external
from scripts.shared.nodes import ranks_and_nodes

BASELINE = "single"  # what speed-ups are over
# What bench-all runs by default, in this order; others follow by name.
CORE_STRATEGIES = [
    BASELINE, "dataparallel", "ddp", "ddp_spawn", "apex_ddp", "ddp_amp", "horovod_ddp", "hybrid_parallel",
    "model_parallel", "pipeline_parallel", "slurm",
]  # fmt: skip


def all_strategies() -> list[str]:
    """In the order of bench-all."""
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "__init__")
    return [*CORE_STRATEGIES, *(name for name in names if name not in CORE_STRATEGIES)]


def parse_strategies(text: str) -> list[str]:
    """All of this repository for no text, and for `all`. Raises UserError for an unknown strategy, and for one that two
    repositories have."""
    known, folder = all_strategies(), external_folder()
    if text.strip() == "all":
        return known
    for name in text.split():
        if folder and name in known and (folder / f"{name}.py").exists():
            raise UserError(f"{folder / name}.py has the name of a strategy of this repository; rename it")
        if not is_known(name):
            own = [path.stem for path in folder.glob("*.py")] if folder else []
            there = [*known, *filter(NAME.fullmatch, own)]
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}"
            raise UserError(f"no strategy {name!r}; {hint}")
    return list(dict.fromkeys(text.split())) or known


def parse_strategy(text: str) -> str:
    """Raises UserError for several, or an unknown one."""
    names = parse_strategies(text)
    if len(names) > 1:
        raise UserError(f"one strategy is needed, not {text!r}; there are {', '.join(all_strategies())}")
    return names[0]


def is_known(strategy: str) -> bool:
    return strategy in all_strategies() or external_script(strategy) is not None


def script_of(strategy: str) -> Path:
    path = BENCHMARKS / f"{strategy}.py"
    return path if path.exists() else external_script(strategy) or path


def load_script(strategy: str) -> ModuleType:
    """Imports torch."""
    script = script_of(strategy)
    return importlib.import_module(f"benchmarks.{strategy}") if script.parent == BENCHMARKS else load_external(script)


def has_fact(strategy: str, name: str) -> bool:
    """In the script's FACTS, read without an import: `one_node`, it cannot span nodes; `mixed_precision`, it scales
    gradients, and takes fp32, the default, as auto. Raises UserError where the script is no Python."""
    script = script_of(strategy)
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UserError(f"{script}, line {error.lineno}: {error.msg}; fix the script") from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FACTS":
            return bool(ast.literal_eval(node.value).get(name))
    return False


def total_ranks_and_nodes(strategy: str, ranks_here: int) -> tuple[int, int]:
    return (ranks_here, 1) if has_fact(strategy, "one_node") else ranks_and_nodes(ranks_here)


def comparison_runs_of_mixed_precision(config: Config, strategies: Sequence[str]) -> list[tuple[str, Precision, int]]:
    """(strategy, precision, ranks on this machine; 0: as the others): the baseline in the same precision, or in fp16,
    in which it cannot train, one rank of the first such strategy."""
    mixed = [name for name in strategies if has_fact(name, "mixed_precision")]
    if not mixed or BASELINE not in strategies:
        return []
    capability = gpus.min_compute_capability()
    try:
        precision = resolve_precision(config.precision, capability, mixed=True)
    except UserError:  # each run reports it
        return []
    if precision == "fp16":
        return [(mixed[0], config.precision, 1)]
    return [] if precision == resolve_precision(config.precision, capability) else [(BASELINE, precision, 0)]
