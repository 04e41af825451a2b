"""How far an import is: its bar, and whether the disk will take what is left."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.errors import UserError

CHECK_BYTES = 1 << 24  # of the source that all threads read between two looks at the disk
RESERVE_BYTES = 1 << 26  # that stay free: images end in blocks that they do not fill

FreeBytes = Callable[[Path], int]


def free_bytes_of(folder: Path) -> int:
    """Of the disk of a folder. Raises OSError."""
    return shutil.disk_usage(folder).free


class Cancelled(Exception):
    """Another thread has failed."""


class Progress:
    """How far all threads are, on the terminal; stops them where the disk will not take what is left."""

    def __init__(self, folder: Path, num_bytes: int, done_bytes: int, written_per_byte: float, free_bytes: FreeBytes):
        """num_bytes, done_bytes: of the source. written_per_byte: bytes written for a byte of the source; it holds
        until CHECK_BYTES are read, and then what was measured."""
        self._folder, self._free_bytes = folder, free_bytes
        self._left, self._read, self._written, self._unchecked = num_bytes - done_bytes, 0, 0, 0
        self._written_per_byte = written_per_byte
        self._lock, self._cancelled = threading.Lock(), False
        self._bar = tqdm(desc="importing", total=num_bytes, initial=done_bytes, unit="B", unit_scale=True, disable=None)

    def check_disk(self) -> None:
        """Raises UserError where less is free than is left to write."""
        free, needed = self._free_bytes(self._folder), self._left * self._written_per_byte + RESERVE_BYTES
        if free < needed:
            raise UserError(
                f"{needed / 1e9:.2f} GB are needed in {self._folder}, and {free / 1e9:.2f} GB are free; "
                "free space, and the same command goes on"
            )

    def add(self, num_read: int, num_written: int) -> None:
        """Count bytes of the source, and bytes that were written for them.

        Raises Cancelled after cancel(), and UserError as check_disk does.
        """
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._left -= num_read
            self._read += num_read
            self._written += num_written
            self._unchecked += num_read
            self._bar.update(num_read)
            if self._unchecked >= CHECK_BYTES:
                self._unchecked = 0
                self._written_per_byte = self._written / self._read
                self.check_disk()

    def cancel(self) -> None:
        """Makes every other thread stop at its next image."""
        with self._lock:
            self._cancelled = True

    def close(self) -> None:
        self._bar.close()
