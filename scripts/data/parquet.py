"""Parquet files as Hugging Face's hub has them: a column `image` of {bytes, path}, and a column `label`.

ImageNet there has names such as n01440764_10026_n01440764.JPEG: the official name, and the class once more. Labels are
numbers, whose names are in the file's metadata.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from scripts.data.entries import WNID, Entry, class_of_label, file_name, image_entry
from scripts.data.labels import refuse_equal_names

NUM_ROWS = 64  # that are decoded together: some MB
BUFFER_BYTES = 1 << 20  # without it, all of a row group is read at once
WITH_CLASS = re.compile(r"(?P<name>.+)_(?P<wnid>n\d{8})(?P<ending>\.\w+)")


def read_parquet(path: Path, shard_name: str, classes: list[str]) -> Iterator[Entry]:
    """classes: of the labels; []: the file's metadata has them."""
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            columns = {file.schema.column(number).path for number in range(len(file.schema))}
            if not {"image.bytes", "image.path", "label"} <= columns:
                raise UserError(
                    f"{shard_name} has the columns {sorted(columns)}; `image` of bytes and path, and `label` are needed"
                )
            class_names = classes or label_names(file.schema_arrow.metadata or {}, shard_name)
            for batch in file.iter_batches(NUM_ROWS, columns=["image", "label"], use_threads=False):
                images, labels = batch.column("image"), batch.column("label").to_pylist()
                contents, paths = images.field("bytes"), images.field("path").to_pylist()
                for content, label, inner in zip(contents, labels, paths, strict=True):
                    buffer = content.as_buffer()
                    pixels = None if buffer is None else memoryview(buffer)
                    yield read_row(inner or f"{path.stem}_{row:06}.JPEG", label, pixels, class_names, shard_name)
                    row += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {error}; is the download whole?") from None


def read_row(inner: str, label: object, content: memoryview | None, classes: list[str], shard_name: str) -> Entry:
    """inner: the image's path in the file, whose class is taken unless the label is another wnid."""
    if content is None:
        return Entry(inner, refused="has no bytes: only its path is in the file")
    with_class, where = WITH_CLASS.fullmatch(file_name(inner, shard_name)), f"{shard_name}: {inner!r}"
    if not with_class:
        return image_entry(inner, class_of_label(label, classes, where), content, shard_name)
    wnid = with_class["wnid"]
    named = class_of_label(label, classes, where) if classes else wnid
    if WNID.fullmatch(named) and named != wnid:
        return Entry(inner, refused=f"is {wnid} by its path and {named} by its label; --classes has another order")
    return image_entry(with_class["name"] + with_class["ending"], wnid, content, shard_name)


def label_names(metadata: dict[bytes, bytes], shard_name: str) -> list[str]:
    """Of Hugging Face's metadata; [] without."""
    try:
        names = [str(name) for name in json.loads(metadata[b"huggingface"])["info"]["features"]["label"]["names"]]
    except (KeyError, TypeError, ValueError):
        return []
    refuse_equal_names(names, f"the metadata of {shard_name}")
    return names
