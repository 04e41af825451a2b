"""Writes what the numbers depend on: hardware, drivers, libraries, threads, into environment.json of a set.

python -m scripts.runner.environment --results results/x
"""

import dataclasses
import importlib.metadata
import json
import os
import platform
from pathlib import Path

import psutil
import tyro

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_json
from benchmarks.common.rows import SCHEMA
from scripts.shared.programs import run_main_and_exit

PACKAGES = ("torch", "torchvision", "horovod", "apex", "numpy", "pillow", "pandas", "scipy")
RECORDED_VARIABLES = (
    "NPROC", "NUM_GPUS", "THREADS_PER_RANK", "NODES", "NNODES", "NODE_RANK", "RDZV_ENDPOINT", "HOSTS", "CONTAINER",
    "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_JOB_PARTITION",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class EnvironmentOptions:
    results: Path
    command: str = ""
    """That started the runs."""


def installed_packages() -> dict[str, str | None]:
    installed: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = None
    return installed


def add_packages(path: Path) -> None:
    """Add to an environment.json the versions of packages that it lacks, such as Horovod's, which was built later."""
    noted = json.loads(path.read_text())
    known = {name: version for name, version in noted.get("packages", {}).items() if version}
    if noted.get("packages") not in (None, packages := installed_packages() | known):
        write_json(path, noted | {"packages": packages})


def describe_environment(command: str) -> dict:
    """Facts of this machine and this interpreter, as text and numbers. command: that started the runs."""
    from torch.utils.collect_env import get_pretty_env_info

    from scripts.runner.device_peak import measure_peak

    return {
        "schema": SCHEMA,
        "command": command,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "num_cores": machine.num_cores(),
        "memory_gb": psutil.virtual_memory().total / 1e9,
        "packages": installed_packages(),
        "variables": {name: os.environ.get(name, "") for name in RECORDED_VARIABLES},
        "measured_peak": measure_peak(),
        "collect_env": get_pretty_env_info(),
    }


def write_environment(path: Path, command: str) -> None:
    try:
        write_json(path, describe_environment(command))
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; the report will lack hardware and versions"
        ) from None


if __name__ == "__main__":
    options = tyro.cli(EnvironmentOptions)
    run_main_and_exit(lambda: write_environment(options.results / "environment.json", options.command))
