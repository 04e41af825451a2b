"""The reader of plain headers gives what tarfile gives, of every format, and of archives that are damaged.

.venv/bin/python -m pytest tests/data_import/test_tar_members.py
"""

import random
import tarfile
from pathlib import Path

import pytest
from data_import.sources import add

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import open_regular_file
from scripts.data_import import tar_members
from scripts.data_import.tar_members import BLOCK_BYTES, Member, read_by_tarfile, read_members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
ODD = {
    "none": [],
    "long names": [(f"{'d' * 90}/{'n' * 60}.jpg", b"long", {})],
    "a name of 100 bytes": [("n" * 96 + ".jpg", b"100", {})],
    "a name of two bytes a letter": [("\u00e9.jpg", b"bytes", {})],
    "an old kind of file": [("old.jpg", b"old", {"type": tarfile.AREGTYPE})],
    "a size in pax": [("sized.jpg", b"sized", {"pax_headers": {"comment": "some"}})],
}


def write_tar(path: Path, format: int, odd: list, mtime: float) -> None:
    """Folders and files of many sizes, with odd members in the middle."""
    with tarfile.open(path, "w", format=format) as archive:
        add(archive, "a", b"", type=tarfile.DIRTYPE, mtime=mtime)
        for number, num_bytes in enumerate((0, 1, 511, 512, 513, 9000)):
            add(archive, f"a/{number}.cls", b"7", mtime=mtime)
            add(archive, f"a/{number}.jpg", bytes([number]) * num_bytes, mtime=mtime)
            for name, content, fields in odd if number == 3 else []:
                add(archive, name, content, mtime=mtime, **fields)


def members(read, path: Path, *places: int) -> list[Member] | str:
    """What is read; where it is refused, the word "refused"."""
    with open_regular_file(path) as file:
        try:
            return [*read(file, "a shard", *places, path.stat().st_size)]
        except UserError:
            return "refused"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("mtime", [1700000000, 1700000000.25])
def test_it_gives_what_tarfile_gives(tmp_path, monkeypatch, format, odd, mtime):
    """Protects names and places. Mutants: the end of a member not rounded up to a block; the prefix of a name left out;
    any record of pax skipped. And protects the speed: of plain members tarfile sees no header."""
    path = tmp_path / "a.tar"
    write_tar(path, FORMATS[format], ODD[odd], mtime)
    expected = members(read_by_tarfile, path, 0, 0)
    assert members(read_members, path, 0) == expected and len(expected) == 12 + len(ODD[odd])
    if odd == "none":
        handed_over = []
        monkeypatch.setattr(
            tar_members, "read_by_tarfile", lambda file, shard, place, *_: handed_over.append(place) or []
        )
        assert len(members(read_members, path, 0)) == 12
        assert path.read_bytes()[handed_over[0] :].strip(b"\0") == b"", "only the end is left to tarfile"


@pytest.mark.medium
def test_damaged_headers_are_read_or_refused_as_by_tarfile(tmp_path):
    """Protects from an archive that only one of the two takes: 600 times, one or two bytes of a header are changed, or
    the archive is cut off, too. Mutants: the checksum not compared; the kind; no look at the end."""
    generator, path = random.Random(0), tmp_path / "a.tar"
    seen = {"refused": 0, "read": 0}
    for format in FORMATS.values():
        write_tar(path, format, ODD["none"], 1700000000)
        whole = path.read_bytes()
        headers = [member.begin - BLOCK_BYTES for member in members(read_by_tarfile, path, 0, 0)]
        for _ in range(200):
            content, header = bytearray(whole), generator.choice(headers)
            place, other = (header + generator.randrange(BLOCK_BYTES) for _ in range(2))
            content[place] = (content[place] + 1) % 256
            if generator.random() < 0.8:  # the checksum still fits
                content[other] = (content[other] - 1) % 256
            if generator.random() < 0.1:
                del content[generator.randrange(len(content)) :]
            path.write_bytes(content)
            found = members(read_members, path, 0)
            assert found == members(read_by_tarfile, path, 0, 0), (header, place, other)
            seen["refused" if found == "refused" else "read"] += 1
    assert min(seen.values()) > 50, seen
