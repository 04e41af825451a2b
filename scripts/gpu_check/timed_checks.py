"""Of the list of `make gpu-check`: what times a GPU, and the options that act on one.

from scripts.gpu_check.timed_checks import matrix, options, speed
"""

from pathlib import Path

from scripts.gpu_check import verdicts
from scripts.gpu_check.check import OF_PRECISION, PRECISIONS, Check, Scale, launched
from scripts.runner.preflight import all_strategies, strategy_facts
from scripts.runner.run_plan import interpreter_path
from scripts.sets.result_set import BASELINE

FORMATS = ("contiguous", "channels_last")
FOLDER = "--loader folder"


def matrix(scale: Scale, results: Path) -> list[Check]:
    points = [(name, precision, "") for precision in PRECISIONS for name in (BASELINE, "ddp")]
    mixed = next(name for name in all_strategies() if strategy_facts(name).mixed_precision)
    points.append((mixed, "fp16", "1"))
    found = []
    for strategy, precision, ranks in points:
        for layout in FORMATS:
            found.append(
                launched(
                    f"time {strategy} {precision} {layout}",
                    f"{strategy} is timed in {precision}, {layout}",
                    strategy,
                    f"{scale.images} --precision {precision} --memory-format {layout}",
                    scale,
                    results,
                    verdicts.run_timed,
                    variables={"NPROC": ranks} if ranks else {},
                    needs=OF_PRECISION[precision],
                    precision=precision,
                    timed=True,
                    estimate_s=40,
                )
            )
    return found


def speed(scale: Scale, results: Path) -> list[Check]:
    fast = f"{scale.images} --precision bf16 --memory-format channels_last"
    module = (interpreter_path(), "-m")
    images = ("--data", scale.data) if scale.data else ()
    config = ("--config", scale.config, "--loader", "folder", *images, *fast.split())
    on_profile = ("--output", str(results / "profile.csv"))
    variables = {"RESULTS": str(results)}
    return [
        launched(
            "time compile",
            "torch.compile makes a step of its own, and is timed",
            "ddp_compile",
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
            (*module, "scripts.studies.loaders.verdict_measure", "--results", str(results), *config),
            verdicts.loader_timed,
            variables,
            needs=("bf16_or_cpu",),
            after="data",
            timed=True,
            estimate_s=60,
        ),
        launched(
            "energy",
            "a run tells the joules of an image",
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
        Check(
            "profile",
            "torch.profiler says which kernels a step spends its time in",
            (*module, "scripts.studies.roofline.profile_step", *on_profile, "--config", scale.config, *fast.split()),
            verdicts.printed(r"^a step takes .*"),
            variables,
            needs=("bf16_or_cpu",),
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
        ("decode on the gpu", BASELINE, f"{FOLDER} --decoder nvimgcodec-gpu", ("cuda", "nvimgcodec"), verdicts.run_ok),
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
        "scripts.studies.peers.overhead",
        "--pairs",
        "6",
        "--config",
        scale.config,
        *images,
    )
    claim = "the suite's loop is timed beside a bare one"
    variables = {"RESULTS": str(results)}
    find_verdict = verdicts.printed(r"^suite / bare, images per second: .*")
    return [
        *found,
        Check("overhead", claim, overhead, find_verdict, variables, timed=True, estimate_s=60, after="data"),
    ]
