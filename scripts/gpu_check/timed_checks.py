"""Of the list of `./bench gpu-check`: what times a GPU, and the options that act on one."""

import dataclasses
from pathlib import Path

from scripts.gpu_check import verdicts
from scripts.gpu_check.check import OF_PRECISION, PRECISIONS, Check, Scale, launched
from scripts.runner.run_plan import interpreter_path
from scripts.strategies.strategy_list import BASELINE, all_strategies, has_fact

FORMATS = ("contiguous", "channels_last")
FAST = "--precision bf16 --memory-format channels_last"
FOLDER = "--loader folder"
MIXED = next(name for name in all_strategies() if has_fact(name, "mixed_precision"))
COMPILED = "ddp_compile"  # the strategy that always compiles
DDP_FAST = ("ddp", "bf16", "channels_last")
PUBLISHED_FIRST = (
    (BASELINE, "bf16", "channels_last"),
    DDP_FAST,
    (MIXED, "fp16", "channels_last"),
)
"""Strategies, precisions and memory formats that a user would publish."""


# What a run of `fastest` takes on an H100, from which its estimate is made. Nobody has measured any of it on a GPU yet.
START_S = 15.0
"""Launcher, torchrun, imports, CUDA's context, NCCL, and the end."""
SEARCH_S_PER_IMAGE = 0.008
"""cuDNN's search in the first step."""
COMPILE_S = 30.0
"""No two of the runs share a graph."""
IMAGES_PER_S = 2000.0
NUM_IMAGES = 44 * 256
"""Of a run."""


def fastest(scale: Scale, results: Path) -> list[Check]:
    """What a user would publish: each in two batches, with and without --compile."""
    batches = ((scale.images, 256, ""), (scale.many_images, 1024, " many images"))
    return [
        dataclasses.replace(
            timed_run(scale, results, *point, images=images, compiled=compiled, named=named + " compile" * compiled),
            estimate_s=START_S + SEARCH_S_PER_IMAGE * batch + NUM_IMAGES / IMAGES_PER_S + COMPILE_S * compiled,
        )
        for images, batch, named in batches
        for compiled in (False, True)
        for point in PUBLISHED_FIRST
    ]


def matrix(scale: Scale, results: Path) -> list[Check]:
    """The other precisions and memory formats."""
    points = [(name, precision) for precision in PRECISIONS for name in (BASELINE, "ddp")]
    every = [(*point, memory_format) for point in [*points, (MIXED, "fp16")] for memory_format in FORMATS]
    return [timed_run(scale, results, *point, images=scale.images) for point in every if point not in PUBLISHED_FIRST]


def timed_run(
    scale: Scale,
    results: Path,
    strategy: str,
    precision: str,
    memory_format: str,
    *,
    images: str,
    compiled: bool = False,
    named: str = "",
) -> Check:
    return launched(
        f"time {strategy} {precision} {memory_format}{named}",
        f"{strategy} is timed in {precision}, {memory_format}{', compiled' if compiled else ''}, {images.strip('-')}",
        strategy,
        f"{images} --precision {precision} --memory-format {memory_format}{' --compile' if compiled else ''}",
        scale,
        results,
        verdicts.run_timed,
        variables={"NPROC": "1"} if strategy == MIXED else {},  # as one GPU's, beside the baseline
        needs=(*OF_PRECISION[precision], *(["compiler"] if compiled else [])),
        precision=precision,
        timed=True,
        estimate_s=90 if compiled else 40,
        limit_s=300,
    )


def new_nccl_group(scale: Scale, results: Path) -> Check:
    """ddp with what torch 2.15 calls `nccl`, beside `nccl-legacy`, which DDP strategies take (launchers/README.md)."""
    default = timed_run(scale, results, *DDP_FAST, images=scale.images)
    return dataclasses.replace(
        default,
        name=f"{default.name} new nccl group",
        claim=f"{default.claim}; with torch's new process group for NCCL",
        variables=default.variables | {"TORCH_DIST_USE_NCCL2": "1"},
        needs=(*default.needs, "two_gpus", "two_nccl_groups"),
    )


