"""imagenet-mini (scripts/data/mini.py) and the check of a folder (scripts/data/check.py), on real files.

python -m pytest tests/data/test_mini_and_check.py
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import ROOT, hear_sigint

from scripts.data import check, photographs
from scripts.data.check import Counts, check_image_folder
from scripts.data.mini import MakeDatasetOptions, make_dataset
from scripts.data.mini import main as make_mini
from scripts.shared.programs import exit_code

NUM_TRAIN, NUM_VAL = 3, 2
COMMAND = [
    sys.executable,
    "-m",
    "scripts.data.mini",
    "--num-train-per-class",
    str(NUM_TRAIN),
    "--num-val-per-class",
    str(NUM_VAL),
]


def options(output, **other):
    small = {"num_train_per_class": NUM_TRAIN, "num_val_per_class": NUM_VAL}
    return MakeDatasetOptions(output, **(small | other))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_line(capsys):
    """The one line on stderr that a user's mistake gives."""
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.endswith("\n"), error
    return error


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished folder that tests only read, and its manifest as it is on the disk."""
    folder = tmp_path_factory.mktemp("made") / "imagenet-mini"
    make_dataset(options(folder))
    return folder, json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def mini(made, tmp_path):
    """A finished folder of the test's own, in a folder of its own whose path has a space."""
    return Path(shutil.copytree(made[0], tmp_path / "a data set" / "imagenet-mini"))


@pytest.mark.medium
def test_layout_is_imagenets(made):
    """What every ImageNet script expects: class folders of JPEGs at ImageNet's sizes in pixels and bytes."""
    folder, manifest = made
    num_classes = len(manifest["photographs"])
    assert num_classes >= 10
    assert check_image_folder(folder) == Counts(num_classes, num_classes * NUM_TRAIN, num_classes * NUM_VAL)
    paths = sorted(folder.glob("*/*/*.JPEG"))
    assert [path.relative_to(folder).as_posix() for path in paths] == sorted(manifest["files"])
    sizes = set()
    for path in paths:
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            sizes.add(image.size)
    assert {(500, 375), (375, 500)} <= sizes <= set(photographs.SIZES_PX)
    assert 90e3 < np.mean([path.stat().st_size for path in paths]) < 130e3
    assert all(photograph["credit"] for photograph in manifest["photographs"].values())


def test_no_source_pixel_is_in_train_and_val(made):
    """Overlap would let a model remember its way to a high val accuracy."""
    _, manifest = made
    for name, photograph in manifest["photographs"].items():
        width, height = photograph["size_px"]
        seen = {}
        for part in ("train", "val"):
            seen[part] = np.zeros((height, width), dtype=bool)
            boxes = [
                tuple(record["box"]) for file, record in manifest["files"].items() if file.startswith(f"{part}/{name}/")
            ]
            assert len(set(boxes)) == len(boxes) > 1, "crops of one photograph must differ"
            for left, top, right, bottom in boxes:
                assert 0 <= left < right <= width and 0 <= top < bottom <= height
                seen[part][top:bottom, left:right] = True
        assert not (seen["train"] & seen["val"]).any(), name


@pytest.mark.medium
def test_seed_decides_every_byte(made, tmp_path):
    """The same seed gives the same folder on every machine; another seed or number gives what it should."""
    folder, manifest = made
    make_dataset(options(tmp_path / "again"))
    assert contents(tmp_path / "again") == contents(folder)
    fewer = make_dataset(options(tmp_path / "fewer", num_train_per_class=1, num_val_per_class=1))
    assert fewer["files"].items() <= manifest["files"].items(), "a file depends on its own name only"
    other = make_dataset(options(tmp_path / "other", seed=1, num_train_per_class=1, num_val_per_class=1))
    assert not {record["sha256"] for record in other["files"].values()} & {
        record["sha256"] for record in manifest["files"].values()
    }


def test_a_second_call_writes_nothing(mini, capsys):
    """The data set is made once; every later `make bench-*` calls this first."""

    def state():  # of the folder around it too, where a workshop would have been
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in mini.parent.rglob("*")} | {
            mini.parent: mini.parent.stat().st_mtime_ns
        }

    before = state()
    assert make_mini(options(mini, verify=True)) == 0
    assert state() == before
    assert "12 classes, 60 JPEGs" in capsys.readouterr().out


def remove(path):
    path.unlink()


