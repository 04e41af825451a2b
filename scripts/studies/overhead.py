"""What the suite costs: its ddp beside examples/ddp.py, which has nothing of the suite.

    ./bench study overhead

Both are launched by torchrun, in turn, on the same images. The speed is that of whole epochs, as each prints it,
without the first.
"""

import re
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.architectures import architecture_of
from benchmarks.common.config import Config, load_config, resolve_global_batch
from benchmarks.common.errors import UserError
from benchmarks.common.listing import list_images
from scripts.results.formatting import format_with_interval
from scripts.shared.repository import ROOT
from scripts.studies.allreduce.launch_ranks import run_ranks
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
    return 0


def compare_launches(options: OverheadOptions) -> tuple[list[float], list[float]]:
    """Images a second of examples/ddp.py, and of benchmarks.ddp, in each pair of launches."""
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
                printed = run_ranks(programs[which], num_ranks, folder / f"{which} {pair}")
                speeds[which].append(example_speed(printed) if which == "A" else suite_speed(printed))
    return speeds["A"], speeds["B"]


def check_alike(config: Config, num_ranks: int) -> None:
    """Raises UserError for what the example does not train."""
    if architecture_of(config.arch).optimizer != "SGD" or config.norm != "batch" or config.compile:
        raise UserError(
            "the example trains with SGD and BatchNorm, not compiled; choose a ResNet, and leave --norm out"
        )
    if config.global_batch % num_ranks:
        raise UserError(f"global_batch {config.global_batch} is not a multiple of {num_ranks} ranks; change one")


def link_images(data: Path, folder: Path, num_images: int) -> None:
    """Links to images of data/train/, from all over it, or to all of them several times: an epoch of num_images. One
    image a class is for validation."""
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


def suite_speed(printed: str) -> float:
    """Of all epochs but the first."""
    epochs = [(int(images), float(s)) for number, images, s in SUITE_EPOCH.findall(printed) if number != "0"]
    return sum(images for images, _ in epochs) / sum(seconds for _, seconds in epochs)


def example_speed(printed: str) -> float:
    """All epochs have as many images."""
    speeds = [float(speed) for number, speed in EXAMPLE_EPOCH.findall(printed) if number != "0"]
    return len(speeds) / sum(1 / speed for speed in speeds)
