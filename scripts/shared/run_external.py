"""A rank of a strategy of another repository, for launchers/external.sh.

STRATEGY_DIR=../my-library/benchmarks python -m scripts.shared.run_external mine --config configs/smoke.yaml
"""

import dataclasses
import runpy
import sys
from collections.abc import Sequence

import tyro

from benchmarks.common.errors import UserError
from benchmarks.common.exits import run_and_exit
from benchmarks.common.run_folder import RunFolder
from scripts.shared.external import STRATEGY_SOURCE, external_script, find_helpers, source_hash


@dataclasses.dataclass(frozen=True)
class ExternalOptions:
    name: tyro.conf.Positional[str]
    """The strategy, without .py; every other flag is a configuration field."""


def main(name: str, flags: Sequence[str]) -> None:
    """Raises UserError where the script is missing, does not end the process, or has changed since the plan."""
    script = external_script(name)
    if script is None:
        raise UserError(f"--strategy-dir has no {name}.py; name the folder that has it")
    folder = RunFolder.current()
    planned = folder.requested().get(STRATEGY_SOURCE) if folder else None
    if planned not in (None, source_hash(script.parent)):
        raise UserError(f"Python files in {script.parent} have changed since the run was planned; start it again")
    find_helpers(script)
    sys.argv = [str(script), *flags]
    runpy.run_path(str(script), run_name="__main__")
    raise UserError(f"{script} has trained nothing; let it end as benchmarks/ddp.py does")


def run_command_line() -> None:
    options, flags = tyro.cli(ExternalOptions, description=__doc__, return_unknown_args=True)
    run_and_exit(lambda: main(options.name, flags))


if __name__ == "__main__":
    run_command_line()