def truncate(path):
    path.write_bytes(path.read_bytes()[:1000])


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "file", "verify", "message"),
    [
        (remove, "val/cat/cat_0001.JPEG", False, "val/cat/cat_0001.JPEG: No such file"),
        (truncate, "train/cat/cat_0000.JPEG", False, "train/cat/cat_0000.JPEG has another size"),
        (flip_a_byte, "train/cat/cat_0000.JPEG", True, "train/cat/cat_0000.JPEG has another content"),
    ],
)
def test_a_damaged_folder_is_reported_and_made_again(mini, capsys, damage, file, verify, message):
    before = contents(mini)
    damage(mini / file)
    assert make_mini(options(mini, verify=verify)) == 0
    assert message in capsys.readouterr().err
    assert contents(mini) == before
    assert os.listdir(mini.parent) == [mini.name]


@pytest.mark.parametrize("file", ["photo.png", "manifest.json"])
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_somebody_elses_is_never_touched(tmp_path, capsys, file, force):
    """--output on the wrong folder must not cost anybody their data, --force or not."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / file).write_text('{"made_by": "somebody else"}')
    before = contents(tmp_path)
    for output in (theirs, theirs / file):
        assert make_mini(options(output, force=force)) == 2
        assert "was not made by this script" in one_line(capsys)
    assert contents(tmp_path) == before


def test_files_added_to_the_folder_are_not_lost(mini, capsys):
    """An added image changes the data set, and deleting it could lose it: neither happens in silence."""
    added = mini / "train" / "cat" / "my cat.JPEG"
    added.write_bytes(b"mine")
    (mini / "train" / ".DS_Store").write_bytes(b"a file browser's")
    (mini / "val" / "cat" / "cat_0000.JPEG").unlink()
    assert make_mini(options(mini)) == 2
    assert "'train/cat/my cat.JPEG'" in one_line(capsys)
    assert added.read_bytes() == b"mine"
    assert make_mini(options(mini, force=True)) == 0
    assert not added.exists()
    (mini / "train" / ".DS_Store").write_bytes(b"a file browser's")
    assert make_mini(options(mini)) == 0


def test_other_settings_need_force(mini, capsys):
    """A run must not use, in silence, other data than was asked for, nor replace what other runs used."""
    before = contents(mini)
    assert make_mini(options(mini, seed=7)) == 2
    error = one_line(capsys)
    assert "'seed': 0" in error and "'seed': 7" in error and "--force" in error
    assert contents(mini) == before
    assert make_mini(options(mini, seed=7, force=True)) == 0
    assert json.loads((mini / "manifest.json").read_text())["settings"]["seed"] == 7


@pytest.mark.parametrize("bad", [{"seed": -1}, {"num_train_per_class": 0}, {"num_val_per_class": 0}])
def test_bad_numbers_are_refused(tmp_path, capsys, bad):
    assert make_mini(options(tmp_path / "new", **bad)) == 2
    assert "must be" in one_line(capsys)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert make_mini(options(tmp_path / "file" / "imagenet-mini")) == 1
    assert str(tmp_path / "file") in one_line(capsys)


def test_a_link_to_another_disk_stays_a_link(tmp_path, mini):
    link = tmp_path / "link"
    link.symlink_to(mini)
    (mini / "val" / "cat" / "cat_0000.JPEG").unlink()
    assert make_mini(options(link)) == 0
    assert link.is_symlink() and (mini / "val" / "cat" / "cat_0000.JPEG").is_file()


@pytest.mark.medium
def test_two_processes_at_once(made, tmp_path):
    """Two launchers started together: both end well, and the folder is whole, with nothing beside it."""
    output = tmp_path / "new" / "imagenet-mini"
    command = [*COMMAND, "--output", output]
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "is ready" in out
    assert contents(output) == contents(made[0])
    assert os.listdir(output.parent) == [output.name]


def test_one_damaged_image_loses_no_packed_images(mini):
    """They lie beside train/ and val/, and `./bench run` makes a damaged folder again by itself."""
    (mini / "packed/full").mkdir(parents=True)
    (mini / "packed/full/train.safetensors").write_bytes(b"packed")
    assert make_mini(options(mini)) == 0
    image = next(mini.glob("train/*/*"))
    whole = image.read_bytes()
    os.truncate(image, len(whole) - 1)
    assert make_mini(options(mini)) == 0
    assert (mini / "packed/full/train.safetensors").read_bytes() == b"packed" and image.read_bytes() == whole


def test_a_broken_manifest_is_one_line(mini, capsys):
    truncate(mini / "manifest.json")
    assert make_mini(options(mini)) == 2
    assert "manifest.json' is broken: remove" in one_line(capsys)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_nothing_half_made(tmp_path, number, code):
    long = [*COMMAND, "--num-train-per-class", "5000", "--output", tmp_path / "imagenet-mini"]
    process = subprocess.Popen(long, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=hear_sigint)
    deadline = time.monotonic() + 30
    while not any(tmp_path.rglob("*.JPEG")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []


def refusal(folder, capsys):
    assert exit_code(lambda: check.main(check.CheckDataOptions(str(folder)))) == 2
    return one_line(capsys)


def write(folder, *names):
    """Empty files: the check must not read any."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "data"
    write(folder, "train/a/1.JPEG", "train/a/2.JPEG", "train/b/1.JPEG", "val/a/1.JPEG", "val/b/1.JPEG")
    return folder


