"""imagenet-mini (scripts/data/mini.py), on real files."""

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
from support import ROOT, environment, hear_sigint

from benchmarks.common.errors import UserError
from scripts.data import photographs
from scripts.data.check import Counts, check_image_folder
from scripts.data.mini import make_dataset

NUM_TRAIN, NUM_VAL = 3, 2


@pytest.fixture(scope="module", autouse=True)
def few_images():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photographs, "NUM_IMAGES", {"train": NUM_TRAIN, "val": NUM_VAL})
        yield


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "imagenet-mini"
    return folder, make_dataset(folder)


@pytest.fixture
def mini(made, tmp_path):
    return Path(shutil.copytree(made[0], tmp_path / "a data set" / "imagenet-mini"))


def test_layout_is_imagenets(made):
    folder, manifest = made
    assert check_image_folder(folder) == Counts(12, 12 * NUM_TRAIN, 12 * NUM_VAL)
    paths = sorted(folder.glob("*/*/*.JPEG"))
    assert [path.relative_to(folder).as_posix() for path in paths] == sorted(manifest["files"])
    assert {Image.open(path).size for path in paths} <= set(photographs.SIZES_PX)
    assert 90e3 < np.mean([path.stat().st_size for path in paths]) < 130e3


def test_no_source_pixel_is_in_train_and_val(made):
    _, manifest = made
    for name, photograph in manifest["photographs"].items():
        width, height = Image.open(photographs.photograph_folder() / photograph["file"]).size
        seen = {part: np.zeros((height, width), dtype=bool) for part in ("train", "val")}
        for file, record in manifest["files"].items():
            part, class_name, _ = file.split("/")
            if class_name == name:
                left, top, right, bottom = record["box"]
                assert 0 <= left < right <= width and 0 <= top < bottom <= height
                seen[part][top:bottom, left:right] = True
        assert seen["train"].any() and seen["val"].any() and not (seen["train"] & seen["val"]).any(), name


def test_a_folder_that_is_there_is_checked_and_left_alone(mini):
    (mini / "packed").mkdir()
    before = contents(mini)
    make_dataset(mini)
    assert contents(mini) == before
    image = mini / "train/cat/cat_0000.JPEG"
    os.truncate(image, 1000)
    with pytest.raises(UserError, match=r"train/cat/cat_0000.JPEG is missing or has another size"):
        make_dataset(mini)
    manifest = json.loads((mini / "manifest.json").read_text())
    (mini / "manifest.json").write_text(json.dumps(manifest | {"made_by": "somebody else"}))
    with pytest.raises(UserError, match="was not made by this script"):
        make_dataset(mini)


@pytest.mark.launches
def test_a_signal_leaves_nothing_half_made(tmp_path):
    command = [sys.executable, ROOT / "bench", "data", "make", "--output", tmp_path / "imagenet-mini"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(SETUP="no"), stderr=subprocess.PIPE, text=True, preexec_fn=hear_sigint
    )
    deadline = time.monotonic() + 60
    while not any(tmp_path.rglob("*.JPEG")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143 and "Traceback" not in err and os.listdir(tmp_path) == []
