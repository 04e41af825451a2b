"""What an import knows of the images of a finished shard that it packs: rows of a JSON file in TO/.importing/tables."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.system.files import make_folder, read_regular_file, replace_atomically
from scripts.data_import.journal import shard_key
from scripts.data_import.source_images import SourceShard

LARGEST_BYTES = 1 << 30  # of a shard; one with a million images has 0.2 GB


def table_path(workshop: Path, shard: SourceShard) -> Path:
    return workshop / "tables" / f"{hashlib.sha256(shard_key(shard).encode()).hexdigest()}.json"


def write_table(workshop: Path, shard: SourceShard, rows: Sequence[Sequence[Any]]) -> None:
    """Before the shard is noted in the journal. Raises OSError."""
    path = table_path(workshop, shard)
    make_folder(path.parent)
    replace_atomically(path, lambda file: file.write(json.dumps(rows).encode()), durable=False)


def read_table(workshop: Path, shard: SourceShard) -> list[list[Any]]:
    """Raises OSError where it is gone, and ValueError or RecursionError where it is damaged."""
    return list(json.loads(read_regular_file(table_path(workshop, shard), LARGEST_BYTES)))
