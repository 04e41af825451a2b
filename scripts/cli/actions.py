"""What a command does that is more than one function of a module.

A function gets the command's options, and what follows `--`; those with --json also get a dict for the result. It
returns the exit code. Modules of the suite are imported when they are needed: some load torch.
"""

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from benchmarks.common.errors import UserError
from scripts.options import data_options, run_options
from scripts.shared.forward_signals import forward_signals
from scripts.shared.programs import exit_code
from scripts.shared.repository import ROOT
from scripts.studies import options as study_options

AB_FAILED = 4
"""ab.RUN_FAILED, also where ab cannot be imported."""


def ensure_data(options: Any) -> int:
    """Make imagenet-mini, where no data set is named; returns the exit code."""
    if getattr(options, "data", None):
        return 0
    from scripts.data import mini

    return mini.main(data_options.MakeDatasetOptions())


def use_strategy_dir(options: Any) -> None:
    """Have names of strategies found in the folder that --strategy-dir names. It chooses code to run: only this option
    sets it."""
    from scripts.shared.external import FOLDER_VARIABLE

    os.environ.pop(FOLDER_VARIABLE, None)
    if folder := getattr(options, "strategy_dir", None):
        os.environ[FOLDER_VARIABLE] = str(folder)


# --- runs ---------------------------------------------------------------------------------------------------------


def run_strategies(options: run_options.BenchRunOptions, flags: Sequence[str]) -> int:
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


def run_slurm(options: run_options.SlurmOptions, flags: Sequence[str]) -> int:
    from scripts.runner import slurm

    words = [*options.strategies]
    for field in dataclasses.fields(run_options.RunOptions):
        value = getattr(options, field.name)
        if field.name not in ("strategies", "plan", "results", "nproc") and value not in (field.default, None):
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return ensure_data(options) or slurm.main(options, words, flags)


def ab(options: study_options.AbOptions, flags: Sequence[str], found: dict[str, Any]) -> int:
    """It ends with 1 for one reason alone, that B is slower: what crashes ends with AB_FAILED."""
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


def verify(options: run_options.VerifyOptions, flags: Sequence[str], found: dict[str, Any]) -> int:
    from scripts.verify import verify

    use_strategy_dir(options)
    return ensure_data(options) or verify.command(options, flags, found)


def forecast_memory(options: run_options.MemoryOptions, flags: Sequence[str]) -> int:
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
    use_num_ranks(options.nproc)
    return profile_step.profile_on_ranks(options, flags)


def use_num_ranks(nproc: int | None) -> None:
    if nproc:
        os.environ["NPROC"] = str(nproc)


# --- data, and the rest -------------------------------------------------------------------------------------------


def list_flags(options: data_options.NoOptions, flags: Sequence[str]) -> int:
    from benchmarks.common.config import load_config

    load_config(["--help"])
    return 0


def kill_fuzz(options: data_options.KillFuzzOptions, flags: Sequence[str]) -> int:
    given = {"--kills": options.kills, "--seed": options.seed}
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    env = os.environ | {"PYTHONPATH": "tests"}
    with forward_signals() as child_runner:
        code = child_runner.run([sys.executable, "-m", "faults.kill_fuzz", *words], cwd=ROOT, env=env)
    return 128 + child_runner.signum if child_runner.signum else code


def nothing(options: data_options.NoOptions, flags: Sequence[str]) -> int:
    """The set-up was done before (start.py)."""
    return 0
