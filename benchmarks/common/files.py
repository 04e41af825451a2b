"""Files that are whole or not there, locks between processes, and output that steers no terminal."""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

POLL_S = 0.01
# What steers a terminal or shows text in another order; \r only within a text, for a bar of progress begins or ends
# with it.
CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|(?<!^)\r(?!$)"
)


@contextlib.contextmanager
def hold_lock(path: Path, limit_s: float = 60.0) -> Iterator[int]:
    """Yields its descriptor. Raises OSError, after limit_s TimeoutError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    deadline = time.monotonic() + limit_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    why = f"another process has held {path} for more than {limit_s:g} s (fuser names it)"
                    raise TimeoutError(errno.ETIMEDOUT, why) from None
            time.sleep(POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def make_new_folder(first: Path) -> Path:
    """Of this name, or with -2, -3 and so on behind it where others have it."""
    path, number = first, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = first.with_name(f"{first.name}-{number}")


def replace_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A reader finds the old or the new content. Raises OSError, and what `write` raises."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text_atomically(path: Path, text: str) -> None:
    content = text.encode("utf-8", "surrogateescape")  # a file's name need not be UTF-8
    replace_atomically(path, lambda file: file.write(content))


def write_json(path: Path, value: object) -> None:
    write_text_atomically(path, json.dumps(value, indent=1) + "\n")


def without_controls(text: str) -> str:
    """? stands for what steers a terminal."""
    return CONTROLS.sub("?", text)


class _SafeStream:
    def __init__(self, stream: Any):
        self._stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be UTF-8

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(without_controls(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        """False for stdout, so that tyro's help has no colours."""
        return self._stream is not sys.__stdout__ and bool(self._stream.isatty())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Drop what cannot be written, as after `| head -1`, and print ? for control characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115
        if not isinstance(stream, _SafeStream):
            setattr(sys, name, _SafeStream(stream))
