"""What the tests share: a folder of small images, launchers run for real, and a recording interpreter."""

import json
import os
import shlex
import signal
import subprocess
import sys
import typing
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks: tests mean the same with and without GPUs

import numpy
import pytest
import torch
from PIL import Image
from preloaded.interpreter import REAL
from torch import nn

from benchmarks.common.config import FIELDS, Config
from benchmarks.common.errors import UserError
from benchmarks.common.loader import build_loaders
from benchmarks.common.rank import Rank
from benchmarks.common.rows import append_rows, read_table
from scripts.results.settings import add_settings, requested_settings
from scripts.shared.forward_signals import ENDING_SIGNALS
from scripts.shared.strategy_list import all_strategies

if typing.TYPE_CHECKING:
    from scripts.runner.request import Request

ROOT = Path(__file__).parents[1]
NUM_TRAIN, NUM_VAL = 40, 23  # 23 is prime: no number of ranks and no batch divides it
TINY_YAML = """
arch: resnet18
image_size: 32
global_batch: 8        # 40 / 8 = 5 steps an epoch
epochs: 2
warmup_steps: 1
windows: 2             # steps 1-2 and 3-4 of the first epoch
window_steps: 2
workers: 0
lr: 0.1
timeout_s: 180         # a machine that does other work, too
"""
SYNTHETIC_YAML = "arch: resnet18\nimage_size: 32\nglobal_batch: 4\nloader: synthetic\n"
STRATEGIES = all_strategies()
REMEDY_WITHOUT = {  # what cannot run here: no GPU, no cluster (the runs below are told of none), no Horovod
    "apex_ddp": "NVIDIA GPUs",
    "slurm": "./bench slurm slurm",
    **({} if find_spec("horovod") else {"horovod_ddp": "scripts/setup/horovod.sh"}),
}
RUNNABLE = [name for name in STRATEGIES if name not in REMEDY_WITHOUT]
# Their launchers set the number of ranks to 1.
ONE_PROCESS = {name for name in STRATEGIES if "\nexport NPROC=1\n" in (ROOT / "launchers" / f"{name}.sh").read_text()}
PATTERNS = {
    "checks": lambda x, y: numpy.sin(20 * x) * numpy.sin(20 * y),
    "left": lambda x, y: 1 - 2 * x,
    "top": lambda x, y: 1 - 2 * y,
    "waves": lambda x, y: numpy.sin(15 * x),
}

CPU = torch.device("cpu")

torch.set_num_threads(1)  # as the ranks that tests start: sums in another order have other last bits


class SmallModel(nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()
        self.conv1, self.bn1, self.fc = nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.Linear(8, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn1(self.conv1(images)).relu().mean((2, 3)))


def draw_images(folder: Path, num_images: int, seed: int) -> None:
    """80 x 60 pixels: a pattern a class, its own colours and noise."""
    rng, classes = numpy.random.default_rng(seed), sorted(PATTERNS)
    y, x = numpy.mgrid[0:60, 0:80] / [[[60]], [[80]]]
    for number in range(num_images):
        name = classes[number % len(classes)]
        colours, noise = rng.uniform(0.5, 1, 3), rng.normal(0, 20, (60, 80, 3))
        pixels = 128 + 90 * PATTERNS[name](x, y)[..., None] * colours + noise
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / name / f"{name} {number}.JPEG", quality=90)


def loaders(data, rank=0, world_size=1, **changes):
    """(train, val) of one rank."""
    config = Config(**{"data": str(data), "image_size": 32, "global_batch": 8, "workers": 0} | changes)
    return build_loaders(config, Rank(rank, rank, world_size, world_size))


def pixels(loader, epoch=0, start_step=0):
    """(N, 3, H, W), and targets, (N,)."""
    loader.set_epoch(epoch, start_step)
    images, targets = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(targets)


def save(path, mode, size=(50, 40), kind="JPEG"):
    colour = {"L": 200, "CMYK": (0, 200, 200, 0), "RGBA": (200, 30, 30, 128), "P": 3}[mode]
    Image.new(mode, size, colour).save(path, kind)


def refusal(loader) -> str:
    """As text: a traceback would keep loader workers alive."""
    try:
        pixels(loader)
    except UserError as error:
        return str(error)
    pytest.fail("a bad file was read as if it were good")


def spoil(path, kind):
    content = path.read_bytes()
    path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "text": b"not an image"}[kind])


