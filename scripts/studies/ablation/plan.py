"""The plan of `./bench study ablation`: a strategy's baseline, each option by itself, and all options together.

    ./bench study ablation --strategy ddp

The options are OPTIONS in scripts/studies/ablation/analysis.py. An option that cannot run here becomes a skipped row
with its reason.
"""

import dataclasses
import functools
import sys
from typing import Any

from benchmarks.common import machine
from benchmarks.common.config import Config, load_config, resolve_precision
from benchmarks.common.errors import UserError
from benchmarks.common.machine import missing_compiler
from benchmarks.common.packed import pack_path
from scripts.memory import memory_check
from scripts.runner import preflight
from scripts.runner.plan import Run, RunTemplate, make_run, order_rounds
from scripts.runner.request import Request, names_images
from scripts.shared import gpus, strategy_list
from scripts.shared.commands import bench_command
from scripts.shared.nodes import ranks_and_nodes
from scripts.studies.ablation.analysis import (
    ALL_TOGETHER,
    BASELINE_OPTION,
    CORES_OVER_RANKS,
    OPTIONS,
    Option,
    requested_fields,
)


def plan_runs(request: Request, strategy: str) -> list[Run]:
    """The strategy without options, with each option, and with all that can run here. Raises UserError for a value that
    is wrong."""
    strategy, config = strategy_list.parse_strategy(strategy), load_config(request.flags)
    if machine.num_gpus() and not names_images(request):
        config = dataclasses.replace(config, loader="synthetic")  # else Pillow's decoding would be most of the time
    config = with_a_batch_that_fits(request, strategy, config)
    preflight.check_ranks([config], [request.ranks_here])
    why_not = {option.name: missing(option, config, request.ranks_here) for option in OPTIONS}
    able = [option for option in OPTIONS if not why_not[option.name]]
    combinations: list[tuple[str, list[Option]]] = [(BASELINE_OPTION, [])]
    combinations += [(option.name, [option]) for option in OPTIONS]
    combinations.append((ALL_TOGETHER, able))

    def make(round_number: int, name: str, options: list[Option]) -> Run:
        fields: dict[str, Any] = requested_fields(options)
        if config.loader == "synthetic":
            fields["loader"] = "synthetic"
        threads = fields.pop("threads_per_rank")
        if threads == CORES_OVER_RANKS:
            threads = machine.threads_per_rank(request.ranks_here)
        changed = dataclasses.replace(config, **fields)
        template = RunTemplate(strategy, changed, request.own_text, threads, num_seeds=request.num_seeds)
        run = make_run(request, template, round_number)
        return dataclasses.replace(run.timed_part(), skip=why_not.get(name, ""), variant=name)

    def of_round(round_number: int) -> list[Run]:
        runs = [make(round_number, name, options) for name, options in combinations]
        # an option that changes nothing here, such as one thread per rank where a rank has one core, is no run
        return [run for place, run in enumerate(runs) if run.key not in {other.key for other in runs[:place]}]

    return order_rounds(request, of_round)


def with_a_batch_that_fits(request: Request, strategy: str, config: Config) -> Config:
    """The configuration with fewer images on a GPU where the baseline does not fit, unless the user named a batch."""
    words = {word.split("=")[0] for word in request.own_flags}
    if not config.batch_per_device or words & {"--batch-per-device", "--global-batch"}:
        return config
    fields: dict[str, Any] = {**requested_fields([]), "loader": config.loader}
    fields.pop("threads_per_rank")
    baseline = dataclasses.replace(config, **fields)
    num_ranks, num_nodes = ranks_and_nodes(request.ranks_here)
    case = memory_check.MemoryCase(strategy, baseline, num_ranks, num_nodes)
    return dataclasses.replace(config, batch_per_device=fitting_batch(case, request.ranks_here))


@functools.cache
def fitting_batch(case: memory_check.MemoryCase, ranks_here: int) -> int:
    """Images on a device with which the case fits; a note says where these are fewer than its own. It is found once, as
    it takes seconds and a plan is made for every round."""
    images, refused = memory_check.largest_fitting_batch([case], ranks_here)
    if refused:
        own = case.config.batch_per_device
        print(f"note: {images} images on a GPU instead of {own}, which do not fit: {refused[case]}", file=sys.stderr)
    return images


def missing(option: Option, config: Config, ranks_here: int) -> str:
    """What the option needs and this machine or run does not have, with the remedy; '' where the option can run."""
    if option.needs in ("cuda", "copies") and not machine.num_gpus():
        return "needs a GPU"
    if option.needs in ("files", "pack", "copies") and config.loader == "synthetic":
        return "images are synthetic, so that nothing is read; add -- --loader folder, which reads some"
    if option.needs == "compiler":
        return missing_compiler(on_gpu=machine.num_gpus() > 0)
    if option.needs == "ranks" and ranks_and_nodes(ranks_here)[0] < 2:
        return "needs two ranks or more, which talk to each other"
    if option.needs == "pack":
        packed = all(pack_path(config, part).exists() for part in ("train", "val"))
        pack = bench_command("data pack", data=config.data, pack=config.pack)
        return "" if packed else f"needs packed images: {pack} writes them"
    if option.needs == "bf16":
        try:
            resolve_precision("bf16", gpus.min_compute_capability())
        except UserError as error:
            return str(error)
    return ""


def chart_command(strategy: str) -> list[str]:
    """The module that draws the chart of these runs, and its flags."""
    return ["scripts.studies.ablation.chart", "--strategy", strategy_list.parse_strategy(strategy)]
