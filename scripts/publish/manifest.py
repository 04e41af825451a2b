"""The manifest of a published set: what its runs were, at which commit, and a checksum of every file.

    {"schema": 1, "commit": "...",
     "runs": [{"strategy": "ddp", "label": "ddp", "rounds": 3, "asked": {...}, "met": {...}}, ...],
     "files": {"runs.csv": "<sha256>", ...}}

`./bench publish` writes it last. `./bench reproduce` repeats the runs that it lists; the gallery shows no set that
differs from its manifest. `asked` and `met` are the settings' two halves (benchmarks.common.config.settings). Needs no
torch.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.config.settings import settings_hash
from benchmarks.common.store.results import read_table, write_json
from benchmarks.common.store.safe_names import SAFE_NAME, file_inside
from benchmarks.common.system.commands import shell_word
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import open_set_file, read_set_file
from scripts.sets.recorded_settings import identities_by_hash
from scripts.sets.result_set import ResultSet
from scripts.stats.formatting import printable

MANIFEST, SCHEMA, LIMIT_BYTES = "manifest.json", 1, 2**26
OF_LOCKS = (".suite", ".holder", ".writing")
MADE_LATER = "report.pdf"  # by ./bench report where there is a LaTeX; git does not keep it
KINDS = {"strategy": str, "label": str, "rounds": int, "asked": dict, "met": dict}
COUNTS = ("ranks", "nodes", "threads_per_rank")
KINDS_REQUESTED = dict.fromkeys(("strategy", "fingerprint", "data"), str) | dict.fromkeys(COUNTS, int)


def write_manifest(folder: Path, results: ResultSet) -> None:
    """Write the manifest of the set in `folder`, whose runs `results` are. Raises UserError for several commits."""
    commits = sorted(set(results.ok_runs.commit))
    if len(commits) != 1 or not commits[0]:
        raise UserError(f"{folder} has runs of {len(commits)} commits or of none; its manifest needs one")
    runs = [
        {
            "strategy": group.strategy,
            "label": group.label,
            "rounds": len({*group.round_numbers}),
            "asked": group.identity.requested,
            "met": group.identity.resolved,
        }
        for group in results.timed_groups
    ]
    write_json(folder / MANIFEST, {"schema": SCHEMA, "commit": commits[0], "runs": runs, "files": checksums(folder)})


def checksums(folder: Path) -> dict[str, str]:
    """sha256 of every file in `folder` and below, in order of name; not of the manifest, MADE_LATER, hidden files."""
    return {name: _sha256(folder / name) for name in _names(folder)}


def _names(folder: Path) -> list[str]:
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    kept = [path for path in paths if not path.name.startswith(".") and str(path) not in (MANIFEST, MADE_LATER)]
    return [path.as_posix() for path in kept]


def _sha256(path: Path) -> str:
    with open_set_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(run: dict) -> bool:
    """Whether a run has all that it is started by, of the right kinds. Raises KeyError where it lacks something."""
    requested = run["asked"]
    kinds = [isinstance(run[name], kind) for name, kind in KINDS.items()]
    kinds += [isinstance(requested[name], kind) for name, kind in KINDS_REQUESTED.items()]
    return all(kinds) and all(number > 0 for number in (run["rounds"], *(requested[name] for name in COUNTS)))


def read_manifest(folder: Path) -> dict:
    """The manifest of a published set. Raises UserError where there is none, or one that this suite cannot read."""
    path = folder / MANIFEST
    try:
        found = json.loads(read_set_file(path, LIMIT_BYTES))
        schema, runs, files = found["schema"], found["runs"], found["files"]
        whole = isinstance(found["commit"], str) and isinstance(files, dict) and isinstance(runs, list) and bool(runs)
        whole = whole and all(map(_is_whole, runs))
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {MANIFEST}: it is no published set, or was published before there were any; ./bench "
            "publish writes it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        again = checkout(folder, MANIFEST, "; take it from git again:")
        raise UserError(f"{printable(str(path))} cannot be read ({printable(str(error))}){again}") from None
    if schema != SCHEMA or not whole:
        raise UserError(f"{path} is of schema {ascii(schema)[:60]}, or is not whole; this suite reads schema {SCHEMA}")
    return found


def find_faults(folder: Path, manifest: dict) -> list[str]:
    """A line for each file that is missing, added or changed since publication.

    Where there is none: a line for each statement of the manifest that the set's tables contradict. manifest: as of
    read_manifest.
    """
    return [*_of_files(folder, manifest["files"])] or [*_of_tables(folder, manifest)]


def _of_files(folder: Path, files: dict[str, str]) -> Iterator[str]:
    paths = sorted(folder.rglob("*"))
    strange = [path for path in paths if path.is_symlink() or not (path.is_file() or path.is_dir())]
    for path in strange:
        name = printable(path.relative_to(folder).as_posix())
        yield f"{name} is a link or no regular file, and no set is published with one"
    if strange:  # nothing is read through it
        return
    for name, checksum in files.items():
        file, shown = file_inside(folder, name), printable(name)[:100]
        if file is None and _leads_out(name):
            yield f"{MANIFEST} names {shown}, which is not in the set"
        elif file is None:
            yield f"{shown} is missing{checkout(folder, name)}"
        elif _sha256(file) != checksum:
            yield f"{shown} is not what was published (sha256){checkout(folder, name)}"
    for path in paths:
        if path.name.startswith(".") and not (path.name in OF_LOCKS and path.is_file()):
            yield f"{printable(path.relative_to(folder).as_posix())} is hidden, and no published set has such a file"
    for name in _names(folder):
        if name not in files:
            yield f"{name} is not in {MANIFEST}: it was not published; take it away{checkout(folder, MANIFEST, ', or')}"


def checkout(folder: Path, name: str = "", before: str = ";") -> str:
    """The command that brings the set in `folder` or its file `name` back, to be pasted; '' where the set's or the
    file's name is none that a set has. git takes `*` in a name for other sets. After -- git takes no branch of a fork
    that has the file's path for a name."""
    plain = all(map(SAFE_NAME.fullmatch, (folder.absolute().name, *Path(name).parts)))
    return f"{before} git checkout -- {shell_word(folder / name)}" if plain else ""


def _leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/")


def _of_tables(folder: Path, manifest: dict) -> Iterator[str]:
    """What runs of another commit, or of other settings, would be started by."""
    runs, (known, _) = read_table(folder, "runs"), identities_by_hash(read_table(folder, "settings"))
    commits = sorted(set(runs[runs.status == "ok"].commit))
    if commits != [manifest["commit"]]:
        yield f"{MANIFEST} says commit {manifest['commit']}, and runs.csv {', '.join(commits) or 'none'}"
    if (most := max(run["rounds"] for run in manifest["runs"])) > len(runs):
        yield f"{MANIFEST} says {most} rounds, and runs.csv has {len(runs)} rows"
    made = {settings_hash(each.requested, each.resolved) for each in known.values()}
    for run in manifest["runs"]:
        if settings_hash(run["asked"], run["met"]) not in made:
            yield f"{MANIFEST} has settings of {run['label']} that settings.csv has not"
        if run["strategy"] != run["asked"]["strategy"]:
            yield f"{MANIFEST} says {run['strategy']} of settings of {run['asked']['strategy']}"
