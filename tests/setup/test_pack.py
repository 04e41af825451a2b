"""Packed files: the folder's images in the folder's order, whole or refused, after any kill.

.venv/bin/python -m pytest tests/setup/test_pack.py
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy
import pytest
import torch
from hard_images import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from support import NUM_TRAIN, NUM_VAL, ROOT, draw_images, environment, loaders, pixels, refusal, save, spoil

from benchmarks.common.config.config import PACK_KINDS, Config
from benchmarks.common.data import packed
from benchmarks.common.data.listing import cache_path
from benchmarks.common.data.mapped_arrays import DamagedFile, checksum, file_header, map_arrays
from benchmarks.common.data.packed import PackedSource, open_pack
from benchmarks.common.system import folders_of_others
from benchmarks.common.system.errors import UserError
from scripts.setup import chunks, pack
from scripts.setup.own_token import kept_token, own_token

pytestmark = pytest.mark.usefixtures("own_cache")


def make(data: Path, kind: str = "full") -> Path:
    """Pack, and the file of train/."""
    pack.main(pack.PackOptions(str(data), kind))
    return data / "packed" / kind / "train.safetensors"


def packed_loaders(data: Path, kind: str = "full", **changes):
    return loaders(data, loader="packed", pack=kind, **changes)


@pytest.mark.parametrize("kind", PACK_KINDS)
def test_a_packed_set_has_the_folders_images_in_the_folders_order(own_data, kind):
    """Protects comparisons: the same batches, and from full files the same pixels within 1 of 255, as Pillow has them.

    The images are 80 x 60, which 256 leaves as they are; only JPEGs change by being written again.
    """
    make(own_data, kind)
    for own, of_folder in zip(packed_loaders(own_data, kind), loaders(own_data, decoder="pillow"), strict=True):
        images, targets = pixels(own, epoch=1)
        expected, expected_targets = pixels(of_folder, epoch=1)
        assert torch.equal(targets, expected_targets) and own.classes == of_folder.classes
        difference = ((images - expected) * of_folder.std).abs()
        if kind == "jpeg256":
            assert difference.mean() < 10
        else:  # the two kernels round twice: 1 value of 4.9 million was 2 off
            assert difference.max() < 2.01 and (difference > 1.01).sum() <= 2 and difference.mean() < 0.1


@pytest.mark.parametrize("kind", PACK_KINDS)
def test_pixels_depend_on_neither_threads_nor_ranks_nor_where_a_run_resumed(own_data, kind):
    make(own_data, kind)
    images, targets = pixels(packed_loaders(own_data, kind)[0], epoch=1)
    by_workers, workers_targets = pixels(packed_loaders(own_data, kind, workers=2)[0], epoch=1)
    assert torch.equal(by_workers, images) and torch.equal(workers_targets, targets)
    shares = [pixels(packed_loaders(own_data, kind, rank=rank, world_size=2)[0], epoch=1)[0] for rank in range(2)]
    steps = zip(*(share.split(4) for share in shares), strict=True)
    assert torch.equal(torch.cat([part for step in steps for part in step]), images)
    assert torch.equal(pixels(packed_loaders(own_data, kind)[0], epoch=1, start_step=3)[0], images[3 * 8 :])


def test_large_images_are_shrunk_to_256_pixels_on_the_shorter_side(own_data):
    save(own_data / "train" / "left" / "a large one.JPEG", "L", (700, 400))
    for kind in PACK_KINDS:
        of_train = PackedSource(make(own_data, kind))
        shapes = {tuple(of_train._shapes[index].tolist()) for index in range(len(of_train))}
        assert shapes == {(60, 80), (400, 700) if kind == "full" else (256, 448)}


def test_a_safetensors_library_reads_it(own_data):
    """Protects `well-kept format`, where the library is here."""
    numpy_reader = pytest.importorskip("safetensors.numpy")
    assert len(numpy_reader.load_file(make(own_data))["targets"]) == NUM_TRAIN


def test_an_image_that_cannot_be_read_is_treated_as_in_the_folder(own_data, capsys):
    """Protects --skip-bad-files: the same images count as bad, and take the same place."""
    spoil(own_data / "train" / "top" / "top 6.JPEG", "truncated")
    make(own_data)
    assert "top 6.JPEG" in capsys.readouterr().out
    assert "was not readable when it was packed" in refusal(packed_loaders(own_data)[0])
    train, _ = packed_loaders(own_data, skip_bad_files=True)
    assert len(pixels(train)[0]) == NUM_TRAIN and train.num_bad_files == 1


# --- files that are not what they should be ---------------------------------------------------------------------


def problem(data: Path, kind: str = "full") -> str:
    with pytest.raises(UserError) as caught:
        packed_loaders(data, kind)
    return str(caught.value)


def test_no_packed_file_says_how_to_get_one(own_data):
    message = problem(own_data, "jpeg256")
    assert f"./bench data pack --pack jpeg256 --data '{own_data}'" in message and "No such file" in message


def test_a_file_cut_off_anywhere_is_refused(own_data):
    path = make(own_data)
    whole = path.read_bytes()
    for length in [0, 7, 8, 100, 5000, len(whole) // 2, len(whole) - 100, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "cannot be used" in problem(own_data), length
    path.write_bytes(whole + b"\0")
    assert "not what its header says" in problem(own_data)


def test_one_flipped_byte_anywhere_is_refused_or_changes_nothing(own_data):
    """Protects from training on a damaged disk's pixels: header, images and tables. Only filling may change."""
    path = make(own_data)
    whole, chance = path.read_bytes(), random.Random(0)
    room = 8 + int.from_bytes(whole[:8], "little")
    text = len(whole[8:room].rstrip())
    tables = len(whole) - NUM_TRAIN * 32
    places = [0, 3, 8, *(chance.randrange(8, 8 + text) for _ in range(40))]
    places += [chance.randrange(room, tables - 8) for _ in range(10)]
    places += [chance.randrange(tables, len(whole)) for _ in range(40)]
    for place in places:
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << chance.randrange(8)
        path.write_bytes(spoiled)
        with pytest.raises(UserError, match="cannot be used"):
            open_pack(Config(data=str(own_data), loader="packed"), "train")


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("ending", ["lock", "part", "journal"])
def test_nothing_is_written_through_a_link(own_data, ending, link):
    """Protects a user's file to which somebody has laid a link in the packed folder that others may write, or to which
    an unpacked data set has brought a hard link."""
    precious = own_data / "precious"
    precious.write_text("kept")
    path = own_data / "packed" / "full" / "train.safetensors"
    path.parent.mkdir(parents=True)
    link(precious, path.with_suffix(f".{ending}"))
    with contextlib.suppress(UserError):
        make(own_data)
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("place", ["packed", "packed/full", "disk/mine"])
def test_nothing_is_packed_where_another_user_could_put_a_link(own_data, monkeypatch, place):
    """Protects a user's files from whoever may rename the folder while it is written. Whole packs are checked and kept
    there all the same. Mutants: no look; the folder alone looked at."""
    (folder := own_data / place).mkdir(parents=True)
    if place == "disk/mine":
        monkeypatch.setenv("PACKED", str(folder))
        folder = folder.parent
    folder.chmod(0o777)
    with pytest.raises(UserError, match=r"^everybody may write to .*, or give another folder by PACKED"):
        make(own_data)
    assert not [*folder.rglob("train.*")]
    folder.chmod(0o755)
    pack.main(pack.PackOptions(str(own_data)))
    folder.chmod(0o777)
    pack.main(pack.PackOptions(str(own_data)))


