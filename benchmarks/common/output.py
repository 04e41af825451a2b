"""stdout and stderr of a program: it does not end because nobody reads them, and no text steers the terminal. Needs
no torch."""

import contextlib
import os
import re
import sys
from typing import Any

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """The text with ? for each control character but line ends and tabs: names and texts may be somebody else's."""
    return CONTROLS.sub("?", text)


class _SafeStream:
    """A text stream on which control characters are shown as ?, and which drops what cannot be written."""

    def __init__(self, stream: Any):
        self._stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be UTF-8

    def write(self, text: str) -> int:
        body = text.strip("\r")  # a bar of progress begins its line again
        with contextlib.suppress(OSError):
            self._stream.write(without_controls(body).join(text.split(body, 1)) if body else text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        """False for stdout, so that tyro prints its help without colours. Bars go to stderr."""
        return self._stream is not sys.__stdout__ and bool(self._stream.isatty())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Make this process go on where stdout or stderr cannot be written, as after `| head -1` or on a closed terminal,
    and print texts of others without the control characters in them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115
        if not isinstance(stream, _SafeStream):
            setattr(sys, name, _SafeStream(stream))
