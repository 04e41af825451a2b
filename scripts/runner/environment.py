"""Writes what the numbers depend on, hardware, drivers, libraries and threads, into environment.json of a set.

python -m scripts.runner.environment --results results/x
"""

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil
import tyro

from benchmarks.common import machine
from benchmarks.common.files import write_json
from benchmarks.common.rows import SCHEMA
from scripts.shared.programs import run_main_and_exit

PACKAGES = ("torch", "torchvision", "horovod", "apex", "numpy", "pillow", "pandas", "scipy")
RECORDED_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HOSTS", "RDZV_ENDPOINT")
"""Of which no run's settings have the value."""


def describe_environment(command: str) -> dict:
    from torch.utils.collect_env import get_pretty_env_info

    from scripts.runner.device_peak import measure_peak

    return {
        "schema": SCHEMA,
        "command": command,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "num_cores": machine.num_cores(),
        "memory_gb": psutil.virtual_memory().total / 1e9,
        "packages": {each.name: each.version for each in importlib.metadata.distributions() if each.name in PACKAGES},
        "variables": {name: os.environ.get(name, "") for name in RECORDED_VARIABLES},
        "measured_peak": measure_peak(),
        "collect_env": get_pretty_env_info(),
    }


def main(results: Path, command: str = "") -> None:
    """command: that started the runs."""
    write_json(results / "environment.json", describe_environment(command))


if __name__ == "__main__":
    run_main_and_exit(lambda: tyro.cli(main), writes="environment.json")
