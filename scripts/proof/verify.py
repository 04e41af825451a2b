"""Proves that the strategies compute the same update: each one's weights against those of a single process.

    python -m scripts.proof.verify --strategies "ddp horovod_ddp" --steps 20        # or: make verify

Runs every strategy through its launcher, without augmentation, over two epochs, and compares what it saved with
scripts/proof/reference.py. Writes equivalence.csv into the result set and the runs into its verify/. Exit code: 1 where
a strategy fails, 2 for a mistake found before the first run.

Two ranks on CPUs have to agree to the last bit: their kernels are the reference's, and a sum of two does not
depend on its order. Elsewhere (more ranks, GPUs, fp16 compression) rounding differs, and training amplifies it: at
a usual learning rate, errors of 2^-24 in the gradients change the weights by 100 % within 20 steps. So there the
learning rate is small, and the tolerance is measured: a second reference has random errors of 2^-11 in every
gradient, and ten times what they do to the weights is allowed, but at most 50 %. That is about 3 % in float32,
where what is left of the amplification is chance: a ReLU or a maximum falls on the other side. Measured faults:
no all-reduce 150 % and more, one shard for two 120 %, no set_epoch 25 %. In bf16 rounding does 20 to 35 % by
itself, so that on GPUs, or with more than two ranks, a forgotten set_epoch is found by the other strategies only.
"""

import contextlib
import dataclasses
import datetime
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import tyro
import yaml

from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.results import append_rows, read_table, write_whole
from benchmarks.common.stages import num_microbatches
from scripts.proof.reference import Shape, train_reference
from scripts.setup.check_data import check_image_folder
from scripts.suite.preflight import check_ranks, check_results, chosen

ROOT = Path(__file__).resolve().parents[2]
# 24 divides by 2, 3 and 4 ranks, and by the 4 micro-batches of a pipeline.
SMALL = "--arch resnet18 --global-batch 24 --lr-batch 24 --lr-schedule cosine --limit-s 300"
EXACT, INEXACT = "--image-size 32 --lr 0.005", "--image-size 64 --lr 3e-6"
NUM_EPOCHS = 2  # the second has an order of its own, which a forgotten set_epoch would miss
# fp16's rounding, which is larger than what compression, tf32, or another order of float32 sums does.
NOISE = torch.finfo(torch.float16).eps / 2
SAFETY, LARGEST_TOLERANCE = 10, 0.5
AUTOCAST = {
    "fp32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "apex-O0": None,
    "apex-O1": torch.float16,
}
Weights = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Options:
    strategies: str = ""
    """Names with spaces between; empty: all of them."""
    steps: int = 20
    """Optimizer steps, over both epochs."""
    results: Path | None = None
    """Result set; default: results/latest, or a new one."""


def main(options: Options) -> int:
    strategies = chosen(options.strategies)
    config = settings(options.steps)
    check_ranks(config)
    check_image_folder(config.data)
    results = (options.results or default_results()).resolve()
    check_results(results)
    torch.set_num_threads(1)  # as the ranks have: other threads, other sums
    print(f"{'strategy':<18} {'ranks':>5} {'steps':>5}  {'largest relative difference':<28} {'tolerance':>9}  verdict")
    rows = []
    for number, strategy in enumerate(strategies, 1):
        rows.append(verify(strategy, config, results / "verify", f"{number}/{len(strategies)}"))
        append_rows(results, "equivalence", rows[-1:])
        print(line_of(rows[-1]), flush=True)
    print(f"\ndifference: max |a - b| / max |b| of the worst tensor of weights and BatchNorm statistics\nin {results}")
    return int(any(row["verdict"] == "failed" for row in rows))


