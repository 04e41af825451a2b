"""An index of a folder's images in the cache: it is used, or the folder is listed anew."""

import os
from pathlib import Path

from fuzz.edits import edited, edited_arrays
from hypothesis import strategies as st

from benchmarks.common.data.listing import index_path, list_images, scan_folder
from benchmarks.common.data.mapped_arrays import checksum, write_arrays
from benchmarks.common.system.errors import UserError

MOST_READ = 50


def seeds(folder: Path) -> list[bytes]:
    """The index of five images in two classes, as list_images would write it for many."""
    for name in ("a/1.JPEG", "a/2.JPEG", "b/3.JPEG", "b/inner/4.JPEG", "b/inner/5.JPEG"):
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    for place in (folder / "images", *(folder / "images").rglob("*")):
        os.utime(place, (1e9, 1e9))  # an index knows its folders by their times, also in the corpus
    metadata, arrays, _ = scan_folder(folder / "images")
    index = folder.with_name("an index")
    write_arrays(index, metadata | {"checksum": checksum(metadata, arrays)}, arrays)
    return [index.read_bytes()]


def inputs(found: list[bytes]) -> st.SearchStrategy[bytes]:
    return edited_arrays(found) | edited(found)


def attempt(content: bytes, folder: Path) -> str:
    index = index_path(folder / "images")
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_bytes(content)
    try:
        listing = list_images(folder / "images")
        some = range(min(len(listing), MOST_READ))
        paths = [listing.path(number) for number in some]
        targets = [listing.target(number) for number in some]
        names = [listing.names(number) for number in range(min(len(listing.classes), MOST_READ))]
        assert all(0 <= target < len(listing.classes) for target in targets), "a target without a class"
        assert len(listing.targets()) == len(listing)
    except UserError:
        return "refused"
    return f"listed {len(paths)} in {len(names)}"
