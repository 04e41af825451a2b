"""stdout and stderr of a program that must not end because nobody reads them. Needs no torch."""

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO


class _Descriptor(io.FileIO):
    """A file descriptor to write text to. What cannot be written is dropped."""

    def write(self, content: Any) -> int:  # bytes or whatever else has a buffer
        try:
            return super().write(content) or len(content)  # None: a terminal that does not block, and is full
        except OSError as error:
            if error.errno != errno.ENOSPC:  # a full disk may have space later; a reader or a terminal never comes back
                _point_to_null(self.fileno())
            return len(content)


def ignore_output_errors() -> None:
    """Let this process and its children go on where stdout or stderr cannot be written, and end with their exit codes.

    Such as after `| head -1`, on a closed terminal, with stdout or stderr closed, or redirected to a full disk.
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
    return io.TextIOWrapper(io.BufferedWriter(raw), **settings)


def _point_to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    os.set_inheritable(descriptor, True)  # children need it too