def settings(num_steps: int) -> Config:
    """The configuration of all runs: small, or the one in CONFIG; then ARGS; then what the proof needs.

    Raises UserError for steps that make no two epochs of at least two steps.
    """
    if num_steps < 2 * NUM_EPOCHS or num_steps % NUM_EPOCHS:
        raise UserError(f"steps is {num_steps}, but must be an even number, 4 or more: half of them in each epoch")
    own, data, args = (os.environ.get(name, "") for name in ("CONFIG", "DATA", "ARGS"))
    users = ["--config", own] * bool(own) + ["--data", data] * bool(data) + args.split()
    regime = EXACT if is_exact(load_config(users)) else INEXACT
    config = load_config([*([] if own else f"{SMALL} {regime}".split()), *users])
    steps = num_steps // NUM_EPOCHS
    return dataclasses.replace(
        config,
        config="",
        augment=False,
        loader="folder",
        skip_bad_files=False,
        epochs=NUM_EPOCHS,
        steps=steps,
        workers=0,
        split_size=0,
        resume=False,
        checkpoint_steps=0,
        warmup_steps=0,
        windows=1,
        window_steps=steps - 1,
        account_steps=0,
    )


def num_ranks() -> int:
    """What launchers/lib.sh starts."""
    text = os.environ.get("NPROC", "")
    return int(text) if text.isdecimal() else torch.cuda.device_count() or 2


def is_exact(config: Config) -> bool:
    """Whether every strategy has to agree with its reference to the last bit."""
    return not torch.cuda.is_available() and num_ranks() <= 2 and config.compression == "none"


def default_results() -> Path:
    latest = ROOT / "results" / "latest"
    return latest if latest.exists() else ROOT / "results" / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")


def verify(strategy: str, config: Config, folder: Path, label: str) -> dict:
    """Run `strategy` in `folder`, compare its weights with its reference's, and return its row of the table."""
    row = {"strategy": strategy, "steps": config.epochs * config.steps, "started_at": now()}
    folder.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="weights-", dir=folder))  # in the set: all nodes of a cluster see it
    try:
        run = launch(strategy, dataclasses.replace(config, checkpoint_dir=str(scratch)), folder, scratch, label)
        row["run_id"] = run.get("run_id")
        if run["status"] != "ok":
            verdict = "skipped" if run["status"] == "skipped" else "failed"
            return row | {"verdict": verdict, "reason": run["reason"]}
        row["world_size"] = int(run["world_size"])
        if run["precision"] not in AUTOCAST:
            return row | {"verdict": "skipped", "reason": f"there is no reference in precision {run['precision']}"}
        weights = torch.load(scratch / "last.pt", map_location="cpu", weights_only=True)["model"]
    finally:
        shutil.rmtree(scratch)
    if row["world_size"] < least_world_size(strategy):
        reason = f"ran on {row['world_size']} of {num_ranks()} ranks, so that nothing was divided"
        return row | {"verdict": "failed", "reason": reason}
    return row | judge(weights, config, shape_of(strategy, run, config))


def launch(strategy: str, config: Config, folder: Path, scratch: Path, label: str) -> dict:
    """Run launchers/<strategy>.sh with `config`; returns its row of folder/runs.csv."""
    path = scratch / "verify.yaml"
    differences = {name: value for name, value in vars(config).items() if value != getattr(Config(), name)}
    write_whole(path, yaml.safe_dump(differences))
    variables = {"CONFIG": path, "RESULTS": folder, "ARGS": "", "REPEAT": 1, "LABEL": label}
    variables |= {"THREADS_PER_RANK": 1, "CPUS_PER_TASK": 1}
    environment = {"PYTHON": sys.executable} | os.environ | {name: str(value) for name, value in variables.items()}
    num_before = len(read_table(folder, "runs"))
    command = [ROOT / "launchers" / f"{strategy}.sh"]
    child = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = child.communicate()
    except BaseException:  # a signal: the launcher ends its ranks, then itself
        child.terminate()
        child.communicate()
        raise
    rows = read_table(folder, "runs")
    if len(rows) == num_before:
        return {"status": "failed", "reason": f"the launcher left no row and exit code {child.returncode}"}
    run = rows.iloc[-1].to_dict()
    if run["status"] not in ("ok", "skipped"):
        print(output, end="")
    return run


