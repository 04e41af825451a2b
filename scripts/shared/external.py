"""Strategies of another repository: scripts in the folder that --strategy-dir names, written as those of benchmarks/.

    ./bench run single mine --strategy-dir ../my-library/benchmarks

The settings of their runs have STRATEGY_SOURCE, a hash of the folder's Python files. Needs no torch.
"""

import functools
import hashlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from benchmarks.common.errors import UserError
from scripts.shared.repository import ROOT

BENCHMARKS = ROOT / "benchmarks"
FOLDER_VARIABLE, NAME_VARIABLE = "STRATEGY_DIR", "EXTERNAL_STRATEGY"
"""Which folder; and which strategy of it launchers/external.sh starts."""
STRATEGY_SOURCE = "strategy_source"
NAME = re.compile(r"[a-z][a-z0-9_]*")
HASH_DIGITS = 16


def external_folder() -> Path | None:
    """None without one. Raises UserError."""
    text = os.environ.get(FOLDER_VARIABLE, "")
    if not text:
        return None
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise UserError(f"--strategy-dir {text}: there is no such folder")
    return folder


def external_script(name: str) -> Path | None:
    """None where the folder has none of this name, and for names of this repository."""
    folder = external_folder()
    if folder is None or not NAME.fullmatch(name) or (BENCHMARKS / f"{name}.py").exists():
        return None
    path = folder / f"{name}.py"
    return path if path.is_file() else None


def external_names() -> list[str]:
    """Of scripts with a function build."""
    folder = external_folder()
    paths = sorted(folder.glob("*.py")) if folder else []
    return [path.stem for path in paths if NAME.fullmatch(path.stem) and path.is_file() and has_build(path)]


def has_build(script: Path) -> bool:
    return re.search(rb"^def build\(", script.read_bytes(), re.MULTILINE) is not None


@functools.cache
def source_hash(folder: Path) -> str:
    """Of names and bytes of all Python files."""
    digest = hashlib.sha256()
    for path in python_files(folder):
        name, content = path.relative_to(folder).as_posix(), path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()[:HASH_DIGITS]


def python_files(folder: Path) -> list[Path]:
    """Without hidden folders, such as environments."""
    found = sorted(folder.rglob("*.py"))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def load_external(script: Path) -> ModuleType:
    """Raises UserError where it cannot be imported, whatever it raises, or lacks `build` or `layout`."""
    find_helpers(script)
    spec = importlib.util.spec_from_file_location(f"external_{script.stem}", script)
    assert spec is not None and spec.loader is not None  # which a name that ends in .py has
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{script} cannot be imported by {sys.executable}: {type(error).__name__}: {error} ({place.filename}, line "
            f"{place.lineno}); fix it, or install what it imports"
        ) from error
    for name in ("build", "layout"):
        if not callable(getattr(module, name, None)):
            raise UserError(f"{script} has no function {name}; CONTRIBUTING.md says what the script of a strategy has")
    return module


def find_helpers(script: Path) -> None:
    """Modules beside a script; none takes the place of a library's or of ours."""
    if str(script.parent) not in sys.path:
        sys.path.append(str(script.parent))
