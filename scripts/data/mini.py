"""Make imagenet-mini: a small folder of JPEGs in ImageNet's layout, cut from scikit-image's photographs.

    ./bench data make [--output data/imagenet-mini]

A second call compares the sizes of the files with manifest.json.
"""

import json
import os
import tempfile
from pathlib import Path

from benchmarks.common.errors import UserError
from scripts.data.options import MakeDatasetOptions
from scripts.data.photographs import MADE_BY, PHOTOGRAPHS, make_folder


def check_folder(output: Path) -> dict:
    """Its manifest. Raises UserError where it is not whole, or another's."""
    try:
        manifest: dict = json.loads((output / "manifest.json").read_text())
        of_us = manifest["made_by"] == MADE_BY
    except (OSError, ValueError, LookupError, TypeError):
        of_us = False
    if not of_us:
        raise UserError(f"{str(output)!r} was not made by this script; give another --output, or move it away")
    for name, record in manifest["files"].items():
        path = output / name
        if not path.is_file() or path.stat().st_size != record["bytes"]:
            raise UserError(
                f"{name} is missing or has another size: remove {str(output)!r}, and it is made again; "
                "or give another --output"
            )
    return manifest


def make_dataset(output: Path) -> dict:
    """Unless it is there; returns its manifest."""
    output = output.resolve()  # through a link, so that the rename stays on the target's disk
    if output.is_dir() and any(output.iterdir()):
        return check_folder(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.making-", dir=output.parent) as workshop:
            make_folder(Path(workshop, "new"))
            os.rename(Path(workshop, "new"), output)
    except OSError as error:
        if not output.is_dir():
            raise UserError(
                f"cannot make {str(output)!r}: {error}; give --output a folder that can be written"
            ) from None
    return check_folder(output)  # which another process may have made meanwhile


def main(options: MakeDatasetOptions) -> int:
    files = make_dataset(options.output)["files"]
    num_bytes = sum(record["bytes"] for record in files.values())
    print(f"{options.output} is ready: {len(PHOTOGRAPHS)} classes, {len(files)} JPEGs, {num_bytes / 1e6:.1f} MB")
    return 0
