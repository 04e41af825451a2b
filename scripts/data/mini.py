"""Make imagenet-mini: a small folder of JPEGs in ImageNet's layout, cut from scikit-image's photographs.

    python -m scripts.data.mini [--output data/imagenet-mini] [--seed 0]

manifest.json records how each file was cut, its size and its sha256. A second call compares the sizes.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import tyro

from benchmarks.common.errors import UserError
from scripts.data.photographs import MADE_BY, PHOTOGRAPHS, make_folder, settings
from scripts.options.data_options import MakeDatasetOptions
from scripts.shared.programs import run_main_and_exit


def read_manifest(output: Path) -> dict:
    """Raises UserError for a folder that this script did not make."""
    try:
        manifest: dict = json.loads((output / "manifest.json").read_text())
        if manifest["made_by"] == MADE_BY:
            return manifest
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise UserError(f"{str(output)!r} was not made by this script; give another --output, or move it away")


def check_folder(output: Path, options: MakeDatasetOptions) -> dict:
    """The manifest of a folder that is whole. Raises UserError."""
    manifest = read_manifest(output)
    again = f"remove {str(output)!r}, and it is made again; or give another --output"
    if manifest["settings"] != settings(options):
        raise UserError(f"made with {manifest['settings']}, not {settings(options)}: {again}")
    for name, record in manifest["files"].items():
        path = output / name
        if not path.is_file() or path.stat().st_size != record["bytes"]:
            raise UserError(f"{name} is missing or has another size: {again}")
    return manifest


def make_dataset(options: MakeDatasetOptions) -> dict:
    """Make the folder unless it is there, and return its manifest. Raises UserError."""
    if options.seed < 0 or options.num_train_per_class < 1 or options.num_val_per_class < 1:
        raise UserError("--seed must be 0 or more, --num-train-per-class and --num-val-per-class 1 or more")
    output = options.output.resolve()  # through a link, so that the rename stays on the target's disk
    if output.is_dir() and any(output.iterdir()):
        return check_folder(output, options)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.making-", dir=output.parent) as workshop:
            make_folder(Path(workshop, "new"), options)
            os.rename(Path(workshop, "new"), output)
    except OSError as error:
        if not output.is_dir():
            raise UserError(
                f"cannot make {str(output)!r}: {error}; give --output a folder that can be written"
            ) from None
    return check_folder(output, options)  # which another process may have made meanwhile


def main(options: MakeDatasetOptions) -> int:
    files = make_dataset(options)["files"]
    num_bytes = sum(record["bytes"] for record in files.values())
    print(f"{options.output} is ready: {len(PHOTOGRAPHS)} classes, {len(files)} JPEGs, {num_bytes / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the workshop is removed
    run_main_and_exit(
        lambda: main(tyro.cli(MakeDatasetOptions, description=__doc__, prog="python -m scripts.data.mini"))
    )
