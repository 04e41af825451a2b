"""What an import has finished, shard by shard, so that the same command goes on after a kill.

The first line says the kinds of source and target, each further line is a finished shard. A shard whose file has
changed is read again.
"""

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from benchmarks.common.errors import UserError
from benchmarks.common.files import replace_atomically
from scripts.data.entries import SourceShard

WORKSHOP = ".importing"  # the folder below TO with everything that is not finished
JOURNAL = "journal"


class Total(NamedTuple):
    """Of some images: how many, and their bytes."""

    num_images: int = 0
    num_bytes: int = 0

    def plus(self, other: "Total") -> "Total":
        return Total(self.num_images + other.num_images, self.num_bytes + other.num_bytes)


class Journal:
    """goes_on: whether an earlier run has begun this import."""

    def __init__(self, path: Path, kind: str):
        """kind: of source and target. Raises UserError where the journal is of another kind of import, and OSError."""
        begun, self._totals = _read(path)
        self.goes_on = bool(begun)
        if begun not in ("", kind):
            raise UserError(
                f"{path.parent} is of an import from {begun}, which was stopped; remove it, or give another folder"
            )
        lines = [json.dumps(kind), *(json.dumps([key, *total]) for key, total in self._totals.items()), ""]
        replace_atomically(path, lambda file: file.write("\n".join(lines).encode()))  # without a line that was cut off
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def total(self, shard: SourceShard) -> Total | None:
        """Of a shard that is finished; else None."""
        return self._totals.get(shard_key(shard))

    def add(self, shard: SourceShard, total: Total) -> None:
        self._totals[shard_key(shard)] = total
        self._file.write(json.dumps([shard_key(shard), *total]) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def shard_key(shard: SourceShard) -> str:
    return json.dumps([shard.name, shard.num_bytes, shard.time_ns])


def _read(path: Path) -> tuple[str, dict[str, Total]]:
    """The first line, and the finished shards; nothing where there is no journal that can be read."""
    kind, found = "", {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        first, *lines = path.read_text(encoding="utf-8").split("\n")
        kind = str(json.loads(first))
        for line in lines[:-1]:  # the last line may have been cut off
            key, num_images, num_bytes = json.loads(line)
            found[key] = Total(num_images, num_bytes)
    return kind, found
