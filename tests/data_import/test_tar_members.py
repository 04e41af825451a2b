"""The files of a tar, of every format, and of archives that are damaged.

.venv/bin/python -m pytest tests/data_import/test_tar_members.py
"""

import random
import tarfile
from pathlib import Path

import pytest
from data_import.sources import add

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import open_regular_file
from scripts.data_import.tar_members import BLOCK_BYTES, Member, read_members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
ODD = {
    "none": [],
    "long names": [(f"{'d' * 90}/{'n' * 60}.jpg", b"long", {})],
    "a name of 100 bytes": [("n" * 96 + ".jpg", b"100", {})],
    "a name of two bytes a letter": [("\u00e9.jpg", b"bytes", {})],
    "an old kind of file": [("old.jpg", b"old", {"type": tarfile.AREGTYPE})],
    "a size in pax": [("sized.jpg", b"sized", {"pax_headers": {"comment": "some"}})],
}


def write_tar(path: Path, format: int, odd: list, mtime: float) -> dict[str, bytes]:
    """Folders and files of many sizes, with odd members in the middle. Returns the files."""
    files = {}
    with tarfile.open(path, "w", format=format) as archive:
        add(archive, "a", b"", type=tarfile.DIRTYPE, mtime=mtime)
        for number, num_bytes in enumerate((0, 1, 511, 512, 513, 9000)):
            plain = [(f"a/{number}.cls", b"7", {}), (f"a/{number}.jpg", bytes([number]) * num_bytes, {})]
            for name, content, fields in plain + (odd if number == 3 else []):
                add(archive, name, content, mtime=mtime, **fields)
                files[name] = content
    return files


def members(path: Path) -> list[Member] | str:
    """What is read; where it is refused, the word "refused"."""
    with open_regular_file(path) as file:
        try:
            return [*read_members(file, "a shard", 0, path.stat().st_size)]
        except UserError:
            return "refused"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("mtime", [1700000000, 1700000000.25])
def test_every_file_is_found_at_its_place(tmp_path, format, odd, mtime):
    """Protects names and places. Mutants: the place of the header; folders taken for files."""
    path = tmp_path / "a.tar"
    files = write_tar(path, FORMATS[format], ODD[odd], mtime)
    content = path.read_bytes()
    found = {member.name: content[member.begin : member.begin + member.size] for member in members(path)}
    assert found == files and len(files) == 12 + len(ODD[odd])


@pytest.mark.medium
def test_damaged_headers_are_read_or_refused(tmp_path):
    """Protects from a traceback, and from bytes outside of the archive: 600 times, one or two bytes of a header are
    changed, or the archive is cut off, too. Mutant: TarError not caught."""
    generator, path = random.Random(0), tmp_path / "a.tar"
    seen = {"refused": 0, "read": 0}
    for format in FORMATS.values():
        write_tar(path, format, ODD["none"], 1700000000)
        whole = path.read_bytes()
        headers = [member.begin - BLOCK_BYTES for member in members(path)]
        for _ in range(200):
            content, header = bytearray(whole), generator.choice(headers)
            place, other = (header + generator.randrange(BLOCK_BYTES) for _ in range(2))
            content[place] = (content[place] + 1) % 256
            if generator.random() < 0.8:  # the checksum still fits
                content[other] = (content[other] - 1) % 256
            if generator.random() < 0.1:
                del content[generator.randrange(len(content)) :]
            path.write_bytes(content)
            found = members(path)
            assert found == "refused" or all(member.begin + member.size <= len(content) for member in found)
            seen["refused" if found == "refused" else "read"] += 1
    assert min(seen.values()) > 50, seen