@pytest.mark.parametrize("ending", ["journal", "part"])
@pytest.mark.parametrize("named", [False, True])
def test_a_pipe_among_the_packed_files_is_not_waited_for(own_data, monkeypatch, ending, named):
    """Protects from a data set with a pipe, for whose other end packing waited for ever. Mutants: no look at the files,
    which never returns; none where PACKED names the folder."""
    pipe = own_data / "packed" / "full" / f"train.{ending}"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    if named:
        monkeypatch.setenv("PACKED", str(own_data / "packed"))
    with pytest.raises(UserError, match=f"train.{ending} is not a regular file"):
        make(own_data)


@pytest.mark.parametrize("link", ["packed", "packed/full"])
def test_a_data_set_does_not_choose_where_packs_are_written(own_data, tmp_path, link):
    """Protects a user's files from a data set whose packed folder leads to them. Mutant: no look at the folders."""
    models = tmp_path / "models"
    (models / "full").mkdir(parents=True)
    for folder in (models, models / "full"):
        (folder / "train.safetensors").write_text("kept")
    (own_data / link).parent.mkdir(exist_ok=True)
    (own_data / link).symlink_to(models)
    with pytest.raises(UserError, match="is a link, and nothing is packed through one"):
        make(own_data)
    assert sorted(path.read_text() for path in models.rglob("*.safetensors")) == ["kept", "kept"]
    assert len([*models.rglob("*")]) == 3, "nothing is left there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_that_another_user_makes_after_the_look_is_not_packed_into(own_data, tmp_path, monkeypatch):
    """Protects from pixels that another user puts there: PACKED was to be made in /tmp, and they made it between the
    look and the making. Mutant: no second look."""
    make_folder = folders_of_others.make_folder

    def make_late(folder):
        folder.parent.mkdir()
        os.chown(folder.parent, 12345, -1)
        make_folder(folder)

    monkeypatch.setenv("PACKED", str(tmp_path / "packs"))
    monkeypatch.setattr(folders_of_others, "make_folder", make_late)
    with pytest.raises(UserError, match="belongs to another user"):
        make(own_data)
    assert not [*(tmp_path / "packs/full").iterdir()]


