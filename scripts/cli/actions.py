"""Commands that are more than one function of a module. Each gets the command's options, what follows `--`, and with
--json a dict for the result; it returns the exit code. What loads torch is imported when it is needed."""

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from benchmarks.common.errors import UserError
from scripts.cli.options import BenchRunOptions, SlurmOptions
from scripts.data.options import MakeDatasetOptions
from scripts.memory.options import MemoryOptions
from scripts.runner.options import RunOptions
from scripts.shared.option_types import NoOptions
from scripts.shared.programs import exit_code
from scripts.studies import options as study_options
from scripts.verify.options import VerifyOptions

AB_FAILED = 4
"""ab.RUN_FAILED, also where ab cannot be imported."""


def ensure_data(options: Any) -> int:
    """imagenet-mini, where no data set is named."""
    if getattr(options, "data", None):
        return 0
    from scripts.data import mini

    return mini.main(MakeDatasetOptions())


def use_strategy_dir(options: Any) -> None:
    """Of --strategy-dir. It chooses code to run: only this option sets it."""
    from scripts.shared.external import FOLDER_VARIABLE

    os.environ.pop(FOLDER_VARIABLE, None)
    if folder := getattr(options, "strategy_dir", None):
        os.environ[FOLDER_VARIABLE] = str(folder)


# --- runs ---------------------------------------------------------------------------------------------------------


def run_strategies(options: BenchRunOptions, flags: Sequence[str]) -> int:
    use_strategy_dir(options)
    if code := ensure_data(options):
        return code
    if options.one_gpu:
        from scripts.studies.sweep import plan

        return exit_code(lambda: plan.run_on_one_gpu(options, flags), errors=(), writes="the suite")
    from scripts.runner import loop
    from scripts.runner.request import read_request

    return exit_code(lambda: loop.main(read_request(options, flags)), errors=(), writes="the suite")


def sweep(options: study_options.SweepOptions, flags: Sequence[str]) -> int:
    from scripts.studies.sweep import plan

    return ensure_data(options) or exit_code(lambda: plan.main(options, flags), errors=(), writes="the suite")


def run_slurm(options: SlurmOptions, flags: Sequence[str]) -> int:
    from scripts.runner import slurm

    words = [*options.strategies]
    for field in dataclasses.fields(RunOptions):
        value = getattr(options, field.name)
        if field.name not in ("strategies", "plan", "results", "nproc") and value not in (field.default, None):
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return ensure_data(options) or slurm.main(options, words, flags)


def ab(options: study_options.AbOptions, flags: Sequence[str], found: dict[str, Any]) -> int:
    """It ends with 1 where B is slower, and for nothing else: what crashes ends with AB_FAILED."""
    use_strategy_dir(options)
    try:
        from scripts.studies.ab import ab

        if code := ensure_data(options):
            return AB_FAILED if code == 1 else code
        return exit_code(lambda: ab.main(options, flags, found), errors=(), writes="ab")
    except (UserError, ValueError):
        raise
    except Exception as error:
        traceback.print_exc()
        print(f"failed: nothing was compared: {type(error).__name__}: {error}", file=sys.stderr)
        found["failed"] = f"{type(error).__name__}: {error}"
        return AB_FAILED


def verify(options: VerifyOptions, flags: Sequence[str], found: dict[str, Any]) -> int:
    from scripts.verify import verify

    use_strategy_dir(options)
    if code := ensure_data(options):
        return code
    return exit_code(lambda: verify.main(options, flags, found), errors=(), writes="the set")


def forecast_memory(options: MemoryOptions, flags: Sequence[str]) -> int:
    from benchmarks.common.config import load_config
    from scripts.memory import memory_check

    return memory_check.main(options, load_config([*flags]))


# --- studies that start no runs of strategies ---------------------------------------------------------------------


def loaders(options: study_options.LoadersOptions, flags: Sequence[str]) -> int:
    from scripts.studies.loaders import measure

    return ensure_data(options) or exit_code(lambda: measure.main(options, flags), errors=(), writes="the suite")


def profile(options: study_options.ProfileOptions, flags: Sequence[str]) -> int:
    from scripts.studies.profile import profile_step

    use_strategy_dir(options)
    if options.nproc:
        os.environ["NPROC"] = str(options.nproc)
    return profile_step.profile_on_ranks(options, flags)


# --- data, and the rest -------------------------------------------------------------------------------------------


def list_flags(options: NoOptions, flags: Sequence[str]) -> int:
    from benchmarks.common.config import load_config

    load_config(["--help"])
    return 0


def nothing(options: NoOptions, flags: Sequence[str]) -> int:
    """start.py has set up."""
    return 0
