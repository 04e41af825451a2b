"""Make imagenet-mini: a small folder of JPEGs in ImageNet's layout, cut from scikit-image's photographs.

    python -m scripts.data.mini [--output data/imagenet-mini] [--seed 0] [--verify] [--force]

photographs.py makes the files. manifest.json records how each file was cut, its size and its sha256. A second call
checks the folder against it (the sizes; with --verify also the hashes) and does no more.
Exit codes: 0 ready, 1 could not write, 2 bad input.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.common.files import guard_output
from scripts.data.photographs import MADE_BY, PHOTOGRAPHS, make_folder, settings
from scripts.options.data_options import MakeDatasetOptions


def read_dataset_manifest(output: Path) -> dict | None:
    """A folder's manifest; None where there is no folder or an empty one.

    Raises ValueError for whatever this script did not make: that is never touched.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    file = output / "manifest.json"
    text = file.read_text(errors="replace") if file.is_file() else ""
    if f'"made_by": "{MADE_BY}"' not in text:
        raise ValueError(
            f"{str(output)!r} was not made by this script (it has no manifest.json of this script), so "
            "it is left alone: give another --output, or move it away"
        )
    try:
        manifest: dict = json.loads(text)
    except ValueError:
        raise ValueError(f"{str(file)!r} is broken: remove {str(output)!r}, and it is made again") from None
    return manifest


def find_damage(output: Path, manifest: dict, hashes: bool) -> str | None:
    """What is wrong with the listed files (the first that is missing or changed), or None."""
    for name, record in manifest["files"].items():
        try:
            if (output / name).stat().st_size != record["bytes"]:
                return f"{name} has another size"
            if hashes and hashlib.sha256((output / name).read_bytes()).hexdigest() != record["sha256"]:
                return f"{name} has another content"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def unlisted_files(output: Path, manifest: dict) -> Iterator[str]:
    """Files of train/ and val/ that the manifest does not name, but for dot files, such as a file browser leaves."""
    for path in (*output.glob("train/**/*"), *output.glob("val/**/*")):
        name = path.relative_to(output).as_posix()
        if path.is_file() and name not in manifest["files"] and not path.name.startswith("."):
            yield name


def is_ready(output: Path, options: MakeDatasetOptions) -> bool:
    """True where `output` is complete, False where it has to be made; says so where it is damaged.

    Raises ValueError where making it would destroy what the caller may want to keep.
    """
    manifest = read_dataset_manifest(output)
    if manifest is None or options.force:
        return False
    if manifest["settings"] != settings(options):
        raise ValueError(
            f"{str(output)!r} was made with {manifest['settings']}, not {settings(options)}: "
            "give another --output, or --force to make it again"
        )
    if unlisted := next(unlisted_files(output, manifest), None):
        raise ValueError(
            f"{str(output)!r} holds {unlisted!r}, which this script did not make: move it away, "
            "or give --force to make the folder again without it"
        )
    damage = find_damage(output, manifest, options.verify)
    if damage:
        print(f"{output} is damaged ({damage}): making it again", file=sys.stderr)
    return damage is None


def make_dataset(options: MakeDatasetOptions) -> dict:
    """Make the folder unless it is there and complete, and return its manifest.

    It is made beside its place and renamed when complete, so that no reader ever sees half of it.
    Raises ValueError for bad options or a folder that must not be replaced, OSError where it cannot write.
    """
    if options.seed < 0 or options.num_train_per_class < 1 or options.num_val_per_class < 1:
        raise ValueError("--seed must be 0 or more, --num-train-per-class and --num-val-per-class 1 or more")
    output = options.output.resolve()  # through a link, so that the rename stays on the target's disk
    if not is_ready(output, options):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.making-", dir=output.parent) as workshop:
            new = Path(workshop, "new")
            make_folder(new, options)
            install(new, output, options)
    return read_dataset_manifest(output) or {}


def install(new: Path, output: Path, options: MakeDatasetOptions) -> None:
    """Rename `new` to `output`, unless another process was first. What lies there beside train/, val/ and
    manifest.json, such as packed images, stays."""
    manifest = read_dataset_manifest(output)
    if manifest is None:
        os.rename(new, output)
        return
    if not options.force and find_damage(output, manifest, options.verify) is None:
        return
    for part in ("train", "val"):
        shutil.rmtree(output / part, ignore_errors=True)
        os.rename(new / part, output / part)
    os.replace(new / "manifest.json", output / "manifest.json")


def main(options: MakeDatasetOptions) -> int:
    try:
        manifest = make_dataset(options)
    except ValueError as error:
        print(f"make_dataset: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"make_dataset: cannot make {str(options.output)!r}: {error}; free the disk, or give --output "
            "a folder that you can write to",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("make_dataset: stopped; nothing half-made is left", file=sys.stderr)
        return 130
    num_bytes = sum(record["bytes"] for record in manifest["files"].values())
    print(
        f"{options.output} is ready: {len(PHOTOGRAPHS)} classes, {len(manifest['files'])} JPEGs, "
        f"{num_bytes / 1e6:.1f} MB"
    )
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the workshop is removed
    guard_output()
    sys.exit(
        main(
            tyro.cli(
                Annotated[MakeDatasetOptions, tyro.conf.FlagCreatePairsOff],
                description=__doc__,
                prog="python -m scripts.data.mini",
            )
        )
    )
