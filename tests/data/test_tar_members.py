"""The files of a tar, of every format.

.venv/bin/python -m pytest tests/data/test_tar_members.py
"""

import tarfile
from pathlib import Path

import pytest
from data.sources import add

from scripts.data.tars import Member, read_members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
ODD = {
    "none": [],
    "long names": [(f"{'d' * 90}/{'n' * 60}.jpg", b"long", {})],
    "a name of 100 bytes": [("n" * 96 + ".jpg", b"100", {})],
    "a name of two bytes a letter": [("\u00e9.jpg", b"bytes", {})],
    "an old kind of file": [("old.jpg", b"old", {"type": tarfile.AREGTYPE})],
    "a size in pax": [("sized.jpg", b"sized", {"pax_headers": {"comment": "some"}})],
}


def write_tar(path: Path, format: int, odd: list) -> dict[str, bytes]:
    """Folders and files of many sizes, with odd members in the middle. Returns the files."""
    files = {}
    with tarfile.open(path, "w", format=format) as archive:
        add(archive, "a", b"", type=tarfile.DIRTYPE)
        for number, num_bytes in enumerate((0, 1, 511, 512, 513, 9000)):
            plain = [(f"a/{number}.cls", b"7", {}), (f"a/{number}.jpg", bytes([number]) * num_bytes, {})]
            for name, content, fields in plain + (odd if number == 3 else []):
                add(archive, name, content, **fields)
                files[name] = content
    return files


def members(path: Path) -> list[Member]:
    with open(path, "rb") as file:
        return [*read_members(file, "a shard")]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("odd", ODD)
def test_every_file_is_found_at_its_place(tmp_path, format, odd):
    path = tmp_path / "a.tar"
    files = write_tar(path, FORMATS[format], ODD[odd])
    content = path.read_bytes()
    found = {member.name: content[member.begin : member.begin + member.size] for member in members(path)}
    assert found == files and len(files) == 12 + len(ODD[odd])