def test_counts_are_image_folders(tree):
    """A count that differs from what training reads would be a wrong val_samples."""
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert check.IMG_EXTENSIONS == IMG_EXTENSIONS
    write(tree, *(f"train/b/upper{extension.upper()}" for extension in IMG_EXTENSIONS))
    write(tree, *(f"val/a/lower{extension}" for extension in IMG_EXTENSIONS))
    write(tree, "train/b/deep/er/1.jpg", "train/a/notes.txt", "train/README.md", "val/a/folder.JPEG/1.png")
    counts = check_image_folder(tree)
    train, val = ImageFolder(tree / "train"), ImageFolder(tree / "val")
    assert counts == Counts(len(train.classes), len(train), len(val)) == Counts(2, 3 + 9 + 1, 2 + 9 + 1)
    assert counts.left_out == {"text": 2}


def test_what_would_not_be_read_is_refused_by_its_name(tree, capsys):
    write(tree, "train/loose.JPEG", "train/a/jpg", "train/a/b.jfif")
    error = refusal(tree, capsys)
    assert "what would not be read (3): 'a/b.jfif', 'a/jpg', 'loose.JPEG'" in error and "move the rest" in error


def test_val_may_lack_classes(tree, capsys):
    """A subset of val is a fair thing to evaluate on; classes are counted in train."""
    write(tree, "train/c/1.png")
    assert check_image_folder(str(tree)) == Counts(3, 4, 2)
    assert check.main(check.CheckDataOptions(str(tree))) == 0
    assert "3 classes, 4 train images, 2 val images" in capsys.readouterr().out


def test_refuses_what_is_no_data_set(tree, tmp_path, capsys):
    assert "does not exist" in refusal(tmp_path / "nowhere", capsys)
    assert "'' does not exist" in refusal("", capsys)
    assert "is not a folder" in refusal(tree / "train/a/1.JPEG", capsys)
    assert "train/ is not there" in refusal(tree / "train", capsys)
    os.rename(tree / "val", tree / "validation")
    assert "val/ is not there" in refusal(tree, capsys)
    write(tree, "val/ILSVRC2012_val_00000001.JPEG", "val/ILSVRC2012_val_00000002.JPEG")
    assert "what would not be read (2): 'ILSVRC2012_val_00000001.JPEG'" in refusal(tree, capsys)
    shutil.rmtree(tree / "val")
    (tree / "val").mkdir()
    error = refusal(tree, capsys)
    assert "val/ has no class folders" in error and "val/<class>/" in error


@pytest.mark.parametrize("part", ["train", "val"])
def test_refuses_an_empty_class(tree, part, capsys):
    write(tree, f"{part}/a_empty/notes.txt", f"{part}/c_empty/deep/notes.txt")
    (tree / part / "b_empty").mkdir()
    error = refusal(tree, capsys)
    assert f"{part}/ has class folders without an image: 'a_empty', 'b_empty', 'c_empty';" in error
    (tree / part / "d_empty").mkdir()
    assert "'c_empty' and 1 more;" in refusal(tree, capsys)


def test_classes_that_train_lacks_are_refused_with_plain_names(tree, capsys):
    """Their labels would be another class's. A name goes into a message of one line."""
    write(tree, *(f"val/new{index}\x1b[2J/1.JPEG" for index in range(5)))
    assert "val/ has classes that train/ lacks: 'new0\\x1b[2J', " in refusal(tree, capsys)


def test_links_are_followed_and_one_to_nowhere_is_refused(tree, tmp_path, capsys):
    """People link a shared ImageNet; a disk that is not mounted must be said before a run, not during it."""
    linked = tmp_path / "linked"
    (linked / "train").mkdir(parents=True)
    (linked / "val").symlink_to(tree / "val")
    for name in "ab":
        (linked / "train" / name).symlink_to(tree / "train" / name)
    assert check_image_folder(linked) == Counts(2, 3, 2)
    (tree / "train/a/3.JPEG").symlink_to(tmp_path / "gone.JPEG")
    assert "what would not be read (1): 'a/3.JPEG'" in refusal(linked, capsys)
