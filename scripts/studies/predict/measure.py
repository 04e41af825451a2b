"""Is the prediction right? This machine's step on two ranks, predicted from measurements without communication.

    ./bench study predict-check --out results/predict-check
    ./bench study predict-check --gbit 1        # two network namespaces, joined by a link of 1 Gb/s

For each model and image size, four kinds of windows are interleaved in random order: steps of one rank by itself; steps
of two ranks side by side that do not communicate; all-reduces of many sizes with no training beside them; and, to
compare with, steps of two ranks that train together. All steps are the suite's own training loop. The prediction is
written before the steps of the two ranks together are read. Exit code 1: the median error is over 10 %, or one is over
20 %.
"""

import contextlib
import dataclasses
import json
import os
import random
from typing import Any

import pandas
import tyro
from tqdm import tqdm

from benchmarks.common.config.config import load_config
from benchmarks.common.store.output_files import refuse_output_of_others
from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system import gpus, machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.folders_of_others import make_own_folder
from benchmarks.common.system.programs import run_main_and_exit
from scripts.options.study_options import PredictCheckOptions
from scripts.setup.check_data import check_image_folder
from scripts.studies.allreduce.allreduce_rank import ON_REQUEST
from scripts.studies.allreduce.analysis import message_sizes
from scripts.studies.allreduce.worker_pool import WorkerPool
from scripts.studies.measured_csv import add_rows, set_tables_aside
from scripts.studies.predict.network_namespaces import joined_namespaces
from scripts.studies.predict.prediction_error import (
    ALONE,
    BFLOAT16_PATH,
    FLOAT32_PATH,
    NUM_RANKS,
    SIDE_BY_SIDE,
    compare_with_measured,
    predict_cases,
    summarize_errors,
    table,
)
from scripts.studies.predict.published_figures import published_table

STEP_WORKER, ALLREDUCE_RANK = "scripts.studies.predict.step_worker", "scripts.studies.allreduce.allreduce_rank"
TOGETHER, ALL_REDUCES = "together", "all-reduces"
WARMUP_STEPS = 3
LARGEST_BYTES = 2**25  # DDP's largest buckets have 25 MiB and a layer
STRATEGIES = ("ddp", "ddp_compressed")

Tables = dict[str, list[dict[str, Any]]]
"""Rows by the name of their file: alone, exchange, gradients or measured."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What one prediction is about. The fields are the first columns of every table."""

    arch: str
    image_size: int
    strategy: str


@dataclasses.dataclass
class Workers:
    """All processes of a session. Those of `alone` are process groups of one rank each."""

    alone: list[WorkerPool]
    pair: WorkerPool
    all_reduces: dict[str, WorkerPool]
    """By the path."""


def main(options: PredictCheckOptions) -> int:
    refuse_output_of_others(options.output, makes_folder=True)
    if options.rounds < 3:
        raise UserError(f"--rounds is {options.rounds}, but an interval needs 3 or more")
    if gpus.usable_gpus():  # whatever NUM_GPUS says: ranks would use them, and those of `alone` all the same one
        raise UserError(
            "predict-check has inputs for CPUs and gloo only; "
            "CUDA_VISIBLE_DEVICES= ./bench study predict-check checks these"
        )
    check_image_folder(load_config(user_flags(options)).data)
    measure(options)
    predictions = predict_cases(options.out)
    write_text_atomically(options.out / "predictions.csv", predictions.to_csv(index=False))
    compared = compare_with_measured(predictions, pandas.read_csv(options.out / "measured.csv"))
    write_text_atomically(options.out / "compared.csv", compared.to_csv(index=False))
    if options.output:
        network = {"network": f"{options.gbit:g} Gb/s" if options.gbit else "loopback"}
        add_rows(options.output, [network | row for row in compared.to_dict("records")])
    passed, sentences = summarize_errors(compared)
    print(table(compared), sentences, f"written: {options.out}", sep="\n\n")
    if not options.gbit:
        print("\n" + published_table())
    return 0 if passed else 1


def measure(options: PredictCheckOptions) -> None:
    """Measure all cases; each case that is done is in the four tables of the folder `out`."""
    cases = [
        Case(arch, size, strategy) for arch in options.archs for size in options.image_sizes for strategy in STRATEGIES
    ]
    for case in cases:
        load_config(case_flags(case, options))  # which refuses what no worker could train
    tables: Tables = {"alone": [], "exchange": [], "gradients": [], "measured": []}
    make_own_folder(options.out, "name a folder that you have made: --out")
    with contextlib.ExitStack() as stack:
        workers = start_workers(stack, options, len(cases))
        set_tables_aside(options.out, [*tables, "predictions", "compared"])
        rng = random.Random(options.seed)
        with tqdm(total=len(cases) * options.rounds, desc="rounds", disable=None, leave=False) as bar:
            for case in cases:
                bar.set_postfix_str(f"{case.arch} {case.image_size} {case.strategy}")
                for name, rows in measure_case(workers, case, options, rng, bar).items():
                    tables[name] += [dataclasses.asdict(case) | row for row in rows]
                    write_text_atomically(
                        options.out / f"{name}.csv", pandas.DataFrame(tables[name]).to_csv(index=False)
                    )


