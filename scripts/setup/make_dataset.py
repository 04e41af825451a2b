"""Make imagenet-mini: a small folder of JPEGs in ImageNet's layout, cut from scikit-image's photographs.

    python -m scripts.setup.make_dataset [--output data/imagenet-mini] [--seed 0] [--verify] [--force]

cut_photographs.py makes the files. manifest.json records how each file was cut, its size and its sha256. A second call
checks the folder against it (the sizes; with --verify also the hashes) and does no more.
Exit codes: 0 ready, 1 could not write, 2 bad input.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_regular_file
from benchmarks.common.system.folders_of_others import make_own_folder, refuse_place_of_others
from benchmarks.common.system.output import guard_output
from scripts.options.data_options import MakeDatasetOptions
from scripts.setup.cut_photographs import MADE_BY, PHOTOGRAPHS, make_folder, settings

PACKED = "packed"  # the folder of ./bench data pack, which can write its files again
IMAGE_PATH = re.compile(r"(?:train|val)/(\w+)/\1_\d{4,}\.JPEG")  # as cut_photographs.py names an image
STALE_S = 3600  # making takes seconds, so a workshop this old is a killed run's
MANIFEST_BYTES = 100_000_000


def read_dataset_manifest(output: Path) -> dict | None:
    """A folder's manifest; {} where it is ours but broken; None where there is no folder or an empty one.

    Raises ValueError for whatever this script did not make: that is never touched.
    """
    text = ""
    for _ in range(2):  # a second look, as another process may have been renaming the folder at the first
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not output.exists() or (output.is_dir() and not any(output.iterdir())):
                return None
            manifest_file = output / "manifest.json"
            if manifest_file.exists() and not manifest_file.is_file():  # of a pipe no reader would see the end
                break
            text = read_regular_file(manifest_file, MANIFEST_BYTES).decode(errors="replace")
            break
    if f'"made_by": "{MADE_BY}"' not in text:
        raise ValueError(
            f"{str(output)!r} was not made by this script (it has no manifest.json of this script), so "
            "it is left alone: give another --output, or move it away"
        )
    with contextlib.suppress(json.JSONDecodeError, RecursionError):
        manifest = json.loads(text)
        if is_manifest(manifest):
            return manifest
    return {}


def is_manifest(found: object) -> bool:
    """Whether this has the shape of a manifest.json of this script."""
    if not isinstance(found, dict) or "settings" not in found or not isinstance(found.get("files"), dict):
        return False
    return all(
        isinstance(record, dict) and type(record.get("bytes")) is int and isinstance(record.get("sha256"), str)
        for record in found["files"].values()
    )


def find_damage(output: Path, manifest: dict, hashes: bool) -> str | None:
    """What is wrong with the listed files (the first that is missing or changed), or None."""
    if not manifest:
        return "its manifest.json is broken"
    for name, record in manifest["files"].items():
        if name.startswith("/") or ".." in name.split("/"):  # a folder that somebody else has made
            return "its manifest.json is broken"
        try:
            if (output / name).stat().st_size != record["bytes"]:
                return f"{name} has another size"
            if not hashes:
                continue
            content = read_regular_file(output / name, record["bytes"])
            if hashlib.sha256(content).hexdigest() != record["sha256"]:
                return f"{name} has another content"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def unlisted_files(output: Path, manifest: dict) -> Iterator[str]:
    """Files that the manifest does not name, but for what ./bench data pack writes beside train/ and val/, and dot
    files, such as a file browser leaves behind. Of a broken manifest, {}, those that have no name of an image here."""
    for folder, folders, names in os.walk(output):
        if Path(folder) == output and PACKED in folders:
            folders.remove(PACKED)
        for name in names:
            path = Path(folder, name).relative_to(output).as_posix()
            listed = path in manifest["files"] if manifest else IMAGE_PATH.fullmatch(path)
            if not listed and path != "manifest.json" and not name.startswith("."):
                yield path


def is_ready(output: Path, options: MakeDatasetOptions) -> bool:
    """True where `output` is complete, False where it has to be made; says so where it is damaged.

    Raises ValueError where making it would destroy what the caller may want to keep.
    """
    manifest = read_dataset_manifest(output)
    if manifest is None or options.force:
        return False
    if manifest and manifest["settings"] != settings(options):
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
    Raises ValueError for bad options or a folder that must not be replaced, UserError where another user could replace
    what is written, OSError where it cannot write.
    """
    if options.seed < 0 or options.num_train_per_class < 1 or options.num_val_per_class < 1:
        raise ValueError("--seed must be 0 or more, --num-train-per-class and --num-val-per-class 1 or more")
    output = options.output.resolve()  # through a link, so that the rename stays on the target's disk
    if not is_ready(output, options):
        refuse_place_of_others(options.output, "give --output a folder that you have made")
        make_own_folder(output.parent, "give --output a folder that you have made")
        prefix = f".{output.name}.making-"
        for path in output.parent.iterdir():
            if path.name.startswith(prefix) and is_left_over(path):
                print(f"removing {path}, left half-made by a killed run", file=sys.stderr)
                shutil.rmtree(path, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=output.parent) as workshop:
            new = Path(workshop, "new")
            make_folder(new, options)
            install(new, output, options, aside=Path(workshop, "old"))
    return read_dataset_manifest(output) or {}


def is_left_over(workshop: Path) -> bool:
    """Whether a killed run of this user has left it: another user could give any folder such a name."""
    status = workshop.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_own and time.time() - status.st_mtime > STALE_S and {*os.listdir(workshop)} <= {"new", "old"}


def install(new: Path, output: Path, options: MakeDatasetOptions, aside: Path) -> None:
    """Rename `new` to `output`, and what was there to `aside`, unless another process put a good one."""
    manifest = read_dataset_manifest(output)
    if manifest and not options.force and find_damage(output, manifest, options.verify) is None:
        return
    with contextlib.suppress(FileNotFoundError):
        if not options.force:
            move_what_is_not_made(output, new)
        os.rename(output, aside)
    try:
        os.rename(new, output)
    except OSError:
        if not output.exists():
            raise
        move_what_is_not_made(new, output)  # the other process was first by a moment


def move_what_is_not_made(source: Path, target: Path) -> None:
    """Move packed images, and the dot files beside them: one damaged image is no reason to lose them.

    Raises OSError where one cannot be moved; then none is.
    """
    names = [path.name for path in source.iterdir() if path.name == PACKED or path.name.startswith(".")]
    moved = []
    try:
        for name in names:
            os.rename(source / name, target / name)
            moved.append(name)
    except OSError:
        for name in moved:
            os.rename(target / name, source / name)
        raise


def main(options: MakeDatasetOptions) -> int:
    try:
        manifest = make_dataset(options)
    except (UserError, ValueError) as error:
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
    os.umask(os.umask(0o077) | 0o002)  # the data set is never writable by everybody
    guard_output()  # a manifest.json that came with the folder has names in it
    sys.exit(
        main(
            tyro.cli(
                Annotated[MakeDatasetOptions, tyro.conf.FlagCreatePairsOff],
                description=__doc__,
                prog="python -m scripts.setup.make_dataset",
            )
        )
    )
