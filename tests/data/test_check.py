"""./bench data check: what a folder holds, counted as training reads it, or refused in one line."""

import os
import shutil

import pytest

from benchmarks.common.listing import IMG_EXTENSIONS
from scripts.data import check
from scripts.data.check import CheckDataOptions, Counts, check_image_folder
from scripts.shared.programs import exit_code


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "data"
    write(folder, "train/a/1.JPEG", "train/a/2.JPEG", "train/b/1.JPEG", "val/a/1.JPEG", "val/b/1.JPEG")
    return folder


def refusal(folder, capsys):
    """The one line of a user's mistake."""
    assert exit_code(lambda: check.main(CheckDataOptions(str(folder)))) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_counts_are_image_folders(tree, capsys):
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import IMG_EXTENSIONS as EXPECTED

    assert IMG_EXTENSIONS == EXPECTED
    write(tree, *(f"train/b/upper{extension.upper()}" for extension in IMG_EXTENSIONS))
    write(tree, "train/b/deep/er/1.jpg", "train/a/notes.txt", "train/README.md", "val/a/folder.JPEG/1.png")
    write(tree, "elsewhere/1.png", "train/.ipynb_checkpoints/x.JPEG")
    (tree / "train" / "c").symlink_to(tree / "elsewhere")
    train, val = ImageFolder(tree / "train", allow_empty=True), ImageFolder(tree / "val")
    assert check_image_folder(tree) == Counts(3, 3 + 9 + 2, 3)
    assert (len(train), len(val)) == (3 + 9 + 2 + 1, 3)  # it reads hidden folders
    assert check.main(CheckDataOptions(str(tree))) == 0
    assert "3 classes, 14 train images, 3 val images" in capsys.readouterr().out


def test_what_would_not_be_read_is_refused_by_its_name(tree, capsys):
    write(tree, "train/loose.JPEG", "train/a/jpg")
    (tree / "train/a/3.JPEG").symlink_to("/nonexistent/disk/3.JPEG")
    error = refusal(tree, capsys)
    assert "what would not be read (3): 'a/3.JPEG', 'a/jpg', 'loose.JPEG'" in error


def test_empty_files_are_refused(tree, capsys):
    (tree / "val/b/1.JPEG").write_bytes(b"")
    assert "1 images have no bytes" in (error := refusal(tree, capsys)) and "val/b/1.JPEG" in error


def test_what_is_no_data_set_is_refused(tree, tmp_path, capsys):
    assert "does not exist" in refusal(tmp_path / "nowhere", capsys)
    os.rename(tree / "val", tree / "validation")
    assert "val/ is not there" in refusal(tree, capsys)
    write(tree, "val/new\x1b[2J/1.JPEG")
    assert "val/ has classes that train/ lacks: 'new\\x1b[2J'" in refusal(tree, capsys)
    (tree / "train" / "empty").mkdir()
    assert "train/ has class folders without an image: 'empty'" in refusal(tree, capsys)
    shutil.rmtree(tree / "val")
    (tree / "val").mkdir()
    (tree / "train" / "empty").rmdir()
    error = refusal(tree, capsys)
    assert "val/ has no class folders" in error and "./bench data import FROM TO" in error
