"""`./bench study sweep`: one strategy at several points, each a set of flags, or a number of ranks.

    ./bench study sweep --strategy ddp --key bucket_cap_mb --values 1 5 25 100
    ./bench study sweep --strategy ddp --key ranks --values 1 2 4 8 --weak
    ./bench study sweep --strategy ddp --each-option

The points are the runs of a round; sweeps.json of the set says what they are.
"""

import csv
import dataclasses
import os
import shlex
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import machine
from benchmarks.common.config import (
    FIELD_TYPES,
    NOT_COMPARED,
    check_value,
    find_field,
    load_config,
    resolve_global_batch,
)
from benchmarks.common.errors import UserError
from scripts.results.settings import READERS
from scripts.runner import loop, preflight
from scripts.runner.default_batch import with_fitting_batch
from scripts.runner.plan import Run, make_run
from scripts.runner.request import Request, read_request, with_images
from scripts.shared import strategy_list
from scripts.studies.options import SweepOptions
from scripts.studies.sweep.each_option import BASELINE_POINT, option_points
from scripts.studies.sweep.points import EACH_OPTION, RANKS, Exchange, Point, Sweep, record_sweep

EXAMPLE = "./bench study sweep --strategy ddp --key bucket_cap_mb --values 1 5 25 100"
ACCOUNT_STEPS = 4  # of a pipeline, whose bubble the chart shows
BUCKET_BYTES = 25 * 2**20  # of DDP


def main(options: SweepOptions, flags: Sequence[str]) -> int:
    request = with_images(read_request(options, flags))
    if options.each_option:
        request = with_fitting_batch(request)
    strategy, key = strategy_list.parse_strategy(options.strategy), name_of_key(options)
    points = find_points(request, options, strategy, key)
    runs = plan_points(request, strategy, points)  # a mistake in a value is found before there is a folder
    planned = {run.variant: run.requested_hash for run in runs}
    to = options.to or next(iter(planned))
    if to not in planned:
        raise UserError(f"--to is {to!r}, but the points are {', '.join(planned)}")
    if not options.plan:
        results = preflight.open_result_set(request.results, "sweep-")
        exchange = read_exchange(options.allreduce, runs[0].config.arch) if options.allreduce else None
        ranks = "" if key == RANKS else f"--nproc {request.ranks_here} -- "
        record_sweep(
            results, Sweep(strategy, key, to, options.weak, ranks + shlex.join(request.flags), planned, exchange)
        )
        request = dataclasses.replace(request, results=results)
    suite = loop.Suite(lambda request: plan_points(request, strategy, points), "scripts.studies.sweep.chart")
    return loop.main(request, suite)


def name_of_key(options: SweepOptions) -> str:
    if options.each_option:
        if options.key or options.values:
            raise UserError("--each-option names the points itself; leave --key and --values out")
        return EACH_OPTION
    for name in ("key", "values"):
        if not getattr(options, name):
            raise UserError(f"--{name} is missing; for example: {EXAMPLE}")
    if options.key == RANKS:
        return RANKS
    if options.weak or options.allreduce:
        raise UserError("--weak and --allreduce go with --key ranks")
    key = find_field(options.key)
    if key in NOT_COMPARED:
        raise UserError(f"--key {key} cannot change what is measured ({NOT_COMPARED[key]}); sweep another option")
    return key


def find_points(request: Request, options: SweepOptions, strategy: str, key: str) -> list[Point]:
    if key == EACH_OPTION:
        return option_points(request, strategy)
    if key == RANKS:
        return ranks_points(request, options.values, options.weak)
    if key in READERS and strategy not in READERS[key]:
        raise UserError(f"{strategy} does not read {key}; {', '.join(READERS[key])} do")
    return [Point(text, {key: parse_value(key, text)}) for text in options.values]


def parse_value(key: str, text: str) -> Any:
    is_word = FIELD_TYPES[key] is str or text in typing.get_args(FIELD_TYPES[key])
    return check_value("--values", key, text if is_word else yaml.safe_load(text))


def ranks_points(request: Request, words: Sequence[str], weak: bool) -> list[Point]:
    """All have the threads a rank of the most ranks, and one global batch, or with `weak` the same images a rank."""
    if not all(word.isascii() and word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--values is {' '.join(words)[:80]!r}, but must be some numbers of ranks")
    if elsewhere := [name for name in ("HOSTS", "NNODES") if os.environ.get(name)]:
        raise UserError(f"--key ranks is for the ranks of this machine; leave {elsewhere[0]} out")
    numbers = sorted({int(word) for word in words})
    config, most = load_config(request.flags), numbers[-1]
    preflight.check_ranks([config], numbers, "--values")
    batch, threads = resolve_global_batch(config, most).global_batch, machine.threads_per_rank(most)
    batches = {number: batch // most * number if weak else batch for number in numbers}
    return [Point(str(number), {"global_batch": batches[number]}, number, threads) for number in numbers]


def plan_points(request: Request, strategy: str, points: Sequence[Point]) -> list[Run]:
    """The timed part, and of a pipeline also steps whose phases are timed. Points that come to the same, such as 5 and
    5.0, are one."""
    runs: dict[str, Run] = {}
    for point in points:
        flags = flag_words(point.fields)
        config = load_config([*request.flags, *flags])
        if not point.ranks:
            preflight.check_ranks([config], [request.ranks_here])
        typed = " ".join([request.own_text, *flags]).strip()
        run = make_run(request, strategy, config, typed, point.threads, point.ranks).timed_part()
        if strategy == "pipeline_parallel":
            run = run.with_config(dataclasses.replace(run.config, account_steps=config.account_steps or ACCOUNT_STEPS))
        runs.setdefault(run.requested_hash, dataclasses.replace(run, variant=point.label, skip=point.why_not))
    return [*runs.values()]


def flag_words(fields: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def read_exchange(folder: Path, arch: str) -> Exchange:
    """From what `./bench study allreduce` has measured."""
    import torch
    from torchvision.models import get_model

    try:
        with open(folder / "bandwidths.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["path"].endswith("fp32")]
        nearest = min(rows, key=lambda row: abs(int(row["bytes"]) - BUCKET_BYTES))
        bus_bytes_per_s = float(nearest["bus_bytes_per_s"])
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{folder}/bandwidths.csv: {error}; ./bench study allreduce writes it") from None
    with torch.device("meta"):
        num_parameters = sum(each.numel() for each in get_model(arch).parameters())
    return Exchange(4 * num_parameters, bus_bytes_per_s)


def run_on_one_gpu(options: Any, flags: Sequence[str]) -> int:
    """`./bench run --one-gpu`: each option of `single`. options: those of ./bench run."""
    if options.strategies or options.nproc not in (None, 1):
        raise UserError("--one-gpu compares options of one process; leave the strategies and --nproc out")
    names = {field.name for field in dataclasses.fields(SweepOptions)}
    given = {name: value for name, value in vars(options).items() if name in names}
    chosen = given | {"strategy": strategy_list.BASELINE, "each_option": True, "to": BASELINE_POINT, "nproc": 1}
    return main(SweepOptions(**chosen), flags)
