"""Strategies of another repository: scripts in the folder that --strategy-dir names. Needs no torch.

./bench run single mine --strategy-dir ../my-library/benchmarks
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
"""A setting: the folder's source_hash."""
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


@functools.cache
def source_hash(folder: Path) -> str:
    """Of names and bytes of all Python files outside of hidden folders, such as environments."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        name, content = path.relative_to(folder).as_posix(), path.read_bytes()
        if not name.startswith(".") and "/." not in name:
            digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()[:HASH_DIGITS]


def load_external(script: Path) -> ModuleType:
    """Raises UserError where it cannot be imported, or lacks `build` or `layout`."""
    find_helpers(script)
    spec = importlib.util.spec_from_file_location(f"external_{script.stem}", script)
    assert spec is not None and spec.loader is not None
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
