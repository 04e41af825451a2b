"""Is the prediction right? This machine's 2-rank step, predicted from measurements in which no gradient is exchanged.

    python -m scripts.studies.predict.measure --out results/predict-check           # make predict-check
    python -m scripts.studies.predict.measure --gbit 1        # two network namespaces, joined by a link of 1 Gb/s

For each model and size of image, by turns and in random order in one sitting: windows of one rank by itself; of two
ranks that know nothing of each other, side by side; all-reduces of many sizes with nothing beside them; and, to compare
with, of the two ranks that train together. All by the suite's own loop. The prediction is written before the last is
looked at. Exit code 1: the median error is over 10 %, or one is over 20 %.
"""

import contextlib
import dataclasses
import json
import os
import random
import sys
from pathlib import Path

import pandas
import tyro
from tqdm import tqdm

from benchmarks import ddp, ddp_compressed
from benchmarks.common.config.config import load_config
from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system import gpus, machine
from benchmarks.common.system.errors import UserError
from scripts.runner.measured_figures import add_rows
from scripts.runner.preflight import check_data
from scripts.studies.allreduce.analysis import sizes_to
from scripts.studies.allreduce.worker_pool import Crew
from scripts.studies.predict.network_namespaces import joined
from scripts.studies.predict.prediction_error import (
    ALONE,
    CASE,
    FLOAT,
    HALVES,
    RANKS,
    SIDE,
    compare,
    predict_cases,
    table,
    verdict,
)
from scripts.studies.predict.published_figures import published_table

TURNS, EXCHANGE = "scripts.studies.predict.step_worker", "scripts.studies.allreduce.allreduce_rank"
TOGETHER, SENDING = "together", "exchange"
WARMUP_STEPS, LARGEST = 3, 2**25  # DDP's largest buckets have 25 MiB and a layer
SCRIPTS = (ddp, ddp_compressed)


@dataclasses.dataclass(frozen=True)
class Options:
    """The configuration is the file's, with other models and sizes; the batch of a rank is half of its batch. The
    images are those of Make's variable DATA, where it is set."""

    out: Path = Path("results/predict-check")
    """Folder for what is measured and predicted, anew."""
    archs: tuple[str, ...] = ("resnet18", "resnet34", "resnet50")
    image_sizes: tuple[int, ...] = (48, 96)
    rounds: int = 6
    """Windows of each kind of each case; 3 or more."""
    window_steps: int = 4
    """Steps of a window."""
    config: str = "configs/smoke.yaml"
    gbit: float = 0.0
    """Gb/s between the ranks, each in a network namespace of its own (needs root); 0: over this machine's loopback."""
    seed: int = 0
    """Of the order in each round."""
    output: Path | None = None
    """CSV file to which the predictions and their errors are added, with commit, date and machine."""


@dataclasses.dataclass
class Crews:
    """All processes of a sitting. Those of `alone` are process groups of one rank each."""

    alone: list[Crew]
    pair: Crew
    exchange: dict[str, Crew]


def main(options: Options) -> int:
    if options.rounds < 3:
        raise UserError(f"--rounds is {options.rounds}, but an interval needs 3 or more")
    if gpus.usable_gpus():  # whatever NUM_GPUS says: ranks would take them, and those of `alone` all the same one
        raise UserError(
            "predict-check has inputs for CPUs and gloo only; CUDA_VISIBLE_DEVICES= make predict-check checks these"
        )
    check_data(load_config(given_flags(options)).data)
    cases = [(arch, size, script) for arch in options.archs for size in options.image_sizes for script in SCRIPTS]
    tables: dict[str, list[dict]] = {"alone": [], "exchange": [], "gradients": [], "measured": []}
    options.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        crews = start(stack, options, len(cases))
        rng = random.Random(options.seed)
        with tqdm(total=len(cases) * options.rounds, desc="rounds", disable=None, leave=False) as bar:
            for arch, size, script in cases:
                case = dict(zip(CASE, (arch, size, script.__name__.split(".")[-1]), strict=True))
                bar.set_postfix_str(" ".join(map(str, case.values())))
                for name, rows in sit(crews, case, options, rng, bar).items():
                    tables[name] += [case | row for row in rows]
                    write_text_atomically(
                        options.out / f"{name}.csv", pandas.DataFrame(tables[name]).to_csv(index=False)
                    )
    predictions = predict_cases(options.out)
    write_text_atomically(options.out / "predictions.csv", predictions.to_csv(index=False))
    compared = compare(predictions, pandas.read_csv(options.out / "measured.csv"))
    write_text_atomically(options.out / "compared.csv", compared.to_csv(index=False))
    if options.output:
        network = {"network": f"{options.gbit:g} Gb/s" if options.gbit else "loopback"}
        add_rows(options.output, [network | row for row in compared.to_dict("records")])
    good, said = verdict(compared)
    print(table(compared), said, f"written: {options.out}", sep="\n\n")
    if not options.gbit:
        print("\n" + published_table())
    return 0 if good else 1


