"""imagenet-mini (scripts/data/mini.py), on real files."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from support import ROOT, environment, hear_sigint

from benchmarks.common.errors import UserError
from scripts.data import mini
from scripts.data.check import Counts, check_image_folder

NUM_TRAIN, NUM_VAL = 3, 2


@pytest.fixture(scope="module", autouse=True)
def few_images():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mini, "NUM_IMAGES", {"train": NUM_TRAIN, "val": NUM_VAL})
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "imagenet-mini"
    mini.make_dataset(folder)
    return folder


def test_layout_is_imagenets(made):
    assert check_image_folder(made) == Counts(12, 12 * NUM_TRAIN, 12 * NUM_VAL)
    paths = sorted(made.glob("*/*/*.JPEG"))
    assert {Image.open(path).size for path in paths} <= set(mini.SIZES_PX)
    assert 90e3 < np.mean([path.stat().st_size for path in paths]) < 130e3


def test_no_source_pixel_is_in_train_and_val(made):
    manifest = json.loads((made / "manifest.json").read_text())
    for name, photograph in manifest["photographs"].items():
        width, height = Image.open(mini.photograph_folder() / photograph["file"]).size
        seen = {part: np.zeros((height, width), dtype=bool) for part in ("train", "val")}
        for file, (left, top, right, bottom) in manifest["boxes"].items():
            part, class_name, _ = file.split("/")
            if class_name == name:
                assert 0 <= left < right <= width and 0 <= top < bottom <= height
                seen[part][top:bottom, left:right] = True
        assert seen["train"].any() and seen["val"].any() and not (seen["train"] & seen["val"]).any(), name


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "photo.JPEG").write_bytes(b"mine")
    with pytest.raises(UserError, match="was not made by this script"):
        mini.make_dataset(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    mini.make_dataset(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["manifest.json", "photo.JPEG"]


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
