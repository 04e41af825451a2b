"""What the suite costs: its ddp beside examples/ddp.py, which has nothing of the suite.

    ./bench study overhead

Launches of both by torchrun, in turn, on the same images: same model, batches, decoder, threads and precision. What is
compared is the speed of whole epochs, as each prints it, without the first.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.architectures import architecture_of
from benchmarks.common.config import Config, load_config, resolve_global_batch
from benchmarks.common.errors import UserError
from benchmarks.common.listing import list_images
from scripts.results.formatting import format_with_interval
from scripts.shared.forward_signals import die_with_parent
from scripts.shared.repository import ROOT
from scripts.studies.allreduce.launch_ranks import rank_environment, torchrun_command
from scripts.studies.options import OverheadOptions
from scripts.studies.paired import order_of_round, ratio_of_speeds

SUITE_EPOCH = re.compile(r"(?m)^epoch (\d+) train .* (\d+) images in ([\d.]+) s$")
EXAMPLE_EPOCH = re.compile(r"(?m)^epoch (\d+): .* ([\d.]+) images/s$")


def main(options: OverheadOptions) -> int:
    if options.pairs < 2:
        raise UserError(f"--pairs is {options.pairs}, but an interval needs more; 5 decide")
    if options.steps < 2 or options.epochs < 1:
        raise UserError("an epoch needs at least 2 --steps, and a launch at least one of --epochs")
    ratio = ratio_of_speeds(*compare_launches(options))
    text = format_with_interval(ratio.value, ratio.low, ratio.high, "{:.4f}".format)
    print(f"suite / example, images per second: {text} (95 %, n={options.pairs} pairs of launches)")
    return int((ratio.low or 0.0) < options.fail_under)


def compare_launches(options: OverheadOptions) -> tuple[list[float], list[float]]:
    """Images a second of examples/ddp.py, and of benchmarks.ddp, in each pair of launches.

    Raises UserError where the example cannot train as configured, the images are unfit, or ranks fail.
    """
    num_ranks = machine.num_ranks()
    flags = ["--config", options.config, *(["--data", options.data] if options.data else [])]
    config = resolve_global_batch(load_config(flags), num_ranks)
    check_alike(config, num_ranks)
    speeds: dict[str, list[float]] = {"A": [], "B": []}
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        link_images(Path(config.data), folder / "images", options.steps * config.global_batch)
        programs = {
            "A": example_program(config, options, folder / "images", num_ranks),
            "B": suite_program(config, options, folder / "images"),
        }
        for pair in tqdm(range(1, options.pairs + 1), "pairs of launches", disable=None, leave=False):
            for which in order_of_round("A", pair):
                printed = launch(programs[which], num_ranks, folder / f"{which} {pair}")
                speeds[which].append(example_speed(printed) if which == "A" else suite_speed(printed))
    return speeds["A"], speeds["B"]


def check_alike(config: Config, num_ranks: int) -> None:
    """Raises UserError for what the example does not train."""
    if (optimizer := architecture_of(config.arch).optimizer) != "SGD":
        raise UserError(f"{config.arch} is trained with {optimizer} here, and by the example with SGD; choose a ResNet")
    if config.norm != "batch" or config.compile:
        raise UserError("the example has BatchNorm and does not compile; leave --norm and --compile out")
    if config.global_batch % num_ranks:
        raise UserError(f"global_batch {config.global_batch} is not a multiple of {num_ranks} ranks; change one")


def link_images(data: Path, folder: Path, num_images: int) -> None:
    """Links to images of data/train/, from all over it, or to all of them several times: an epoch of num_images. One
    image a class is for validation. Raises UserError where there are none."""
    try:
        images = list_images(data / "train")
    except OSError as error:
        raise UserError(f"cannot read {data}/train: {error}; --data must hold train/ and val/") from None
    for number in range(num_images):
        index = number * len(images) // num_images
        path, name = Path(images.path(index)).resolve(), images.classes[images.target(index)]
        for part in ("train", "val"):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
        (folder / "train" / name / f"{number}{path.suffix}").symlink_to(path)
        validation = folder / "val" / name / f"0{path.suffix}"
        if not any(validation.parent.iterdir()):
            validation.symlink_to(path)


def suite_program(config: Config, options: OverheadOptions, images: Path) -> list[str]:
    # lr 0: both do the same work in every epoch; a loss that sinks meets numbers that a CPU is slow with
    alike = f"--epochs {1 + options.epochs} --steps 0 --lr 0 --loader folder --decoder pillow --precision auto"
    windows = f"--warmup-steps {options.steps} --windows {options.epochs} --window-steps {options.steps - 1}"
    rest = f"--memory-format contiguous --account-steps 0 --global-batch {config.global_batch}"
    flags = ["--config", str(Path(options.config).resolve()), "--data", str(images)]  # it runs in another folder
    return ["-m", "benchmarks.ddp", *flags, *alike.split(), *windows.split(), *rest.split()]


def example_program(config: Config, options: OverheadOptions, images: Path, num_ranks: int) -> list[str]:
    workers = machine.resolve_num_workers(config.workers, machine.num_gpus() > 0)
    sizes = f"--batch-size {config.global_batch // num_ranks} --image-size {config.image_size} --workers {workers}"
    flags = f"--arch {config.arch} --epochs {1 + options.epochs} --lr 0 {sizes}"
    return [str(ROOT / "examples" / "ddp.py"), str(images), *flags.split()]


def launch(program: list[str], num_ranks: int, folder: Path) -> str:
    """What the ranks of this program print. folder: a new one, in which they meet and the example saves."""
    folder.mkdir()
    start, variables = torchrun_command(num_ranks, folder)
    env = rank_environment(machine.threads_per_rank(num_ranks)) | variables
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    done = subprocess.run(
        [*start, *program], cwd=folder, env=env, capture_output=True, text=True, preexec_fn=die_with_parent()
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")] or [done.stderr[-2000:]]
        raise UserError(f"{' '.join(program[:2])} did not get to its end: {said[0].removeprefix('error: ')}")
    return done.stdout


def suite_speed(printed: str) -> float:
    """Images a second of all epochs but the first."""
    epochs = [(int(images), float(s)) for number, images, s in SUITE_EPOCH.findall(printed) if number != "0"]
    return sum(images for images, _ in epochs) / sum(seconds for _, seconds in epochs)


def example_speed(printed: str) -> float:
    """The same; all its epochs have as many images."""
    speeds = [float(speed) for number, speed in EXAMPLE_EPOCH.findall(printed) if number != "0"]
    return len(speeds) / sum(1 / speed for speed in speeds)