def compare(scale: Scale, results: Path) -> list[Check]:
    fast = f"{scale.images} {FAST}"
    images = ("--data", scale.data) if scale.data else ()
    workers = ("--workers", str(scale.loader_workers))
    config = ("--config", scale.config, "--loader", "folder", *workers, *images, *fast.split())
    return [
        launched(
            "time compile",
            "torch.compile makes a step of its own, and is timed",
            COMPILED,
            fast,
            scale,
            results,
            verdicts.run_timed,
            needs=("bf16_or_cpu", "compiler"),
            precision="bf16",
            timed=True,
            estimate_s=90,
            limit_s=300,
        ),
        Check(
            "loader",
            "the loader is timed alone, and beside training",
            (
                *(interpreter_path(), "-m", "scripts.studies.loaders.measure_loader_limit"),
                *("--results", str(results), *config),
            ),
            verdicts.loader_timed,
            {"RESULTS": str(results)},
            needs=("bf16_or_cpu",),
            after="data",
            timed=True,
            estimate_s=250,  # 5 launches of 12 x 18 untimed steps, 10 s of windows and a start
            limit_s=500,
        ),
    ]


def speed(scale: Scale, results: Path) -> list[Check]:
    """Where the time of a step goes, and its energy."""
    fast = f"{scale.images} {FAST}"
    on_profile = ("--output", str(results / "profile.csv"), "--config", scale.config)
    return [
        Check(
            "profile",
            "torch.profiler says which kernels a step spends its time in",
            (interpreter_path(), "-m", "scripts.studies.roofline.profile_step", *on_profile, *fast.split()),
            verdicts.printed(r"^a step takes .*"),
            {"RESULTS": str(results)},
            needs=("bf16_or_cpu",),
            timed=True,
            estimate_s=50,
        ),
        launched(
            "energy",
            "a run has the joules of an image",
            BASELINE,
            f"{fast} {scale.power}",
            scale,
            results / "energy",
            verdicts.energy_measured,
            needs=("bf16_or_cpu",),
            precision="bf16",
            timed=True,
            estimate_s=50,
        ),
    ]


def options(scale: Scale, results: Path) -> list[Check]:
    """Those that only a GPU can honour, or that are other kernels there."""
    listed = [
        ("compile", BASELINE, "--compile", ("compiler",), verdicts.run_ok),
        ("cuda graphs", BASELINE, "--compile --cuda-graphs", ("cuda", "compiler"), verdicts.graphs_replayed),
        ("fused", "ddp", "--fused", (), verdicts.run_ok),
        ("deterministic", BASELINE, "--no-cudnn-benchmark --cudnn-deterministic", (), verdicts.run_ok),
        ("buckets", "ddp", "--static-graph --gradient-as-bucket-view --bucket-cap-mb 100", (), verdicts.run_ok),
        ("powersgd", "ddp_compressed", "--comm-hook powersgd", ("cuda",), verdicts.run_ok),
        ("sync norm", "ddp", "--norm sync", ("cuda",), verdicts.run_ok),
        ("no prefetch", BASELINE, f"{FOLDER} --prefetch 0", ("cuda",), verdicts.run_ok),
    ]
    found = [
        launched(
            f"option {name}",
            f"{strategy} trains with {flags}",
            strategy,
            f"{scale.short} {flags}",
            scale,
            results / "short",
            find_verdict,
            needs=needs,
            estimate_s=60 if "compiler" in needs else 25,
            after="data" if FOLDER in flags else "",
        )
        for name, strategy, flags, needs, find_verdict in listed
    ]
    images = ("--data", scale.data) if scale.data else ()
    overhead = (
        interpreter_path(),
        "-m",
        "scripts.studies.overhead.overhead",
        *("--pairs", "6", "--launches", "1"),
        *("--config", scale.config),
        *images,
    )
    claim = "the suite's loop is timed beside a bare one"
    variables = {"RESULTS": str(results)}
    find_verdict = verdicts.printed(r"^suite / bare, images per second: .*")
    return [
        *found,
        Check("overhead", claim, overhead, find_verdict, variables, timed=True, estimate_s=60, after="data"),
    ]