def environment(**variables) -> dict[str, str]:
    """An environment of its own for a subprocess: nothing of the caller's that a launcher or a rank would obey.

    No GPUs, so that the tests mean the same everywhere, and one thread a rank. None removes a variable. NUM_GPUS: that
    the suite's own programs are to find.
    """
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")
    ours = {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "NUM_GPUS": 0, "THREADS_PER_RANK": 1}
    mixed = {name: os.environ.get(name) for name in kept} | ours | variables
    if str(mixed["NUM_GPUS"] or 0) != "0":
        mixed["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "found_gpus"), str(ROOT)])
        mixed["FOUND_GPUS"] = mixed["NUM_GPUS"]
    return {name: str(value) for name, value in mixed.items() if value is not None}


OPTIONS = (
    "REPEATS",
    "UNTIL",
    "BUDGET",
    "FAIL_OVER",
    "SEEDS",
    "RETRY",
    "RESULTS",
    "DATA",
    "CONFIG",
    "NPROC",
    "KEY",
    "STRATEGY",
)
SWITCHES, LISTS = ("AA", "PLAN"), ("VALUES", "RANKS")


def bench_words(command: str = "run", **options) -> tuple[list[str], dict]:
    """Of `./bench COMMAND`, of options in capitals, and what is left for the environment."""
    words = [*shlex.split(command), *str(options.pop("STRATEGIES", "")).split()]
    for name in (*OPTIONS, *SWITCHES, *LISTS):
        if (value := options.pop(name, None)) not in (None, ""):
            given = [] if name in SWITCHES else str(value).split() if name in LISTS else [str(value)]
            words += [f"--{name.lower().replace('_', '-')}", *given]
    flags = shlex.split(options.pop("ARGS", ""))
    return [*words, *(["--", *flags] if flags else [])], options


def asked(**options) -> "Request":
    """Of `./bench run`, by options in capitals, and by variables of these names."""
    import tyro

    from scripts.runner.options import RunOptions
    from scripts.runner.request import read_request
    from scripts.shared.command_line import split_at_dashes

    names = [name for name in (*OPTIONS, *SWITCHES, "STRATEGIES", "ARGS") if name not in ("KEY", "STRATEGY", "NPROC")]
    words, _ = bench_words("", **{name: os.environ[name] for name in names if os.environ.get(name)} | options)
    typed, flags = split_at_dashes(words)
    return read_request(tyro.cli(RunOptions, args=typed), flags)


def start_bench(checkout: Path, command: str = "run", popen=subprocess.Popen, **variables):
    """./bench of a checkout, by `popen`, whose keywords are in small letters."""
    keywords = {name: value for name, value in variables.items() if name.islower()}
    words, rest = bench_words(command, **{name: value for name, value in variables.items() if not name.islower()})
    env = environment(SETUP="no", **rest)
    return popen([sys.executable, checkout / "bench", *words], env=env, **keywords)


OURS = "bench scripts.runner.by_hand scripts.runner.record"  # what a recorder passes on in a suite
ONE_RUN = {"round": 1, "position": 1, "number": "", "name": "single", "flags": ""}


def make_run_folder(path: Path) -> Path:
    """With no settings."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.yaml").write_text("config: {}\nrun: {}\n")
    return path


def put(folder: Path, **programs: str) -> None:
    """Programs that stand for others, each by its bash."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


def few_fast(cases: Iterable, fast: set[int]) -> list:
    """Those with these numbers stay in make test; the others, which go the same way through the code, are launches."""
    parts = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*part, marks=() if n in fast else pytest.mark.launches) for n, part in enumerate(parts)]


def svg_text(path: Path) -> str:
    """All text of an SVG, which must be well-formed."""
    return " ".join(ElementTree.parse(path).getroot().itertext())


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def hear_sigint() -> None:
    """For preexec_fn: a background job of a shell without job control ignores SIGINT."""
    for signum in ENDING_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


def launcher_flags(args: str, variables: dict) -> list[str]:
    """Takes CONFIG and DATA out of `variables`."""
    named = [(f"--{name.lower()}", variables.pop(name, None)) for name in ("CONFIG", "DATA")]
    return [*(word for flag, value in named if value for word in (flag, str(value))), *shlex.split(args)]