def shared_set(own_data: Path, tmp_path: Path, place: str) -> None:
    """Put a link of another user into the data set, to a photograph of the user's that lies elsewhere."""
    private = tmp_path / "private/n"
    private.mkdir(parents=True)
    save(private / "mine.JPEG", "L")
    image = sorted((own_data / "train" / "left").iterdir())[1]
    if place == "an image":
        image.unlink()
        link, target = image, private / "mine.JPEG"
    elif place == "a class":
        link, target = own_data / "train" / "zz", private
    elif place == "train":
        shutil.move(own_data / "train", tmp_path / "private")
        link, target = own_data / "train", tmp_path / "private/train"
    elif place == "behind a link of the user's":
        shutil.move(own_data / "train" / "left", tmp_path / "left")
        (own_data / "train" / "left").symlink_to(tmp_path / "left")
        link, target = tmp_path / "left" / "zz.JPEG", private / "mine.JPEG"
    else:
        moved = own_data / "store" / image.name
        moved.parent.mkdir()
        image.rename(moved)
        link, target = image, Path("../../store", image.name)
    link.symlink_to(target)
    os.chown(link, 12345, -1, follow_symlinks=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
@pytest.mark.parametrize("place", ["an image", "a class", "train", "behind a link of the user's", "inside"])
def test_no_private_image_is_packed_through_a_link_of_the_sets_author(own_data, tmp_path, monkeypatch, place):
    """Protects a private photograph: the author of a shared data set linked to it, and the packed file, which people
    pass on, had its pixels. Links to inside, own links and those of a trusted user stay fine. Mutants: no look; a look
    at the last link alone; at what a link leads to, not at the link; the sample alone is looked at."""
    shared_set(own_data, tmp_path, place)
    monkeypatch.setattr(pack, "NUM_SAMPLED_IMAGES", 1)
    if place != "inside":
        with pytest.raises(UserError, match=r"is a link of another user \(12345\), and leads out of") as caught:
            make(own_data)
        assert "\n" not in str(caught.value) and not (own_data / "packed/full/train.safetensors").exists()
        monkeypatch.setenv("TRUSTED_OWNERS", "12345")
    assert PackedSource(make(own_data)).metadata["part"] == "train"


def test_an_image_that_becomes_a_link_is_not_packed(own_data, tmp_path, monkeypatch):
    """Protects the same photograph where the author swaps it for the link's target meanwhile. Mutant: the links are
    looked at, and not what was opened."""
    image, opened = str(sorted((own_data / "train" / "left").iterdir())[1]), folders_of_others.open_regular_file
    save(tmp_path / "mine.JPEG", "L")
    swapped = {image: tmp_path / "mine.JPEG"}
    monkeypatch.setattr(folders_of_others, "open_regular_file", lambda path: opened(swapped.get(path, path)))
    with pytest.raises(UserError, match="leads elsewhere by now"):
        make(own_data)


NUM_BYTES = 32
numbers = st.sampled_from([0, 1, 2, 3, 4, 12, 24, 25, 33, -1, 255, 2**31 - 1, 2**62, 2**63 - 1, -(2**63)])
anything = st.one_of(numbers, st.sampled_from([2**70, 1.5, "3", None, True, [], {}, [12], float("nan")]))
CLASSES = ['["a", "a"]', "[]", "3", "{", "[1, 2]", "[" * 10_000, '{"a": 1, "b": 2}']


@st.composite
def hostile_pack(draw) -> bytes:
    """A packed file of two images, with right checksums, in which one thing is not what it should be, or nothing."""
    changed = draw(
        st.sampled_from(["nothing", "kind", "classes", "header", "places", *(tables := [*packed.TABLES][1:])])
    )
    rows = {"starts": [0, 12], "ends": [12, 24], "shapes": [2, 2, 1, 4], "targets": [0, 1]}
    rows["checksums"] = [zlib.crc32(bytes(12))] * 2
    if changed in tables:
        place, row = draw(st.integers(0, 1)), rows[changed]
        row[place : place + draw(st.integers(0, 2))] = [draw(numbers)] * draw(st.integers(0, 2))
        rows[changed] = row[: len(row) // 2 * 2] if changed == "shapes" else row
    arrays = {
        name: numpy.array(row, object).astype("<i8").astype(packed.TABLES[name][0]).reshape(-1, *packed.TABLES[name][1])
        for name, row in rows.items()
    }
    kind = draw(st.sampled_from(["full", "jpeg256"])) if changed != "kind" else "of no kind"
    metadata = {"what": packed.FILE_KIND, "version": packed.VERSION, "kind": kind, "part": "train"}
    metadata["fingerprint"] = f"2-{len(rows['ends'])}-1-f"
    metadata["classes"] = draw(st.sampled_from(CLASSES)) if changed == "classes" else '["a", "b"]'
    metadata["checksum"] = checksum(metadata, arrays)
    layout = {"images": (numpy.dtype("u1"), (NUM_BYTES,))} | {name: (a.dtype, a.shape) for name, a in arrays.items()}
    text = file_header(metadata, layout)
    if changed in ("header", "places"):
        entries = json.loads(text[8:])
        entry = entries[draw(st.sampled_from(sorted(entries)))]
        key = draw(st.sampled_from(sorted(entry)))
        if changed == "places" and "data_offsets" in entry:  # as large as before, in another place
            shift = draw(st.sampled_from([8, -8, 1, 2**62]))
            entry["data_offsets"] = [place + shift for place in entry["data_offsets"]]
        elif isinstance(entry[key], list) and entry[key] and draw(st.booleans()):
            entry[key][-1] = draw(anything)
        else:
            entry[key] = draw(anything)
        words = json.dumps(entries).encode()
        text = len(words).to_bytes(8, "little") + words
    return text + bytes(NUM_BYTES) + b"".join(array.tobytes() for array in arrays.values())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(hostile_pack())
def test_a_hostile_pack_is_one_line_or_images_within_itself(tmp_path_factory, content):
    """Protects from a file that somebody made: whatever its header and tables say, it is refused as Damaged, or each
    image is its own bytes. A checksum does not help: who writes the tables writes it.

    Mutants: `begin != expected_begin` of _place_arrays, and the bounds of `starts` and `ends`, left out.
    """
    path = tmp_path_factory.getbasetemp() / "hostile.safetensors"
    path.write_bytes(content)
    try:
        hostile = PackedSource(path)
    except DamagedFile as error:
        assert str(error) and "\n" not in str(error)
        return
    assert 1 <= len(hostile) <= 2
    for start, end in zip(hostile._starts, hostile._ends, strict=True):
        assert 0 <= start <= end <= NUM_BYTES
    for index in range(len(hostile)):
        assert hostile.classes[hostile.target(index)] in "ab" and hostile.target(index) >= 0
        try:
            stored = hostile.content(index)
        except ValueError as error:
            assert "when it was packed" in str(error) or "checksum" in str(error)
        else:
            assert (
                len(stored) <= NUM_BYTES
                if isinstance(stored, bytes)
                else stored.size <= NUM_BYTES and stored.shape[2] == 3
            )


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"starts": [-1, 12]}, "ends before it begins, or lies beyond"),
        ({"starts": [13, 12]}, "ends before it begins, or lies beyond"),
        ({"ends": [-1, 24]}, "ends before it begins, or lies beyond"),
        ({"ends": [12, 33]}, "ends before it begins, or lies beyond"),
        ({"starts": [0]}, "the same number of images"),
        ({"starts": [0, 0], "ends": [24, 24]}, "overlap"),
        ({"ends": [12, 25]}, "size of its shape"),  # 13 bytes are not 2 x 2 pixels, though 13 // 3 is 4
        ({"shapes": [[-2, -2], [1, 4]]}, "size of its shape"),
        ({"targets": [0, -1]}, "no class"),
        ({"targets": [0, 2]}, "no class"),
        ({"checksums": [0]}, "the same number of images"),
    ],
)
def test_each_bound_of_a_packs_tables_is_checked(changes, reason):
    """Protects from each of them alone. Mutants: each comparison of check_tables left out."""
    rows = {"starts": [0, 12], "ends": [12, 24], "shapes": [[2, 2], [1, 4]], "targets": [0, 1], "checksums": [0, 0]}
    right = {name: numpy.array(row, packed.TABLES[name][0]) for name, row in rows.items()}
    packed.check_tables(right, NUM_BYTES, 2, pixels=True)
    changed = {name: numpy.array(row, packed.TABLES[name][0]) for name, row in changes.items()}
    with pytest.raises(DamagedFile, match=reason):
        packed.check_tables(right | changed, NUM_BYTES, 2, pixels=True)


