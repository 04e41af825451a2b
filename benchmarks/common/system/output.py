"""stdout and stderr of a program: it does not end because nobody reads them, and no text steers the terminal. Needs
no torch."""

import contextlib
import errno
import io
import os
import re
import sys
from typing import Any, TextIO

# What may steer a terminal, or show the letters of a line in another order: the control characters but for line ends
# and tabs, the marks of the direction of writing, and bytes of a name that is not UTF-8. Colours may hide what follows
# a name, and the suite prints none.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class _Descriptor(io.FileIO):
    """A file descriptor to write text to. What cannot be written is dropped."""

    def write(self, content: Any) -> int:  # bytes or whatever else has a buffer
        try:
            return super().write(content) or len(content)  # None: a terminal that does not block, and is full
        except OSError as error:
            if error.errno != errno.ENOSPC:  # a full disk may have space later; a reader or a terminal never comes back
                _point_to_null(self.fileno())
            return len(content)


class _HarmlessText(io.TextIOWrapper):
    """A stream on which names and texts of somebody else's files cannot steer the terminal."""

    def write(self, text: str) -> int:
        return super().write(without_steering(text))

    def isatty(self) -> bool:
        """False for stdout, so that tyro prints its help without colours, also to stderr. Bars go to stderr."""
        return self.fileno() != 1 and super().isatty()


def without_steering(text: str) -> str:
    """The text with ? for each letter that could steer a terminal. A carriage return may begin or end it: a bar of
    progress begins its line again."""
    body = text.strip("\r")
    if body.isprintable():
        return text
    begin = text.index(body)
    return text[:begin] + STEERING.sub("?", body) + text[begin + len(body) :]


def guard_output() -> None:
    """Make stdout and stderr of this process safe: for itself, and for the terminal.

    This process and its children go on where they cannot be written, and end with their exit codes: after `| head -1`,
    on a closed terminal, with stdout or stderr closed, or redirected to a full disk. What this process prints through
    sys.stdout and sys.stderr is as without_steering says, whichever file it comes from.
    """
    for descriptor in (0, 1, 2):  # the next file that is opened would get the number of a closed one
        try:
            os.fstat(descriptor)
        except OSError:
            _point_to_null(descriptor)
    sys.stdout, sys.stderr = _without_errors(sys.stdout, 1), _without_errors(sys.stderr, 2)


def _without_errors(before: TextIO | None, descriptor: int) -> TextIO:
    """A stream with the settings of `before` that raises no OSError. before: None where the stream was closed."""
    settings: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
    if before is not None and not isinstance(before, io.TextIOWrapper):
        return before  # a stream in memory, such as a test's
    if before is not None:
        with contextlib.suppress(OSError):
            before.flush()
        settings = {name: getattr(before, name) for name in ("encoding", "errors", "line_buffering", "write_through")}
    raw = _Descriptor(descriptor, "w", closefd=False)
    return _HarmlessText(io.BufferedWriter(raw), **settings)


def _point_to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    os.set_inheritable(descriptor, True)  # children need it too
