"""The list of `./bench gpu-check`: each check is a claim, a command that a person can type, and a verdict."""

import dataclasses
import shlex
from pathlib import Path

from scripts.gpu_check import timed_checks, verdicts
from scripts.gpu_check.check import OF_PRECISION, PRECISIONS, Check, Scale, launched
from scripts.runner.run_plan import interpreter_path
from scripts.setup.libraries import SCRIPTS, library_of
from scripts.shared.repository import ROOT
from scripts.strategies.strategy_list import BASELINE, all_strategies, has_fact

BUILDS = ROOT / ".gpu-check"  # not in the set, which may come from others and would choose what is run
PROVED_FIRST = (BASELINE, "ddp", timed_checks.MIXED)
MIXED_PRECISIONS = ("bf16", "fp16")  # of a script that is about mixed precision


def checks(scale: Scale, results: Path) -> list[Check]:
    """In the order of what they are worth. results: the set of what is timed; the others have sets of their own in
    it."""
    proofs = _proofs(scale, results)
    listed = [
        *_first(results),
        *timed_checks.fastest(scale, results),
        *timed_checks.speed(scale, results),
        *_strategies(scale, results),
        _images(scale, results),
        *(proofs[name] for name in PROVED_FIRST),
        *(proof for name, proof in proofs.items() if name not in PROVED_FIRST),
        *timed_checks.compare(scale, results),
        *timed_checks.matrix(scale, results),
        *_builds(results),
        *timed_checks.options(scale, results),
        *_ends(scale, results),
        *_with_libraries(scale, results),
        *_several_gpus(scale, results),
        timed_checks.new_nccl_group(scale, results),
    ]
    return [dataclasses.replace(check, limit_s=scale.patience * check.limit_s) for check in listed]


def _first(results: Path) -> list[Check]:
    variables = {"RESULTS": str(results)}
    environment = (interpreter_path(), "-m", "scripts.runner.environment", "--results", str(results))
    # those that the runs see: on a machine of several, somebody else may well use the others
    ask = 'nvidia-smi ${CUDA_VISIBLE_DEVICES:+--id="$CUDA_VISIBLE_DEVICES"} --format=csv,noheader --query-'
    users = ("sh", "-c", f"{ask}compute-apps=pid,process_name,used_memory && {ask}gpu=memory.used")
    return [
        Check(
            "environment",
            "the interpreter, its libraries and the device can be described",
            environment,
            verdicts.environment_described,
            variables,
            timed=True,
        ),
        Check(
            "alone",
            "nobody else uses the GPU",
            users,
            verdicts.gpu_unused,
            variables,
            ("cuda",),
            alone=True,
            estimate_s=5,
        ),
    ]


def _images(scale: Scale, results: Path) -> Check:
    module = (interpreter_path(), "-m")
    images: tuple[str, ...] = (*module, "scripts.data.mini")
    find_verdict: verdicts.FindVerdict = verdicts.dataset_made
    if scale.data:
        images = (*module, "scripts.data.check", "--data", scale.data)
        find_verdict = verdicts.printed(r".* train images, .*")
    variables = {"RESULTS": str(results)}
    return Check("data", "there are images, or they can be made", images, find_verdict, variables, estimate_s=15)


def _builds(results: Path) -> list[Check]:
    variables = {"RESULTS": str(results)}
    found = []
    for library in SCRIPTS:
        folder = BUILDS / library
        build = (
            interpreter_path(),
            "-m",
            "scripts.gpu_check.overlay_environment",
            str(folder),
            f"scripts/setup/install_{library}.sh",
        )
        found.append(
            Check(
                f"build {library}",
                f"{library} builds against this torch, in an interpreter of its own",
                build,
                verdicts.library_built,
                variables,
                estimate_s=60,
                limit_s=400,
            )
        )
    return found


def _strategies(scale: Scale, results: Path) -> list[Check]:
    """Those that need a library come after its build."""
    found = []
    for strategy in all_strategies():
        if library_of(strategy):
            continue
        for precision in MIXED_PRECISIONS if has_fact(strategy, "mixed_precision") else PRECISIONS:
            found.append(
                launched(
                    f"{strategy} {precision}",
                    f"{strategy} trains on synthetic images in {precision}",
                    strategy,
                    f"{scale.short} --precision {precision}",
                    scale,
                    results / "short",
                    verdicts.run_ok,
                    needs=(*OF_PRECISION[precision], *needs_of(strategy)),
                    precision=precision,
                )
            )
    return found


def needs_of(strategy: str) -> tuple[str, ...]:
    """Keys of NEEDS, in any precision."""
    return ("compiler",) if strategy == timed_checks.COMPILED else ()