def given_flags(options: Options) -> list[str]:
    """What the user gave: the configuration's file, and DATA."""
    data = os.environ.get("DATA", "")
    return ["--config", options.config, *(["--data", data] if data.strip() else [])]


def start(stack: contextlib.ExitStack, options: Options, num_cases: int) -> Crews:
    """Everybody, there and waiting for a first line, each with the threads of one of the suite's own two ranks."""
    threads = machine.threads_per_rank(RANKS)
    inside, interface = stack.enter_context(joined(options.gbit)) if options.gbit else ((), "lo")

    def crew(module: str, args: list[str], ranks: int = RANKS) -> Crew:
        return stack.enter_context(Crew(module, args, ranks, threads, *((inside, interface) if ranks > 1 else ())))

    sweeps = [str(num_cases * options.rounds + 1), str(LARGEST), "gated"]
    alone, pair = [crew(TURNS, [], ranks=1) for _ in range(RANKS)], crew(TURNS, [])
    exchange = {path: crew(EXCHANGE, [path, *sweeps]) for path in (FLOAT, HALVES)}
    for trainer in (*alone, pair):
        trainer.hear_all("here")
    for sender in exchange.values():
        sender.hear_all("ready")
    return Crews(alone, pair, exchange)


def sit(crews: Crews, case: dict, options: Options, rng: random.Random, bar: tqdm) -> dict[str, list[dict]]:
    """All rounds of one case: rows of alone, exchange, gradients and measured."""
    arch, size, module = case.values()
    batch = load_config(given_flags(options)).global_batch
    windows = 2 * options.rounds + 1
    flags = f"--arch {arch} --image-size {size} --loader folder --epochs 1 --account-steps 0 --lr 0".split()
    flags += f"--warmup-steps {WARMUP_STEPS} --windows {windows} --window-steps {options.window_steps}".split()
    flags += [*given_flags(options), "--steps", str(WARMUP_STEPS + (windows + 1) * options.window_steps)]

    def begin(crew: Crew, images: int, profile: bool = False) -> None:
        own = [*flags, "--global-batch", str(images)]
        crew.tell(json.dumps({"module": module, "flags": own, "meeting": crew.new_meeting(), "profile": profile}))

    first, second = crews.alone
    begin(first, batch // RANKS, profile=True)
    profile = first.hear("profile")  # before anybody else computes
    begin(second, batch // RANKS)
    begin(crews.pair, batch)
    trainers = (first, second, crews.pair)
    for crew in trainers:
        crew.hear_all("ready")
    rows: dict[str, list[dict]] = {"alone": [], "exchange": [], "measured": []}
    for number in range(options.rounds):
        for what in rng.sample([ALONE, SIDE, TOGETHER, SENDING], 4):
            for kind, row in turn(crews, what):
                rows[kind].append(row | {"round": number})
        bar.update()
    for crew in trainers:
        crew.tell("stop")
    about = {"forward_s": profile["forward_s"], "backward_s": profile["backward_s"]}
    return rows | {"gradients": [gradient | about for gradient in profile["gradients"]]}


def turn(crews: Crews, what: str) -> list[tuple[str, dict]]:
    """One window of one kind: (which table, row) of each step, or of each all-reduce."""
    if what == SENDING:
        return [("exchange", {"path": path} | row) for path, crew in crews.exchange.items() for row in swept(crew)]
    working = {ALONE: crews.alone[:1], SIDE: crews.alone, TOGETHER: [crews.pair]}[what]
    for crew in working:
        crew.tell("go")
    taken = [window["step_ms"] for crew in working for window in crew.hear_all("window")]
    for crew in working:
        crew.hear_all("ready")
    if what == TOGETHER:  # a step of one rank ends when the other's does
        return [("measured", {"step": n, "ms": sum(each) / RANKS}) for n, each in enumerate(zip(*taken, strict=True))]
    return [
        ("alone", {"what": what, "rank": rank, "step": n, "ms": ms})
        for rank, step_ms in enumerate(taken)
        for n, ms in enumerate(step_ms)
    ]


def swept(crew: Crew) -> list[dict]:
    crew.tell("go")
    rows = [crew.hear("row") for _ in sizes_to(LARGEST)]
    crew.hear_all("ready")
    return rows


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
