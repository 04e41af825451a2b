"""Parquet files as Hugging Face's hub has them: a column `image` of {bytes, path}, and a column `label`.

ImageNet there has names such as n01440764_10026_n01440764.JPEG: the official name, and the class once more. Labels are
numbers, whose names are in the file's metadata.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common.errors import UserError
from scripts.data.entries import SourceImage, class_of_label, file_name, image_name

if TYPE_CHECKING:
    import pyarrow

NUM_ROWS = 64  # that are decoded together: some MB
BUFFER_BYTES = 1 << 20  # without it, all of a row group is read at once
WITH_CLASS = re.compile(r"(?P<name>.+)_(?P<wnid>n\d{8})(?P<ending>\.\w+)")


def read_parquet(path: Path, shard_name: str, classes: list[str]) -> Iterator[SourceImage]:
    """classes: names of the labels; []: those of the file's metadata. Raises UserError for a file that is damaged or
    has other columns."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            class_names = classes or label_names(file.schema_arrow.metadata or {})
            check_columns(file.schema_arrow, shard_name)
            row = 0
            for batch in file.iter_batches(NUM_ROWS, columns=["image", "label"], use_threads=False):
                images, labels = batch.column("image"), batch.column("label").to_pylist()
                contents, paths = images.field("bytes"), images.field("path").to_pylist()
                for position, (label, inner) in enumerate(zip(labels, paths, strict=True)):
                    content = contents[position].as_buffer()
                    if content is None:
                        raise UserError(f"{shard_name}: row {row} has no bytes, only the path {inner!r}")
                    names = names_of(inner or f"{path.stem}_{row:06}.JPEG", label, class_names, shard_name)
                    yield SourceImage(*names, memoryview(content))
                    row += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {error}; is the download whole?") from None


def names_of(inner: str, label: object, classes: list[str], shard_name: str) -> tuple[str, str]:
    """(class, name) of an image, whose path in the file is `inner`."""
    name = file_name(inner, shard_name)
    if with_class := WITH_CLASS.fullmatch(name):
        return with_class["wnid"], image_name(with_class["name"] + with_class["ending"], shard_name)
    return class_of_label(label, classes, shard_name), image_name(name, shard_name)


def label_names(metadata: dict[bytes, bytes]) -> list[str]:
    """The names of the labels, from the metadata of Hugging Face's library of data sets; [] where there are none."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return [str(name) for name in features["label"]["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def check_columns(schema: "pyarrow.Schema", shard_name: str) -> None:
    """Raises UserError where the columns are missing."""
    types = {field.name: field.type for field in schema}
    inner = {field.name for field in types["image"]} if str(types.get("image", "")).startswith("struct") else {*()}
    if not {"bytes", "path"} <= inner or "label" not in types:
        columns = ", ".join(f"{name} ({type})" for name, type in types.items())[:300]
        raise UserError(
            f"{shard_name} has the columns {columns!r}; `image` with bytes and path, and `label` with numbers or "
            "names, are needed"
        )