def with_fingerprint(path: Path, fingerprint: str) -> None:
    """The same file with another fingerprint, and the right checksum of its tables."""
    metadata, arrays = map_arrays(path)
    arrays = {name: numpy.array(array) for name, array in arrays.items()}
    tables = {name: array for name, array in arrays.items() if name != "images"}
    metadata["fingerprint"] = fingerprint
    metadata["checksum"] = checksum(metadata, tables)
    layout = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    path.write_bytes(file_header(metadata, layout) + b"".join(array.tobytes() for array in arrays.values()))


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (f"4-{NUM_TRAIN}-{NUM_VAL}", ""),
        (f"4-{NUM_TRAIN + 1}-{NUM_VAL}", f"has {NUM_TRAIN} images of 4 classes, and its fingerprint says"),
        (f"3-{NUM_TRAIN}-{NUM_VAL}", "its fingerprint says 40 of 3"),
        (f"5-{NUM_TRAIN}-{NUM_VAL}", "its fingerprint says 40 of 5"),
        (f"4-{NUM_TRAIN}-{NUM_VAL - 1}", f"has {NUM_VAL} images of 4 classes, and its fingerprint says"),
        ("ImageNet", "its fingerprint is none"),
        ("4-x-23", "its fingerprint is none"),
    ],
)
def test_a_pack_holds_as_many_images_as_its_fingerprint_says(own_data, counts, reason):
    """Protects the comparison of runs: the fingerprint names the data in a run's settings, so that a pack of a tenth
    of ImageNet could pass for ImageNet. Mutants: each comparison of check_counts left out."""
    path = make(own_data)
    for part in ("train", "val"):
        shutil.rmtree(own_data / part)  # else the fingerprint is compared with the folder's
        with_fingerprint(path.with_stem(part), f"{counts}-0123456789abcdef")
    if reason:
        assert reason in problem(own_data)
    else:
        packed_loaders(own_data)


