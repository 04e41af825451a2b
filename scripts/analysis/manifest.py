"""The manifest of a published set: what its runs were, at which commit, and a checksum of every file.

    {"schema": 1, "commit": "...",
     "runs": [{"strategy": "ddp", "label": "ddp", "rounds": 3, "asked": {...}, "met": {...}}, ...],
     "files": {"runs.csv": "<sha256>", ...}}

`make publish` writes it last. `make reproduce` runs what it says again; the gallery shows no set that is not what its
manifest says. `asked` and `met` are the settings' two halves (benchmarks.common.settings). Needs no torch.
"""

import hashlib
import json
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.results import write_json
from scripts.analysis.sets import ResultSet

NAME, SCHEMA = "manifest.json", 1


def write_manifest(folder: Path, results: ResultSet) -> None:
    """Write the manifest of the set in `folder`, whose runs `results` are. Raises UserError for several commits."""
    commits = sorted(set(results.ok.commit))
    if len(commits) != 1 or not commits[0]:
        raise UserError(f"{folder} has runs of {len(commits)} commits or of none; its manifest needs one")
    runs = [
        {
            "strategy": group.strategy,
            "label": group.label,
            "rounds": len({*group.rounds}),
            "asked": group.identity.asked,
            "met": group.identity.met,
        }
        for group in results.groups
        if group.samples
    ]
    write_json(folder / NAME, {"schema": SCHEMA, "commit": commits[0], "runs": runs, "files": checksums(folder)})


def checksums(folder: Path) -> dict[str, str]:
    """sha256 of every file in `folder` and below, in order of name, but for the manifest and hidden files."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    kept = [path for path in paths if str(path) != NAME and not any(part.startswith(".") for part in path.parts)]
    return {path.as_posix(): _sha256(folder / path) for path in kept}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> dict:
    """The manifest of a published set. Raises UserError where there is none, or one that this suite cannot read."""
    path = folder / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        schema, runs, files = found["schema"], found["runs"], found["files"]
        whole = isinstance(found["commit"], str) and isinstance(files, dict) and isinstance(runs, list)
        kinds = {"strategy": str, "label": str, "rounds": int, "asked": dict, "met": dict}
        whole = whole and all(isinstance(run[name], kind) for run in runs for name, kind in kinds.items())
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {NAME}: it is no published set, or was published before there were any; make publish "
            "writes it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}); take it from git again: git checkout {path}") from None
    if schema != SCHEMA or not whole:
        raise UserError(f"{path} is of schema {schema}, or is not whole; this suite reads schema {SCHEMA}")
    return found


def faults(folder: Path, files: dict[str, str]) -> list[str]:
    """A line for each file that is missing, or is not what was published. files: the manifest's."""
    lines = []
    for name, wanted in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):  # from elsewhere, it may not choose a file
            lines.append(f"{NAME} names {name}, which is not in the set")
        elif not path.is_file():
            lines.append(f"{name} is missing; git checkout {path}")
        elif _sha256(path) != wanted:
            lines.append(f"{name} is not what was published (sha256); git checkout {path}")
    return lines
