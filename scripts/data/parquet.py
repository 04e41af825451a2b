"""Parquet files as Hugging Face's hub has them: a column `image` of {bytes, path}, and a column `label`.

ImageNet there has names such as n01440764_10026_n01440764.JPEG: the official name, and the class once more. Labels are
numbers, whose names are in the file's metadata.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from scripts.data.entries import NamedImage, class_of_label, file_name, named_image

NUM_ROWS = 64  # that are decoded together: some MB
BUFFER_BYTES = 1 << 20  # without it, all of a row group is read at once
WITH_CLASS = re.compile(r"(?P<name>.+)_(?P<wnid>n\d{8})(?P<ending>\.\w+)")


def read_parquet(path: Path, where: str, classes: list[str]) -> Iterator[NamedImage]:
    """classes: of the labels; []: the file's metadata has them."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            columns = {file.schema.column(place).path for place in range(len(file.schema))}
            if not {"image.bytes", "image.path", "label"} <= columns:
                raise UserError(
                    f"{where} has the columns {sorted(columns)}; `image` of bytes and path, and `label` are needed"
                )
            class_names = classes or label_names(file.schema_arrow.metadata or {})
            for batch in file.iter_batches(NUM_ROWS, columns=["image", "label"], use_threads=False):
                for row in batch.to_pylist():
                    inner = row["image"]["path"] or f"{path.stem}_{number:06}.JPEG"
                    yield read_row(inner, row["label"], row["image"]["bytes"] or b"", class_names, where)
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {error}; is the download whole?") from None


def read_row(inner: str, label: object, content: bytes, classes: list[str], where: str) -> NamedImage:
    """inner: the image's path in the file; where it names the class, the label is not read."""
    with_class = WITH_CLASS.fullmatch(file_name(inner, where))
    if with_class:
        return named_image(with_class["name"] + with_class["ending"], with_class["wnid"], content, where)
    return named_image(inner, class_of_label(label, classes, f"{where}: {inner!r}"), content, where)


def label_names(metadata: dict[bytes, bytes]) -> list[str]:
    """Of Hugging Face's metadata; [] without."""
    try:
        return [str(name) for name in json.loads(metadata[b"huggingface"])["info"]["features"]["label"]["names"]]
    except (KeyError, TypeError, ValueError):
        return []