def test_nobody_elses_lock_on_a_packed_file_delays_a_run(own_data, monkeypatch):
    """Protects the start of a run: whoever can read the file could hold its lock, and the plan waited for an hour
    without a word. Mutant: the lock on the packed file itself."""
    path, checks = make(own_data), []
    for note in path.parent.glob("*.checked"):
        note.unlink()
    monkeypatch.setattr(PackedSource, "check", lambda self, text: checks.append(self.path.name))
    monkeypatch.setattr("benchmarks.common.system.files.time.sleep", lambda seconds: pytest.fail("it waits"))
    with open(path, "rb") as held:  # as another user can
        fcntl.flock(held, fcntl.LOCK_EX)
        packed_loaders(own_data)
    assert checks == ["train.safetensors", "val.safetensors"]


def test_a_pack_that_is_no_file_is_refused_at_once(own_data):
    """Protects a run from a FIFO, which would be waited for, and from a header of 3 TB.
    Mutant: path.open, which never returns."""
    path = make(own_data)
    path.unlink()
    os.mkfifo(path)
    assert "it is not a regular file" in problem(own_data)
    path.unlink()
    with path.open("wb") as file:
        file.write((3 << 39).to_bytes(8, "little"))
        file.truncate(3 << 40)
    assert "it ends within its header" in problem(own_data)


def test_a_packed_file_that_is_truncated_while_workers_read_it_is_reported(own_data):
    """Protects the search for a bus error's cause: torch says that shared memory may be short, which it is not.
    Mutant: no sentence of its own for bus errors."""
    path = make(own_data)
    train, _ = packed_loaders(own_data, workers=1)
    os.truncate(path, 0)
    message = refusal(train)
    assert "bus error: a file that it had mapped was cut short" in message and "./bench data pack" in message


@pytest.mark.parametrize("kind", PACK_KINDS)
def test_hostile_images_are_packed_as_not_readable(tmp_path, kind):
    """Protects packing from an image that stops it: the image is left out, as it is in the folder."""
    for hostile, (content, _) in HOSTILE.items():
        (tmp_path / "bad.JPEG").write_bytes(content())
        assert chunks.encode_image(str(tmp_path / "bad.JPEG"), kind, str(tmp_path)) == (b"", (0, 0)), hostile
    with (tmp_path / "bad.JPEG").open("wb") as file:
        file.truncate(3 << 40)
    assert chunks.encode_image(str(tmp_path / "bad.JPEG"), kind, str(tmp_path)) == (b"", (0, 0))
    with pytest.raises(FileNotFoundError):
        chunks.encode_image(str(tmp_path / "gone.JPEG"), kind, str(tmp_path))


def test_make_pack_mends_a_damaged_file_and_keeps_a_whole_one(own_data, capsys):
    path = make(own_data)
    whole, written = path.read_bytes(), path.stat().st_mtime_ns
    make(own_data)
    assert path.stat().st_mtime_ns == written and f"is whole: {NUM_TRAIN} images" in capsys.readouterr().out
    path.write_bytes(whole[:30_000] + bytes([whole[30_000] ^ 1]) + whole[30_001:])
    make(own_data)
    assert "is written anew: image 0 does not have its checksum" in capsys.readouterr().out
    assert path.read_bytes() == whole


def test_a_packed_file_that_came_with_the_images_is_not_kept(own_data, tmp_path, monkeypatch):
    """Protects who packs a downloaded set to be sure of its pixels: a packed file of the right names, with other pixels
    and their checksums, was called whole. What was packed here is known by the user's cache. Mutants: no look at the
    cache; the note beside the file believed."""
    path = make(own_data)
    whole = path.read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache of another user"))
    with pytest.raises(UserError, match=r"nothing says that you packed it: .* remove it, and run ./bench data pack"):
        make(own_data)
    assert path.read_bytes() == whole
    shutil.rmtree(path.parent)
    make(own_data)
    make(own_data)
    assert path.read_bytes() == whole


