"""What a command does that is more than one function of a module.

A function gets the command's options, and what follows `--`; those with --json also get a dict for the result. It
returns the exit code. Modules of the suite are imported when they are needed: some load torch.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.common.errors import UserError
from scripts.options import data_options, run_options, set_options, study_options
from scripts.options.run_options import set_variables
from scripts.shared.forward_signals import forward_signals
from scripts.shared.programs import exit_code
from scripts.shared.repository import ROOT

AB_FAILED = 4
"""ab.RUN_FAILED, also where ab cannot be imported."""

# --- what several commands do -------------------------------------------------------------------------------------


def ensure_data() -> int:
    """Make imagenet-mini, where DATA is not given; returns the exit code."""
    if os.environ.get("DATA"):
        return 0
    from scripts.data import mini

    return mini.main(data_options.MakeDatasetOptions())


def start_plan(name: str) -> int:
    """Run the plan `name`: all, or a study with a plan."""
    from scripts.runner import bench

    return exit_code(lambda: bench.main(name), errors=(), writes="the suite")


def start_slurm_job() -> NoReturn:
    """Become the program that submits the job and follows it."""
    os.execv(ROOT / "launchers/slurm_all.sh", ["launchers/slurm_all.sh"])


def prove(steps: run_options.ProofOptions | None = None, found: dict[str, Any] | None = None) -> int:
    from scripts.proof import verify

    return verify.command(steps or run_options.ProofOptions(), found)


def write_report(results: Path | str, measure: bool) -> int:
    """The report of a set, after what it lacks was measured where `measure` is true."""
    from scripts.commands import measure_missing
    from scripts.pages import page

    failed = measure_missing.measure(Path(results)) if measure else 0
    if failed > 1:  # a signal ended it
        return failed
    return page.main(set_options.ReportOptions(Path(results))) or failed


def run_with_data(name: str, options: Any, flags: Sequence[str]) -> int:
    set_variables(options, flags)
    return ensure_data() or start_plan(name)


# --- runs ---------------------------------------------------------------------------------------------------------


def run_strategies(options: run_options.BenchRunOptions, flags: Sequence[str]) -> int:
    if options.one_gpu:
        return run_on_one_gpu(options, flags)
    return run_with_data("all", options, flags)


def run_on_one_gpu(options: run_options.BenchRunOptions, flags: Sequence[str]) -> int:
    """The study of options, of the baseline, which divides nothing."""
    from scripts.strategies.strategy_list import BASELINE

    if options.strategies or options.nproc not in (None, 1):
        raise UserError("--one-gpu compares options of one process; leave the strategies and --nproc out")
    set_variables(options, flags)
    os.environ.update(STRATEGY=BASELINE, NPROC="1")
    return ensure_data() or start_plan("ablation")


def sweep(options: run_options.SweepOptions, flags: Sequence[str]) -> int:
    return run_with_data("sweep", options, flags)


def scaling(options: run_options.ScalingOptions, flags: Sequence[str]) -> int:
    return run_with_data("scaling", options, flags)


def ablation(options: run_options.AblationOptions, flags: Sequence[str]) -> int:
    return run_with_data("ablation", options, flags)


def run_slurm(options: run_options.SlurmOptions, flags: Sequence[str]) -> int:
    set_variables(options, flags)
    return ensure_data() or start_slurm_job()


def ab(options: run_options.AbOptions, flags: Sequence[str], found: dict[str, Any]) -> int:
    """It ends with 1 for one reason alone, that B is slower: what crashes ends with AB_FAILED."""
    set_variables(options, flags)
    try:
        from scripts.studies.ab import ab

        if code := ensure_data():
            return AB_FAILED if code == 1 else code
        return exit_code(lambda: ab.main(found), errors=(), writes="ab")
    except (UserError, ValueError):
        raise
    except Exception as error:
        traceback.print_exc()
        print(f"failed: nothing was compared: {type(error).__name__}: {error}", file=sys.stderr)
        found["failed"] = f"{type(error).__name__}: {error}"
        return AB_FAILED


def verify(options: run_options.VerifyOptions, flags: Sequence[str], found: dict[str, Any]) -> int:
    set_variables(options, flags)
    return ensure_data() or prove(run_options.ProofOptions(options.steps, options.missing), found)


def forecast_memory(options: run_options.MemoryOptions, flags: Sequence[str]) -> int:
    from benchmarks.common.config import load_config
    from scripts.strategies import memory_check

    return memory_check.main(options, load_config([*flags]))


# --- result sets --------------------------------------------------------------------------------------------------


def report(options: set_options.BenchReportOptions, flags: Sequence[str]) -> int:
    set_variables(options, flags)
    return (options.measure and ensure_data()) or write_report(options.results, options.measure)


# --- studies that start no runs of strategies ---------------------------------------------------------------------


def loaders(options: study_options.LoadersOptions, flags: Sequence[str]) -> int:
    from scripts.studies.loaders import measure

    if options.data == data_options.MakeDatasetOptions.output.as_posix() and (code := ensure_data()):
        return code
    return measure.main(options) or 0


def loader_limit(options: study_options.BenchLoaderLimitOptions, flags: Sequence[str]) -> int:
    set_variables(options, flags)
    from scripts.studies.loaders import measure_loader_limit, worker_counts

    if code := ensure_data():
        return code
    measure_loader_limit.measure_set(options.results)
    worker_counts.main_with_flags(study_options.WorkerCountsOptions(options.results))
    return 0


def allreduce(options: study_options.BenchAllreduceOptions, flags: Sequence[str]) -> int:
    set_variables(options, flags)
    from scripts.studies.allreduce import measure

    return measure.main(options)


def profile(options: study_options.BenchProfileOptions, flags: Sequence[str]) -> int:
    set_variables(options, flags)
    from scripts.studies.roofline import profile_step

    return profile_step.profile_on_ranks(options, flags)


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