def least_world_size(strategy: str) -> int:
    """Fewer ranks than this have not run the strategy."""
    return 1 if strategy in ("single", "dataparallel", "model_parallel", "hybrid_parallel") else num_ranks()


def shape_of(strategy: str, run: dict, config: Config) -> Shape:
    """The shape of a strategy's update: for most, one shard a rank. `run` is its row of runs.csv."""
    num_shards, microbatches = int(run["world_size"]), 1
    if strategy == "pipeline_parallel":
        num_shards, microbatches = 1, num_microbatches(config, num_shards)
    elif strategy == "model_parallel":
        num_shards = 1
    elif strategy == "hybrid_parallel" and run["device"] == "cuda":
        num_shards //= 2  # each shard has two devices
    if config.norm == "sync":
        num_shards = 1  # statistics, and so gradients, are of the whole batch
    return Shape(num_shards, microbatches, AUTOCAST.get(run["precision"]))


def judge(weights: Weights, config: Config, shape: Shape) -> dict:
    """The difference, the tolerance and the verdict: columns of equivalence.csv."""
    expected = reference(config, shape)
    difference, worst = largest_difference(weights, expected)
    rounding = 0.0 if is_exact(config) else effect_of_rounding(config, shape)
    tolerance = min(SAFETY * rounding, LARGEST_TOLERANCE)
    reason = "" if difference <= tolerance else f"not the reference's weights; {worst} differs most"
    if reason and rounding > LARGEST_TOLERANCE:
        reason += f"; rounding alone makes {rounding:.0%} here, so lower --lr or the steps"
    return {
        "max_relative_difference": difference,
        "bit_identical": difference == 0,
        "tolerance": tolerance,
        "verdict": "failed" if reason else "ok",
        "reason": reason,
    }


@functools.cache
def reference(config: Config, shape: Shape) -> Weights:
    return train_reference(config, shape, device())


@functools.cache
def effect_of_rounding(config: Config, shape: Shape) -> float:
    """What errors of NOISE in every gradient do to the reference's weights: the largest relative difference."""
    disturbed = train_reference(config, shape, device(), noise=NOISE)
    return largest_difference(disturbed, reference(config, shape))[0]


def largest_difference(weights: Weights, expected: Weights) -> tuple[float, str]:
    """max |a - b| / max |b| of the tensor where it is largest, and that tensor's name; inf where nothing compares."""
    differences = {}
    for name in weights.keys() | expected.keys():
        differences[name] = float("inf")
        if name in weights and name in expected and weights[name].shape == expected[name].shape:
            a, b = weights[name].double(), expected[name].double()
            relative = ((a - b).abs().max() / b.abs().max()).item()  # 0 / 0 and what holds no number are nan
            if relative == relative or torch.equal(a, b):
                differences[name] = 0.0 if torch.equal(a, b) else relative
    worst = max(differences, key=lambda name: differences[name])
    return differences[worst], worst


def line_of(row: dict) -> str:
    """A row of the table on the terminal."""
    difference, tolerance = row.get("max_relative_difference"), row.get("tolerance")
    shown = "" if difference is None else f"{difference:.1e}" if difference else "0"
    shown += " (bit-identical)" if row.get("bit_identical") else ""
    verdict = row["verdict"].upper() if row["verdict"] == "failed" else row["verdict"]
    return (
        f"{row['strategy']:<18} {row.get('world_size', ''):>5} {row['steps']:>5}  {shown:<28} "
        f"{'' if tolerance is None else f'{tolerance:.1e}' if tolerance else '0':>9}  {verdict}"
        + (f": {row['reason']}" if row["reason"] else "")
    )


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            sys.exit(main(tyro.cli(Options, description=__doc__)))
        sys.exit(130)
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
