"""gpu-check as one file, for a machine without a network: this commit, and wheels of what may be missing there.

    ./bench gpu-check-file gpu-check.pyz
    OUTPUT=state.tar python3 gpu-check.pyz    # there; scripts/gpu_check/carried.py says more

The wheels are those of the lock, by their hashes, for Linux on this machine's processor and the Python that --python
names, without those that --there lists. torch and torchvision are not among them. imagenet-mini comes along where it is
here and cannot be made there.
"""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.common.store.output_files import refuse_output_of_others
from benchmarks.common.system import source_version
from benchmarks.common.system.commands import shell_word
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import replace_atomically
from benchmarks.common.system.gpus import BUILDS
from benchmarks.common.system.repository import ROOT
from benchmarks.common.system.source_version import git_environment
from scripts.options.data_options import CarryOptions

# Of requirements.txt: those of a run, of its report and of its images.
CARRIED = (
    *("numpy", "pillow", "nvidia-nvimgcodec-cu13", "pandas", "matplotlib", "scipy", "tyro", "pyyaml", "tqdm", "psutil"),
    *("nvidia-ml-py", "jinja2", "scikit-image"),
)
NOT_CARRIED = ("torch", "torchvision")
"""Packages that the other machine must have already: its build of torch is what gpu-check tries."""
IMAGES, IMAGES_FROM = "data/imagenet-mini", "scikit-image"


def main(options: CarryOptions) -> int:
    refuse_output_of_others(options.file, "FILE")
    if source_version.commit() is None:
        raise UserError(f"{ROOT} is no checkout, of which a file could be made")
    if source_version.local_changes():
        print("warning: what is not committed stays here", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        packages_there = read_packages(options.there) if options.there else set()
        names = [name for name in needed_packages() if name not in packages_there]
        wheels = fetch_wheels(names, options.python, work / "wheels") if names else {}
        pack_tree(work / "tree.tar", with_images=IMAGES_FROM not in packages_there)
        replace_atomically(options.file, lambda file: write_bundle(file, work / "tree.tar", wheels))
    size_mb = options.file.stat().st_size / 1e6
    print(f"{options.file}: {size_mb:.0f} MB, with {len(wheels)} wheels for Python {options.python}")
    print(f"there: OUTPUT=state.tar python3 {shell_word(options.file.name)}")
    return 0


def needed_packages() -> list[str]:
    """CARRIED and all that these need, by the metadata of the packages here; without NOT_CARRIED."""
    found: dict[str, None] = {}
    waiting = [canonicalize_name(name) for name in CARRIED]
    while waiting:
        name = waiting.pop(0)
        if name in found or name in NOT_CARRIED:
            continue
        found[name] = None
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return [*found]


def read_packages(path: Path) -> set[str]:
    """The names in a list of packages, as pip prints it: a line each, such as numpy==2.5.2. Raises UserError where the
    file cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}, the list of what is there, cannot be read: {error}") from None
    return {canonicalize_name(found[0]) for line in lines if (found := re.match(r"[A-Za-z0-9][\w.-]*", line))}


def pinned_requirements(names: Iterable[str], lock: str, python: str) -> str:
    """The entries of `lock` for the packages `names` and the Python `python`, with hashes and without markers: pip
    would evaluate markers for the Python here. Raises UserError for a package that the lock lacks."""
    other_python = {"python_version": python, "python_full_version": f"{python}.99"}
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?=\w)", lock):
        head, separator, hashes = entry.partition(" \\\n")
        if not separator:
            continue
        requirement = Requirement(head)
        if requirement.marker is None or requirement.marker.evaluate(other_python):
            found = f"{requirement.name}{requirement.specifier}{separator}{hashes}"
            entries[canonicalize_name(requirement.name)] = found
    if lacking := [name for name in names if name not in entries]:
        raise UserError(f"the lock has no {', '.join(lacking)} for Python {python}; scripts/setup/lock.sh writes it")
    return "\n".join(entries[name] for name in names) + "\n"


def fetch_wheels(names: list[str], python: str, folder: Path) -> dict[str, Path]:
    """A wheel of each package, by name. Raises UserError where pip has none."""
    folder.mkdir()
    wanted = folder.parent / "wanted.lock"
    wanted.write_text(pinned_requirements(names, (ROOT / BUILDS[0].lock).read_text(), python))
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in (28, 27, 24, 17)] + [f"manylinux2014_{machine}"]
    words = [*"--require-hashes --no-deps --only-binary :all: --implementation cp --python-version".split(), python]
    words += [word for name in platforms for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *words, "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
        raise UserError(f"pip has not all wheels for Python {python}: {lines[0]}")
    return {canonicalize_name(path.name.partition("-")[0]): path for path in sorted(folder.glob("*.whl"))}


def pack_tree(path: Path, with_images: bool = True) -> None:
    """A repository of this commit alone, so that rows there have it, and imagenet-mini where it is here."""
    copy = path.parent / "copy"
    copy_commit(copy)
    with tarfile.open(path, "w") as tar:
        tar.add(copy, ".", filter=without_owner)
        if with_images and (ROOT / IMAGES).is_dir():
            tar.add((ROOT / IMAGES).resolve(), IMAGES, filter=of_imagenet_mini)


def copy_commit(folder: Path) -> None:
    """The commit that is checked out, in a new repository without a branch, a tag or a remote: a clone would have their
    names, and who made the tags. Its author stands in the commit."""

    def git(*words: str) -> None:  # a reflog would have the user's name
        command = ["git", "-C", str(folder), "-c", "core.logAllRefUpdates=false", *words]
        subprocess.run(command, check=True, env=git_environment())

    folder.mkdir()
    git("init", "--quiet", "--template=")  # a template would have the user's hooks
    git("fetch", "--quiet", "--no-tags", "--depth", "1", f"file://{urllib.parse.quote(os.fsencode(ROOT))}", "HEAD")
    git("checkout", "--quiet", "--detach", "FETCH_HEAD")
    (folder / ".git/FETCH_HEAD").unlink()  # it names a folder of here
    git("read-tree", "HEAD")  # writes the index anew: checkout's has the numbers of the user and the group


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's name or number goes along."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def of_imagenet_mini(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing else that lies in its folder: a link would name a folder of who made the file."""
    is_its_own = member.name.endswith((".JPEG", "/manifest.json"))
    return without_owner(member) if member.isdir() or (member.isfile() and is_its_own) else None


def write_bundle(file: object, tree: Path, wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(file, "w") as bundle:  # type: ignore[call-overload]
        bundle.write(Path(__file__).with_name("carried.py"), "__main__.py")
        bundle.writestr("wheels.json", json.dumps({name: path.name for name, path in wheels.items()}))
        bundle.write(tree, "tree.tar", zipfile.ZIP_DEFLATED)
        for path in wheels.values():
            bundle.write(path, f"wheels/{path.name}")