def user_flags(options: PredictCheckOptions) -> list[str]:
    """The flags that the user chose: the configuration's file, and DATA."""
    data = os.environ.get("DATA", "")
    return ["--config", options.config, *(["--data", data] if data.strip() else [])]


def start_workers(stack: contextlib.ExitStack, options: PredictCheckOptions, num_cases: int) -> Workers:
    """Start all processes and wait until each is ready for its first line. Each has the threads of a rank of two."""
    threads = machine.threads_per_rank(NUM_RANKS)
    prefixes: list[list[str]] = []
    interface = "lo"
    if options.gbit:
        prefixes, interface = stack.enter_context(joined_namespaces(options.gbit))

    def pair_of(module: str, args: list[str]) -> WorkerPool:
        return stack.enter_context(WorkerPool(module, args, NUM_RANKS, threads, prefixes, interface))

    num_sweeps = num_cases * options.rounds + 1
    alone = [stack.enter_context(WorkerPool(STEP_WORKER, [], 1, threads)) for _ in range(NUM_RANKS)]
    pair = pair_of(STEP_WORKER, [])
    all_reduces = {
        path: pair_of(ALLREDUCE_RANK, [path, str(num_sweeps), str(LARGEST_BYTES), ON_REQUEST])
        for path in (FLOAT32_PATH, BFLOAT16_PATH)
    }
    for trainer in (*alone, pair):
        trainer.wait_for_all("here")
    for sender in all_reduces.values():
        sender.wait_for_all("ready")
    return Workers(alone, pair, all_reduces)


def measure_case(workers: Workers, case: Case, options: PredictCheckOptions, rng: random.Random, bar: tqdm) -> Tables:
    """All rounds of one case."""
    batch = load_config(user_flags(options)).global_batch
    flags = case_flags(case, options)

    def begin(pool: WorkerPool, images: int, profile: bool = False) -> None:
        own_flags = [*flags, "--global-batch", str(images)]
        rendezvous = pool.new_rendezvous_file()
        message = {"module": case.strategy, "flags": own_flags, "rendezvous_file": rendezvous, "profile": profile}
        pool.send(json.dumps(message))

    first, second = workers.alone
    begin(first, batch // NUM_RANKS, profile=True)
    profile = first.receive("profile")  # before any other worker computes
    begin(second, batch // NUM_RANKS)
    begin(workers.pair, batch)
    trainers = (first, second, workers.pair)
    for pool in trainers:
        pool.wait_for_all("ready")
    tables: Tables = {"alone": [], "exchange": [], "measured": []}
    for round_number in range(options.rounds):
        for kind in rng.sample([ALONE, SIDE_BY_SIDE, TOGETHER, ALL_REDUCES], 4):
            for name, row in measure_window(workers, kind):
                tables[name].append(row | {"round": round_number})
        bar.update()
    for pool in trainers:
        pool.send("stop")
    passes = {"forward_s": profile["forward_s"], "backward_s": profile["backward_s"]}
    return tables | {"gradients": [gradient | passes for gradient in profile["gradients"]]}


def case_flags(case: Case, options: PredictCheckOptions) -> list[str]:
    """The configuration of every trainer of a case, without the batch size."""
    num_windows = 2 * options.rounds + 1
    num_steps = WARMUP_STEPS + (num_windows + 1) * options.window_steps
    flags = f"--arch {case.arch} --image-size={case.image_size} --loader folder --epochs 1 --account-steps 0 --lr 0"
    flags += f" --warmup-steps {WARMUP_STEPS} --windows {num_windows} --window-steps {options.window_steps}"
    return [*flags.split(), *user_flags(options), "--steps", str(num_steps)]


def measure_window(workers: Workers, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """One window of one kind: (name of the table, row) of each step, or of each all-reduce."""
    if kind == ALL_REDUCES:
        return [
            ("exchange", {"path": path} | row)
            for path, pool in workers.all_reduces.items()
            for row in measure_sweep(pool)
        ]
    working = {ALONE: workers.alone[:1], SIDE_BY_SIDE: workers.alone, TOGETHER: [workers.pair]}[kind]
    for pool in working:
        pool.send("go")
    step_ms = [window["step_ms"] for pool in working for window in pool.receive_all("window")]
    for pool in working:
        pool.wait_for_all("ready")
    if kind == TOGETHER:  # the two ranks' steps end together
        means = [sum(of_ranks) / NUM_RANKS for of_ranks in zip(*step_ms, strict=True)]
        return [("measured", {"step": step, "ms": ms}) for step, ms in enumerate(means)]
    return [
        ("alone", {"what": kind, "rank": rank, "step": step, "ms": ms})
        for rank, of_rank in enumerate(step_ms)
        for step, ms in enumerate(of_rank)
    ]


def measure_sweep(pool: WorkerPool) -> list[dict[str, Any]]:
    """One round of all-reduces of all sizes."""
    pool.send("go")
    rows = [pool.receive("row") for _ in message_sizes(LARGEST_BYTES)]
    pool.wait_for_all("ready")
    return rows


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(PredictCheckOptions, description=__doc__)))
