"""The Python files of a folder, from which Python may import."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

OnError = Callable[[OSError], None]


def python_files(
    folder: Path, on_error: OnError | None = None, above: frozenset[str] = frozenset(), linked: bool = False
) -> Iterator[Path]:
    """Python files below a folder, in the order of their names, without hidden folders, such as environments and git's
    own. A link to a folder is followed, too, and below it each folder that holds Python files: a data set holds none.

    on_error: called for a folder that can be entered, but not listed; without it such a folder is left out.
    above: real paths of the folders around it, to which a link may lead back. linked: whether it is below a link.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        folders = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as error:
        if on_error and os.access(folder, os.X_OK):
            on_error(error)
        return
    files = [Path(entry.path) for entry in entries if entry.name.endswith(".py") and entry not in folders]
    if linked and not files:
        return
    yield from files
    above |= {os.path.realpath(folder)}
    for entry in folders:
        if os.path.realpath(entry.path) not in above:
            yield from python_files(Path(entry.path), on_error, above, linked or entry.is_symlink())
