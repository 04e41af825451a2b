"""Files that a user names by an option."""

from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically


def write_output(path: Path, text: str, option: str = "--output") -> None:
    """Whole or not at all. Raises UserError."""
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file: {option}") from None