def test_two_data_sets_do_not_overwrite_each_others_packs(own_data, tmp_path, monkeypatch):
    """Protects hours of packing where PACKED names one disk for all; beside its folder an old pack makes room."""
    shared, other = tmp_path / "a large disk", tmp_path / "other images"
    for part, num_images in (("train", 8), ("val", 4)):
        draw_images(other / part, num_images, seed=2)
    make(other)
    monkeypatch.setenv("PACKED", str(shared))
    make(own_data)
    written = (shared / "full" / "train.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"train.safetensors is of other images; give another folder by PACKED"):
        make(other)
    assert (shared / "full" / "train.safetensors").read_bytes() == written
    monkeypatch.delenv("PACKED")
    draw_images(other / "train", 12, seed=2)
    assert len(PackedSource(make(other))) == 12


def test_files_of_another_version_kind_or_folder_are_refused(own_data, monkeypatch):
    path = make(own_data)
    make(own_data, "256")
    other = path.parents[1] / "256" / path.name
    whole = path.read_bytes()
    shutil.copy(other, path)
    assert "it holds train 256, not train full" in problem(own_data)
    shutil.copy(path.with_name("val.safetensors"), path)
    assert "it holds val full, not train full" in problem(own_data)
    path.write_bytes(whole)
    with monkeypatch.context() as patch:
        patch.setattr(packed, "VERSION", "4")
        assert "it has version '3', and this code reads '4'" in problem(own_data)
    draw_images(own_data / "train", NUM_TRAIN + 4, seed=0)  # four more: the listing is older than the folder
    assert f"it is of other images than {own_data}" in problem(own_data)
    shutil.rmtree(own_data / "train")
    shutil.rmtree(own_data / "val")
    packed_loaders(own_data)  # the packed files alone are enough


def test_train_and_val_of_two_folders_are_refused_where_nothing_names_the_folder(own_data, tmp_path):
    """Protects accuracy from images of another set, such as a val/ that holds what was trained on."""
    path, other = make(own_data), tmp_path / "other images"
    for part, num_images in (("train", 8), ("val", 4)):
        draw_images(other / part, num_images, seed=2)
    shutil.copy(make(other).with_name("val.safetensors"), path.with_name("val.safetensors"))
    for part in ("train", "val"):
        shutil.rmtree(own_data / part)
    message = problem(own_data)
    assert (
        "val.safetensors cannot be used: it is of other images than train" in message
        and f"./bench data pack --pack full --data '{own_data}'" in message
    )


def test_each_image_is_checked_once_and_not_at_every_start(own_data, monkeypatch):
    """Protects both: a copied file is checked, and 700 GB are not read again for every run."""
    path, checks = make(own_data), []
    monkeypatch.setattr(PackedSource, "check", lambda self, text: checks.append(self.path.name))
    packed_loaders(own_data)
    assert checks == []  # ./bench data pack noted it
    shutil.copy(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)
    packed_loaders(own_data)
    packed_loaders(own_data)
    assert checks == [path.name]


def test_a_folder_that_no_run_would_take_is_not_packed(own_data):
    """Protects from a traceback, and from hours for nothing: a class without images, a class that train lacks."""
    shutil.rmtree(own_data / "val")
    (own_data / "val" / "left").mkdir(parents=True)
    with pytest.raises(UserError, match="val/ has class folders without an image: 'left'"):
        make(own_data)
    draw_images(own_data / "val", 4, seed=1)
    shutil.rmtree(own_data / "train" / "left")
    with pytest.raises(UserError, match="val/ has classes that train/ lacks: 'left'"):
        make(own_data)


RANK = """
import sys, time
from benchmarks.common.data import packed
from benchmarks.common.config.config import Config
def check(pack, text):
    print("checked", pack.path.stem, flush=True)
    time.sleep(0.5)
packed.PackedSource.check = check
packed.open_packs(Config(data=sys.argv[1], loader="packed"))
"""


@pytest.mark.medium
def test_one_rank_checks_and_the_others_wait_for_it(own_data):
    """Protects start-up: eight ranks do not each read 700 GB."""
    path = make(own_data)
    for note in path.parent.glob("*.checked"):
        note.unlink()
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(own_data)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert sorted("".join(rank.communicate(timeout=120)[0] for rank in ranks).split()) == ["checked"] * 2 + [
        "train",
        "val",
    ]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]


def test_nodes_with_copies_of_their_own_do_not_undo_each_others_notes(own_data, tmp_path, monkeypatch):
    """Protects a cluster whose nodes share their home: the same path, another file."""
    node, checks = make(own_data).parent, []
    other = Path(shutil.copytree(node, tmp_path / "another node"))
    monkeypatch.setattr(PackedSource, "check", lambda self, text: checks.append(self.path.name))
    for _ in range(2):
        packed_loaders(own_data)
        node.rename(tmp_path / "away")
        other.rename(node)
        packed_loaders(own_data)
        node.rename(other)
        (tmp_path / "away").rename(node)
    assert checks == ["train.safetensors", "val.safetensors"]


def test_packed_jpegs_are_checked_whenever_they_are_read(own_data):
    """Protects from what rots after it was written: the image is named, or skipped where that is asked for."""
    path = make(own_data, "jpeg256")
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # a disk tells nobody
    message = refusal(packed_loaders(own_data, "jpeg256")[0])
    assert f"of {path}" in message and "it does not have its checksum" in message
    train, _ = packed_loaders(own_data, "jpeg256", skip_bad_files=True)
    assert len(pixels(train)[0]) == NUM_TRAIN and train.num_bad_files == 1


# --- packing that does not come to its end ----------------------------------------------------------------------


