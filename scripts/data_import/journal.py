"""What an import has finished, shard by shard, so that the same command goes on after any kill.

It begins with the kinds of source and target, the boot of the machine in which the import began, and the token of this
user's import (scripts/setup/own_token.py): a journal with another one may have come in an archive, and counts for
nothing. Each further line is a finished shard. A kill loses nothing that was written. A power cut may, as no image is
synced by itself: after a boot all is written again. A shard whose file has changed is read again.
"""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import open_no_follow, read_regular_file, replace_atomically
from scripts.data_import.source_images import SourceShard
from scripts.setup.own_token import PRIVATE

WORKSHOP = ".importing"  # the folder below TO with everything that is not finished
JOURNAL = "journal"
LARGEST_BYTES = 1 << 28


@dataclass(frozen=True)
class Total:
    """Of some images: how many, and their bytes."""

    num_images: int = 0
    num_bytes: int = 0

    def plus(self, other: "Total") -> "Total":
        return Total(self.num_images + other.num_images, self.num_bytes + other.num_bytes)


class Journal:
    """goes_on: whether an earlier run has begun this import."""

    def __init__(self, path: Path, kind: str, shards: list[SourceShard], boot: str, token: str):
        """kind: of source and target. boot: the machine's boot_id. token: of this user's import.

        Raises UserError where the journal is of an import of another kind, and OSError.
        """
        begun, finished = read_journal(path)
        self.goes_on = bool(begun)
        if begun and begun[0] != kind:
            raise UserError(
                f"{path.parent} is of an import from {begun[0]}, which was stopped; remove it, or give another folder"
            )
        if begun and begun[1] != boot:
            print("the machine has started again since this import was stopped; all images are written again")
            finished = {}
        elif begun and begun[2] != token:
            print("nothing says that you began this import: it may be of an archive; all images are written again")
            finished = {}
        known = {shard_key(shard) for shard in shards}
        self._totals = {key: total for key, total in finished.items() if key in known}
        lines = [json.dumps([kind, boot, token]), *(line_of(key, total) for key, total in self._totals.items())]
        text = "\n".join([*lines, ""])  # without a line that was cut off
        replace_atomically(path, lambda file: file.write(text.encode()), mode=PRIVATE)  # nobody else reads the token
        self._file = open(path, "a", encoding="utf-8", opener=open_no_follow)  # noqa: SIM115

    def total(self, shard: SourceShard) -> Total | None:
        """Of a shard that is finished; else None."""
        return self._totals.get(shard_key(shard))

    def add(self, shard: SourceShard, total: Total) -> None:
        self._totals[shard_key(shard)] = total
        self._file.write(line_of(shard_key(shard), total) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def shard_key(shard: SourceShard) -> str:
    return json.dumps([shard.name, shard.num_bytes, shard.time_ns])


def line_of(key: str, total: Total) -> str:
    return json.dumps([key, asdict(total)])


def read_journal(path: Path) -> tuple[list[str], dict[str, Total]]:
    """The first line, and the finished shards; nothing where there is no journal that can be read."""
    found: dict[str, Total] = {}
    try:
        lines = read_regular_file(path, LARGEST_BYTES).decode().split("\n")
        kind, boot, token = (*json.loads(lines[0]), "")[:3]  # an older version wrote no token
    except (OSError, ValueError, TypeError, RecursionError):
        return [], found
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        for line in lines[1:-1]:  # the last line may have been cut off
            key, total = json.loads(line)
            found[key] = Total(**total)
    return [kind, boot, token], found
