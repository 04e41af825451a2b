"""Parquet files as Hugging Face's hub has them: a column `image` of {bytes, path}, and a column `label`.

ImageNet there has names such as n01440764_10026_n01440764.JPEG: the official name, and the class once more. Labels are
numbers, whose names are in the file's metadata.
"""

import json
import re
from collections.abc import Iterator

from benchmarks.common.system.errors import UserError
from scripts.data_import.source_images import Archive, SourceImage, check_size, class_of_label, file_name, image_name

NUM_ROWS = 64  # that are decoded together: some MB
BUFFER_BYTES = 1 << 20  # without it, all of a row group is read at once
WITH_CLASS = re.compile(r"(?P<name>.+)_(?P<wnid>n\d{8})(?P<ending>\.\w+)")


def read_parquet(archive: Archive, classes: list[str]) -> Iterator[SourceImage]:
    """The images of one file, some rows at a time.

    classes: the names of the labels; []: those of the file's metadata. Raises UserError for a file that is damaged or
    has other columns, and as Archive.open does.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with archive.open() as opened:
            file = pyarrow.parquet.ParquetFile(opened, buffer_size=BUFFER_BYTES, pre_buffer=False)
            class_names = classes or label_names(file.schema_arrow.metadata or {})
            check_columns(file.schema_arrow, archive.name)
            row = 0
            for batch in file.iter_batches(NUM_ROWS, columns=["image", "label"], use_threads=False):
                images, labels = batch.column("image"), batch.column("label").to_pylist()
                contents, paths = images.field("bytes"), images.field("path").to_pylist()
                for position, (label, inner) in enumerate(zip(labels, paths, strict=True)):
                    content = contents[position].as_buffer()
                    if content is None:
                        raise UserError(f"{archive.name}: row {row} has no bytes, only the path {inner!r}")
                    check_size(content.size, str(inner), archive.name)
                    names = names_of(inner or f"{archive.path.stem}_{row:06}.JPEG", label, class_names, archive.name)
                    yield SourceImage(*names, memoryview(content))
                    row += 1
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        raise UserError(f"cannot read {archive.path}: {error}; is the download whole?") from None


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
    except (KeyError, TypeError, ValueError, RecursionError):
        return []


def check_columns(schema: object, shard_name: str) -> None:
    """Raises UserError where a pyarrow.Schema lacks the columns, or has them in other types."""
    import pyarrow

    assert isinstance(schema, pyarrow.Schema)
    types = pyarrow.types
    texts = (types.is_string, types.is_large_string)
    kinds = {
        "label": (types.is_integer, types.is_dictionary, *texts),
        "bytes": (types.is_binary, types.is_large_binary),
        "path": (types.is_null, *texts),
    }
    found = {field.name: field.type for field in schema if field.name == "label"}
    images = [field.type for field in schema if field.name == "image" and types.is_struct(field.type)]
    found |= {
        image.field(position).name: image.field(position).type
        for image in images
        for position in range(image.num_fields)
    }
    once = all(schema.names.count(name) == 1 for name in ("image", "label"))
    if not once or not all(name in found and any(is_kind(found[name]) for is_kind in kinds[name]) for name in kinds):
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)[:300]
        raise UserError(
            f"{shard_name} has the columns {columns!r}; `image` with bytes and path, and `label` with numbers or "
            "names, are needed"
        )
