"""The facts of a machine in a set's environment.json, checked: sets come from others, and old ones have fewer facts.

    facts = read_environment(results / "environment.json")

scripts/runner/environment.py writes them. Needs no torch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.system.files import read_set_file

LIMIT_BYTES = 2**26


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12


def _are_amounts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_amount, value.values()))


def _is_peak(value: object) -> bool:
    """Whether it is what measure_peak returns, which MFU divides by."""
    if not isinstance(value, dict) or not isinstance(value.get("device_name"), str):
        return False
    threads, passes = value.get("threads"), value.get("passes", [])
    whole = _are_amounts(value.get("tflops")) and (threads is None or _is_amount(threads))
    return whole and isinstance(passes, list) and all(map(_are_amounts, passes))


# What a fact must be; another is left out.
FACT_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("platform", "python", "collect_env"), lambda value: isinstance(value, str)),
    "num_cores": lambda value: type(value) is int and 0 < value < 10**6,
    "memory_gb": _is_amount,
    "packages": lambda value: isinstance(value, dict) and all(isinstance(each, str | None) for each in value.values()),
    "variables": lambda value: isinstance(value, dict),
    "measured_peak": _is_peak,
}


def read_environment(path: Path) -> dict[str, Any]:
    """The facts by name. Raises OSError, ValueError or RecursionError for a file that is missing or cannot be read, and
    ValueError for one that holds no facts."""
    found = json.loads(read_set_file(path, LIMIT_BYTES))
    if not isinstance(found, dict):
        raise ValueError("it holds no facts of the machine")
    return {name: value for name, value in found.items() if FACT_CHECKS.get(name, lambda value: True)(value)}
