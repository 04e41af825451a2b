"""What people turn on to train faster: the points of `./bench study sweep --each-option`.

How images are read is the configuration's, at every point: `--key loader`, `decoder` and `workers` compare that.
"""

import dataclasses
from typing import Any

from benchmarks.common import machine
from benchmarks.common.config import resolve_precision
from benchmarks.common.errors import UserError
from benchmarks.common.machine import missing_compiler
from scripts.results.settings import READERS
from scripts.runner.request import Request
from scripts.shared import gpus
from scripts.shared.nodes import ranks_and_nodes
from scripts.studies.sweep.points import Point

BASELINE_POINT, ALL_TOGETHER = "nothing on", "all together"
Fields = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Option:
    """off, on: fields without it and with it. needs: what not every machine or run has. own_threads: a rank has all its
    cores; else one thread."""

    name: str
    off: Fields
    on: Fields
    needs: str = ""
    own_threads: bool = False


OPTIONS = (
    Option("channels_last", {"memory_format": "contiguous"}, {"memory_format": "channels_last"}),
    Option("bf16", {"precision": "fp32"}, {"precision": "bf16"}, "bf16"),
    Option("fused optimizer", {"fused": False}, {"fused": True}),
    Option("torch.compile", {"compile": False}, {"compile": True}, "compiler"),
    Option("CUDA graphs (and compile)", {"cuda_graphs": False}, {"compile": True, "cuda_graphs": True}, "cuda"),
    Option("cudnn.benchmark", {"cudnn_benchmark": False}, {"cudnn_benchmark": True}, "cuda"),
    Option("buckets of 100 MiB", {"bucket_cap_mb": 0.0}, {"bucket_cap_mb": 100.0}, "ranks"),
    Option("static_graph", {"static_graph": False}, {"static_graph": True}, "ranks"),
    Option("gradient_as_bucket_view", {"gradient_as_bucket_view": False}, {"gradient_as_bucket_view": True}, "ranks"),
    Option("a thread a core", {}, {}, own_threads=True),
)


def option_points(request: Request, strategy: str) -> list[Point]:
    options = [each for each in OPTIONS if all(strategy in READERS.get(name, [strategy]) for name in each.on)]
    why_not = {each.name: why_not_here(each, request.ranks_here) for each in options}
    off = {name: value for each in options for name, value in each.off.items()}
    able = [each for each in options if not why_not[each.name]]

    def point(label: str, turned_on: list[Option]) -> Point:
        fields = off | {name: value for each in turned_on for name, value in each.on.items()}
        own = any(each.own_threads for each in turned_on)
        threads = machine.threads_per_rank(request.ranks_here) if own else 1
        return Point(label, fields, request.ranks_here, threads, why_not.get(label, ""))

    alone = [point(each.name, [each]) for each in options]
    return [point(BASELINE_POINT, []), *alone, point(ALL_TOGETHER, able)]


def why_not_here(option: Option, ranks_here: int) -> str:
    """'' for what can run."""
    on_gpu = machine.num_gpus() > 0
    if option.needs == "cuda" and not on_gpu:
        return "needs a GPU"
    if option.needs == "compiler":
        return missing_compiler(on_gpu=on_gpu)
    if option.needs == "ranks" and ranks_and_nodes(ranks_here)[0] < 2:
        return "needs two ranks or more, which talk to each other"
    if option.needs == "bf16":
        try:
            resolve_precision("bf16", gpus.min_compute_capability())
        except UserError as error:
            return str(error)
    return ""
