"""./bench study loaders: every loader measured, its ratios to what it stands beside, its files written.

.venv/bin/python -m pytest tests/studies/test_bench_loaders.py
"""

import os
import shutil
import sys
import threading
import time
from types import SimpleNamespace

import pandas
import pytest

from benchmarks.common.config.config import Config
from benchmarks.common.system.errors import UserError
from scripts.studies.loaders import loader_variants
from scripts.studies.loaders.cpu_costs import cpu_us
from scripts.studies.loaders.measure import PLAIN, LoadersOptions, main, table
from scripts.studies.loaders.timed_loaders import write_litdata


def test_ratios_are_to_the_plain_pipeline_and_to_the_better_bare_loop():
    """Protects the published "x of its bare loop": the faster of two loops, paired by rounds."""
    days = [1.0, 1.1, 0.9, 1.05, 1.0]  # a round slows all alike, so that pairs know the ratio well
    rates = {PLAIN: 100, "ours": 380, "threads": 400, "processes": 300}
    taken = {
        (name, 1): [(rate * day + number % 2, 1.0) for number, day in enumerate(days)] for name, rate in rates.items()
    }
    found = table(taken, {"ours": ("threads", "processes")}).set_index("loader")
    assert found.times_plain["ours"] == pytest.approx(3.8, abs=0.02)
    assert found.times_bare["ours"] == pytest.approx(0.95, abs=0.002)
    assert 0.94 < found.times_bare_low["ours"] < found.times_bare["ours"] < found.times_bare_high["ours"] < 0.96
    assert found.drop("ours").times_bare.isna().all() and (found.n == 5).all()


def test_what_is_left_out_says_why(monkeypatch):
    """Protects from installing again what is installed and does not load, as with an old glibc."""
    monkeypatch.setattr(loader_variants, "is_importable", lambda name: name in ("nvidia.nvimgcodec", "webdataset"))
    monkeypatch.setattr(loader_variants, "import_problem", lambda name: "it does not load (ImportError: GLIBC_2.99)")
    assert loader_variants.missing_libraries() == {
        "nvimgcodec": "it does not load (ImportError: GLIBC_2.99)",
        "torchcodec": "not installed; pip install torchcodec",
        "nvidia.dali": "not installed; pip install nvidia-dali-cuda130",
        "litdata": "not installed; pip install litdata",
    }


def test_images_that_would_fill_the_disk_are_refused_first(monkeypatch, tiny_data, tmp_path):
    """Protects from a night of copying into a /tmp that is too small, and from advice about PACKED, which is ours."""
    monkeypatch.setenv("PACKED", "")  # which `prepare_variants` sets
    monkeypatch.setattr(loader_variants, "missing_libraries", dict)
    size = sum(path.stat().st_size for path in tiny_data.rglob("*.JPEG"))
    free_bytes = [9 * size, 11 * size]
    monkeypatch.setattr(loader_variants.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes[0]))
    config = Config(data=str(tiny_data), image_size=32)
    for words in ("packed 256", "webdataset", "litdata"):
        with pytest.raises(UserError, match="GB are free; give DATA a folder of some thousand images") as reported:
            loader_variants.prepare_variants(config, tmp_path, [words])
        assert "PACKED" not in str(reported.value) and not [*tmp_path.iterdir()]
    assert loader_variants.prepare_variants(config, tmp_path, ["torchvision"])  # which is copied nowhere
    with pytest.raises(UserError, match="no loader here has nosuch in its name; there are: torchvision, Pillow; "):
        loader_variants.prepare_variants(config, tmp_path, ["nosuch"])
    del free_bytes[0]
    loader_variants.check_disk_space(config.data, tmp_path)


def test_litdata_empties_folders_of_the_study_only(monkeypatch, tiny_data, tmp_path):
    """Protects TMPDIR/data and TMPDIR/chunks, which litdata.optimize removes unless two variables name other folders.
    The stand-in does what litdata 0.2.76 does."""

    def optimize(*_, **__):
        for name, folder in (("DATA_OPTIMIZER_CACHE_FOLDER", "chunks"), ("DATA_OPTIMIZER_DATA_CACHE_FOLDER", "data")):
            shutil.rmtree(os.getenv(name, tmp_path / folder), ignore_errors=True)

    monkeypatch.setitem(sys.modules, "litdata", SimpleNamespace(optimize=optimize))
    kept = [tmp_path / folder / "a file of the user" for folder in ("chunks", "data", "own")]
    for path in kept:
        path.parent.mkdir()
        path.touch()
    monkeypatch.setenv("DATA_OPTIMIZER_CACHE_FOLDER", str(tmp_path / "own"))  # the user's would be emptied, too
    monkeypatch.setenv("DATA_OPTIMIZER_DATA_CACHE_FOLDER", "")  # so that it is put back after the test
    monkeypatch.delenv("DATA_OPTIMIZER_DATA_CACHE_FOLDER")
    write_litdata(Config(data=str(tiny_data)), tmp_path / "temporary" / "litdata")
    assert all(path.exists() for path in kept)


def test_cpu_time_has_that_of_threads_that_ended():
    """Protects the cost of packed's queue, whose threads end with their pass: it came out far below nothing.

    Mutant: the threads that are left, from /proc/self/task.
    """

    def work():
        while time.thread_time() < 0.05:
            pass

    began = cpu_us()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert cpu_us() - began >= 50_000


@pytest.mark.slow
def test_the_whole_command_measures_writes_and_draws(own_data, tmp_path, capsys):
    """Protects the command: real images, real processes, both files and the chart."""
    out = tmp_path / "out"
    options = LoadersOptions(str(own_data), out, image_size=32, rounds=2, window_s=0.05, turns=6, only="full Pillow")
    assert main(options) == 0
    rates = pandas.read_csv(out / "loaders.csv")
    ours = rates[rates.loader == "ours, packed full"]
    assert (ours.images_per_s > 0).all() and ours.times_bare.notna().all() and ours.times_plain.notna().all()
    costs = pandas.read_csv(out / "costs.csv").set_index("cause").us_per_image
    assert costs["queue"] > -0.5 * costs["bare loop"]  # without its threads' time it would be what the loop takes
    assert (out / "loaders.png").stat().st_size > 10_000 and "CPU microseconds an image" in capsys.readouterr().out