def run_strategy(name: str, results: Path, args: str = "", **variables) -> dict:
    """Its row of runs.csv. CONFIG and DATA become flags."""
    command = [ROOT / "launchers" / f"{name}.sh", *launcher_flags(args, variables)]
    env = environment(RESULTS=results, **variables)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    print(done.stdout + done.stderr)  # pytest shows it if the test fails
    runs = read_table(results, "runs")
    assert len(runs), f"{name} left no row"
    return runs.iloc[-1].to_dict() | {"launcher_exit_code": done.returncode}


RESOLVED_COLUMNS = (
    "precision", "device", "device_name", "world_size", "nodes", "threads_per_rank", "backend", "torch", "commit",
)  # fmt: skip


def recorded(results: Path, row: dict, **asked) -> dict:
    """A row for runs.csv with its settings in settings.csv."""
    fields = {name: row[name] for name in FIELDS if name in row} | asked
    own = {name: fields.pop(name) for name in fields.keys() - FIELDS.keys()}
    place = [row.get(name) for name in ("strategy", "world_size", "nodes", "threads_per_rank")]
    met = {name: row[name] for name in RESOLVED_COLUMNS if name in row} if row.get("status") == "ok" else None
    half = requested_settings(Config(**fields), *place, "2-40-23-abc") | own
    return row | {"settings": add_settings(results, half, met)}


def finish(runs, results: Path, status: str = "ok", **columns) -> None:
    """Add the rows that these runs would leave, with these columns besides."""
    results.mkdir(exist_ok=True)
    for run in runs:
        row = {"run_id": f"{run.strategy}-{run.requested_hash}-{run.round}", "strategy": run.strategy}
        row |= {"repeat": run.round, "status": status}
        row |= columns
        append_rows(results, "runs", [row | {"settings": add_settings(results, run.requested, {"torch": "2.15"})}])
        if speed := columns.get("images_per_s"):
            append_rows(results, "windows", [{"run_id": row["run_id"], "window": 0, "images": speed, "seconds": 1.0}])


RECORDER = '''
"""Stands for the interpreter of launchers: notes what it is asked to run, and trains nothing."""
import json, os, sys, time
from pathlib import Path
words = sys.argv[1:]
module = words[1] if words[:1] == ["-m"] else Path(words[0]).name
if module in os.environ["PASSED_ON"].split():
    os.execv(os.environ["PASSED_TO"], [os.environ["PASSED_TO"], *words])
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps({"words": words, "env": dict(os.environ)}) + "\\n")
if "RUN_DIR" in os.environ:
    folder = Path(os.environ["RUN_DIR"])
    strategy, number = folder.name.split("-")[:2]
    while number != "0" and os.path.exists(os.environ.get("WAIT_WHILE", "")):
        time.sleep(0.05)
    if number != "0" and strategy == os.environ.get("FAILS"):
        sys.exit("planted failure")
    if os.environ.get("LEAVES") != "nothing":
        row = {"images_per_s": 1.0, "world_size": 2, "device": "cpu"}
        told = {"row": row, "met": json.loads(os.environ.get("MET", "{}"))}
        (folder / "summary.json").write_text(json.dumps(told))
        windows = folder.parents[1] / "windows.csv"
        header = "" if windows.exists() else "run_id,window,images,seconds,images_per_s\\n"
        with open(windows, "a") as file:
            file.write(f"{header}{folder.name},0,1,1,1\\n")
'''


class Recorder:
    """A PYTHON that records commands instead of running them, in a folder with a space in its name.

    Modules in PASSED_ON go to the interpreter of tests. A run that counts leaves the summary that makes it ok, or fails
    where FAILS names the strategy, or waits as long as the file WAIT_WHILE is there.
    """

    def __init__(self, folder: Path):
        self.record, self.python = folder / "record.jsonl", folder / "recording python"
        (folder / "recorder.py").write_text(RECORDER)
        self.python.write_text(f'#!/bin/bash\nexec "{REAL}" -S "{folder}/recorder.py" "$@"\n')
        self.python.chmod(0o755)
        self.variables = {"PYTHON": self.python, "RECORD": self.record, "PASSED_ON": "", "PASSED_TO": sys.executable}

    def calls(self) -> list[dict]:
        """Every recorded call so far, in order, without warm-ups."""
        calls = [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []
        return [call for call in calls if "-0-" not in Path(call["env"].get("RUN_DIR", "")).name]
