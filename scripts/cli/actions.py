"""Commands that are more than one function of a module. Each gets the command's options, and what follows `--`. What
loads torch is imported when it is needed."""

from collections.abc import Sequence

from scripts.cli.options import BenchRunOptions
from scripts.shared.option_types import NoOptions


def run_strategies(options: BenchRunOptions, flags: Sequence[str]) -> int:
    if options.one_gpu:
        from scripts.studies.sweep import plan

        return plan.run_on_one_gpu(options, flags)
    from scripts.runner import loop
    from scripts.runner.request import read_request

    return loop.main(read_request(options, flags))


def list_flags(options: NoOptions) -> None:
    from benchmarks.common.config import load_config

    load_config(["--help"])


def nothing(options: NoOptions) -> None:
    """start.py has set up."""