def test_a_folder_that_changes_while_it_is_packed_is_refused(own_data, monkeypatch):
    encode = chunks.encode_image

    def meanwhile(path, *words):
        save(own_data / "train" / "left" / "late.JPEG", "L")
        return encode(path, *words)

    monkeypatch.setattr(chunks, "encode_image", meanwhile)
    with pytest.raises(UserError, match=r"train changed while it was packed; run ./bench data pack again"):
        make(own_data)
    assert not (own_data / "packed" / "full" / "train.safetensors").exists()
    monkeypatch.setattr(chunks, "encode_image", encode)
    assert len(PackedSource(make(own_data))) == NUM_TRAIN + 1


def test_a_folder_that_changes_is_not_packed_to_its_end(own_data, monkeypatch):
    """Protects hours: a change in the first is said in the next minute."""
    monkeypatch.setattr(pack, "CHECK_PERIOD_S", 0)
    monkeypatch.setattr(chunks, "MAX_CHUNK_IMAGES", 8)
    monkeypatch.setattr(pack, "estimate_bytes", lambda *_: save(own_data / "train" / "left" / "late.JPEG", "L") or 0)
    with pytest.raises(UserError, match=r"train changed while it was packed; run ./bench data pack again"):
        make(own_data)
    assert len((own_data / "packed" / "full" / "train.journal").read_text().splitlines()) <= 1 + 2


def test_a_file_that_is_written_again_meanwhile_is_refused(own_data, monkeypatch):
    """Protects from half a photograph: its folder's time stays what it was, and the fingerprint too."""
    encode = chunks.encode_image

    def meanwhile(path, *words):
        found = encode(path, *words)
        if path.endswith("left 17.JPEG"):
            time.sleep(0.02)  # file systems tell the time to 10 ms
            Path(path).write_bytes(Path(path).read_bytes())
        return found

    monkeypatch.setattr(chunks, "encode_image", meanwhile)
    with pytest.raises(UserError, match=r"left 17.JPEG' changed while it was packed; run ./bench data pack again"):
        make(own_data)
    monkeypatch.setattr(chunks, "encode_image", encode)
    assert len(PackedSource(make(own_data))) == NUM_TRAIN


def test_few_bytes_are_held_however_large_the_images(own_data, monkeypatch):
    """Protects memory: at 3 images of 14,400 bytes a chunk, no more than two chunks and what is begun."""
    journal, encode, held = own_data / "packed" / "full" / "train.journal", chunks.encode_image, []

    def counted(path, *words):
        if journal.exists() and "train" in path:
            begun.append(path)
            notes = journal.read_text().splitlines()[1:]
            held.append(len(begun) - sum(len(json.loads(note)[0]) for note in notes))
        return encode(path, *words)

    begun = []
    monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 30_000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(chunks, "encode_image", counted)
    make(own_data)
    assert len(begun) == NUM_TRAIN and max(held) <= 3 + 3 + 3


def test_a_disk_without_space_is_reported_before_anything_is_written(own_data, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 10))
    with pytest.raises(UserError, match=r"packing needs about 0.0 GB in .*; free space, give another folder by PACKED"):
        make(own_data)
    assert not any((own_data / "packed" / "full").iterdir())


SLOWLY = """
import os, sys, time
from scripts.setup import chunks, pack
from scripts.setup.own_token import kept_token, own_token
chunks.MAX_CHUNK_IMAGES, encode = 3, chunks.encode_image
chunks.encode_image = lambda path, *words: (time.sleep(float(sys.argv[2])), encode(path, *words))[1]
pack.main(pack.PackOptions(sys.argv[1]))
"""


@pytest.mark.medium
def test_packing_goes_on_after_kills(own_data):
    """Protects hours of packing: SIGKILL at any moment, then the file is the one of an undisturbed run."""
    expected = make(own_data).read_bytes()
    shutil.rmtree(own_data / "packed")
    chance, went_on = random.Random(1), 0
    folder = own_data / "packed" / "full"
    journal = folder / "train.journal"
    for kill in range(4):
        noted = len(journal.read_text().splitlines()) if journal.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", SLOWLY, str(own_data), "0.05"],
            cwd=ROOT,
            env=environment(PYTHONUNBUFFERED=1),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while process.poll() is None and not (journal.exists() and len(journal.read_text().splitlines()) > noted):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        if kill < 3:
            process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
        went_on += "going on after" in output
    assert process.returncode == 0 and went_on >= 2
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") == [
        "train.checked",
        "train.safetensors",
        "val.checked",
        "val.safetensors",
    ]
    assert (folder / "train.safetensors").read_bytes() == expected
    assert len(PackedSource(folder / "val.safetensors")) == NUM_VAL


@pytest.fixture
def stopped(own_data, monkeypatch, capsys) -> tuple[Path, bytes]:
    """The train.part of packing in chunks of 8 images that was stopped at its end, and the file that it would be."""
    monkeypatch.setattr(chunks, "MAX_CHUNK_IMAGES", 8)
    path = make(own_data)
    expected = path.read_bytes()
    path.unlink()
    stop_at_the_end(own_data, monkeypatch)
    capsys.readouterr()
    return path.with_suffix(".part"), expected