def _proofs(scale: Scale, results: Path) -> dict[str, Check]:
    """By strategy: each beside one process that runs the shards in turn."""
    found = {}
    for strategy in all_strategies():
        if library_of(strategy):
            continue
        folder = results / "proof" / strategy
        flags = f"{scale.short} --loader folder"
        variables = {"RESULTS": str(folder), "CONFIG": scale.config, "ARGS": flags, "STRATEGIES": strategy}
        verify = (interpreter_path(), "-m", "scripts.proof.verify", "--steps", str(scale.proof_steps))
        claim = f"{strategy} computes the same update as one plain process, resumed too"
        found[strategy] = Check(
            f"proof {strategy}",
            claim,
            verify,
            verdicts.equivalence_proved,
            variables,
            needs_of(strategy),
            estimate_s=60,
            after="data",
        )
    return found


def _ends(scale: Scale, results: Path) -> list[Check]:
    """Checkpoint and resume, and a fault of each kind."""
    folder, two_ranks = results / "ends", "ddp"
    kept = f"{scale.short} --checkpoint-dir {shlex.quote(str(results / 'checkpoint'))}"
    kill = launched(
        "fault killed rank",
        "a rank that is killed is named, and nothing of the run is left",
        two_ranks,
        f"{scale.short} --steps 100000 --window-steps 5",
        scale,
        folder,
        verdicts.fails_with("failed", r"rank \d+: signal 9"),
        estimate_s=40,
    )
    return [
        # --resume: if this check failed before, its checkpoint is still there
        launched(
            "checkpoint", "a run leaves a checkpoint", two_ranks, f"{kept} --resume", scale, folder, verdicts.run_ok
        ),
        launched(
            "resume",
            "another run goes on from it",
            two_ranks,
            f"{kept} --epochs 2 --resume",
            scale,
            folder,
            verdicts.run_resumed,
            after="checkpoint",
        ),
        launched(
            "fault memory",
            "a batch that does not fit is a row that says out of memory",
            BASELINE,
            f"{scale.too_many_images} --steps 4 --windows 1 --window-steps 1 --warmup-steps 0",
            scale,
            folder,
            verdicts.fails_with("failed", "out of memory|can't allocate memory"),
            variables={"GPU_MEMORY_GB": "1000000"},  # else the memory forecast would skip it
            alone=True,  # it fills the GPU, and others would run out of memory, too
        ),
        dataclasses.replace(kill, argv=(interpreter_path(), "-m", "scripts.gpu_check.kill_rank", *kill.argv)),
        launched(
            "fault not a number",
            "a loss that is no number ends the run, and its row says so",
            BASELINE,
            f"{scale.short} --steps 4 --warmup-steps 0 --windows 1 --window-steps 2 --lr 1e30 --lr-batch 1",
            scale,
            folder,
            verdicts.fails_with("invalid", "loss"),
        ),
    ]


def _with_libraries(scale: Scale, results: Path) -> list[Check]:
    found = []
    for strategy in all_strategies():
        library = library_of(strategy)
        if not library:
            continue
        variables = {"PYTHON": str(BUILDS / library / "bin/python")}
        own = {"after": f"build {library}", "variables": variables}
        for precision in ("fp32", "tf32") if library == "apex" else PRECISIONS:
            needs = ("cuda", *OF_PRECISION[precision]) if library == "apex" else OF_PRECISION[precision]
            claim, flags = f"{strategy} trains in {precision}", f"{scale.short} --precision {precision}"
            found.append(
                launched(
                    f"{strategy} {precision}",
                    claim,
                    strategy,
                    flags,
                    scale,
                    results / "short",
                    verdicts.run_ok,
                    needs=needs,
                    # apex: amp casts by itself, and its row says how
                    precision="" if library == "apex" else precision,
                    **own,
                )
            )
    return found


def _several_gpus(scale: Scale, results: Path) -> list[Check]:
    variables = {"RESULTS": str(results / "scaling"), "CONFIG": scale.config, "STRATEGY": "ddp", "RANKS": "1 2"}
    variables |= {"REPEATS": "1", "ARGS": f"{scale.images} --precision bf16 --memory-format channels_last"}
    return [
        Check(
            "scaling",
            "one GPU and two are timed side by side, with the same batch and with the same on each",
            ("launchers/all.sh", "scaling"),
            verdicts.printed(r"^.*\bweak\b.*"),
            variables,
            ("two_gpus", "bf16_or_cpu"),
            timed=True,
            estimate_s=200,
            limit_s=600,
        )
    ]