def stop_at_the_end(data: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pack, "write_tables", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        make(data)


def test_a_journal_that_was_cut_off_costs_a_chunk_and_no_more(own_data, stopped, monkeypatch, capsys):
    """Protects from a power cut: half a note counts as none, and hides none of those that follow it."""
    part, expected = stopped
    journal = part.with_suffix(".journal")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:3]) + lines[3][:-1])
    stop_at_the_end(own_data, monkeypatch)
    assert "going on after 16 images" in capsys.readouterr().out
    path = make(own_data)
    assert "going on after 40 images" in capsys.readouterr().out
    assert path.read_bytes() == expected


def test_a_part_that_lost_bytes_is_written_anew(own_data, stopped, capsys):
    """Protects from zeros in the place of images: the journal tells of more than the disk kept."""
    part, expected = stopped
    part.write_bytes(part.read_bytes()[:-5000])
    assert make(own_data).read_bytes() == expected
    assert "going on" not in capsys.readouterr().out


def test_a_part_that_changed_while_nobody_wrote_is_found_at_the_end(own_data, stopped):
    """Protects from wrong pixels under a note that says `checked`; the next run starts anew."""
    part, expected = stopped
    whole = part.read_bytes()
    part.write_bytes(whole[:-5000] + bytes([whole[-5000] ^ 1]) + whole[-4999:])
    with pytest.raises(UserError, match="is not as it was written: image 39 does not have its checksum"):
        make(own_data)
    assert not part.with_suffix(".safetensors").exists()
    assert make(own_data).read_bytes() == expected


def test_half_a_pack_of_other_images_is_not_overwritten(own_data, tmp_path, monkeypatch, capsys):
    """Protects hours of packing that was stopped, where PACKED names one disk for all data sets. Mutant: no look at
    the images of the journal."""
    shared, other = tmp_path / "a large disk", tmp_path / "other images"
    for split, num_images in (("train", 8), ("val", 4)):
        draw_images(other / split, num_images, seed=2)
    monkeypatch.setenv("PACKED", str(shared))
    stop_at_the_end(own_data, monkeypatch)
    part = shared / "full" / "train.part"
    half = part.read_bytes()
    with pytest.raises(UserError, match=r"train.part is half a pack of other images; give another folder by PACKED"):
        make(other)
    assert part.read_bytes() == half
    make(own_data)
    assert "going on after" in capsys.readouterr().out


def test_the_token_of_a_pack_is_the_users_alone_and_ends_with_the_pack(own_data, stopped, monkeypatch, capsys):
    """Protects who packs a downloaded set from a user of the machine who brings the token along, in a journal beside
    the images. Mutants: the token, or the journal, which has it, with the umask's mode; a token that others could read,
    or have linked, is kept; one that outlives its pack; one that is there after a kill at the end."""
    part, expected = stopped
    path, journal = part.with_suffix(".safetensors"), part.with_suffix(".journal")
    kept = cache_path(path, pack.PACKING)
    for file in (kept, journal):
        assert file.stat().st_mode & 0o777 == 0o600, file
    token = kept.read_text()
    kept.chmod(0o644)
    assert not kept_token(path, pack.PACKING)
    stop_at_the_end(own_data, monkeypatch)
    assert "going on" not in capsys.readouterr().out and kept.stat().st_mode & 0o777 == 0o600
    assert own_token(path, pack.PACKING) == kept.read_text() != token
    os.link(kept, kept.with_name("another name"))
    assert not kept_token(path, pack.PACKING)
    kept.with_name("another name").unlink()
    assert make(own_data).read_bytes() == expected
    assert "going on after" in capsys.readouterr().out and not kept.exists()
    own_token(path, pack.PACKING)
    make(own_data)
    assert not kept.exists()


def test_a_journal_that_came_with_the_images_is_not_gone_on_with(own_data, stopped, tmp_path, monkeypatch, capsys):
    """Protects who packs a downloaded set from pixels that lie beside it: a journal and a part, with the checksums of
    these, became a file that was packed here. Mutant: no token in the journal's first line."""
    part, expected = stopped
    journal, whole = part.with_suffix(".journal"), bytearray(part.read_bytes())
    part.with_name("val.safetensors").unlink()
    plan, first, *others = journal.read_text().splitlines()
    sizes, shapes, checksums = json.loads(first)
    begin = len(whole) - sum(sum(json.loads(line)[0]) for line in (first, *others))
    whole[begin] ^= 1
    checksums[0] = zlib.crc32(whole[begin : begin + sizes[0]])
    part.write_bytes(whole)
    journal.write_text("\n".join([plan, json.dumps([sizes, shapes, checksums]), *others, ""]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache of another user"))
    assert make(own_data).read_bytes() == expected
    assert "going on" not in capsys.readouterr().out
