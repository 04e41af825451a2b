"""./bench study loaders: every loader measured, its ratios to what it stands beside, its files written.

.venv/bin/python -m pytest tests/studies/test_bench_loaders.py
"""

from types import SimpleNamespace

import pandas
import pytest

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from scripts.studies.loaders import loader_variants
from scripts.studies.loaders.measure import PLAIN, LoadersOptions, main, table


def test_ratios_are_to_the_plain_pipeline():
    """Paired by rounds: a round slows all alike, so that pairs know the ratio well."""
    days = [1.0, 1.1, 0.9, 1.05, 1.0]
    taken = {
        (name, 1): [(rate * day + number % 2, 1.0) for number, day in enumerate(days)]
        for name, rate in {PLAIN: 100, "ours": 380}.items()
    }
    found = table(taken).set_index("loader")
    assert found.times_plain["ours"] == pytest.approx(3.8, abs=0.02) and (found.n == 5).all()
    assert found.times_low["ours"] < found.times_plain["ours"] < found.times_high["ours"]


def test_what_is_left_out_says_why(monkeypatch):
    """Protects from installing again what is installed and does not load, as with an old glibc."""
    monkeypatch.setattr(loader_variants, "is_importable", lambda name: name in ("nvidia.nvimgcodec",))
    monkeypatch.setattr(loader_variants, "import_problem", lambda name: "it does not load (ImportError: GLIBC_2.99)")
    assert loader_variants.missing_libraries() == {
        "nvimgcodec": "it does not load (ImportError: GLIBC_2.99)",
        "torchcodec": "not installed; pip install torchcodec",
    }


def test_images_that_would_fill_the_disk_are_refused_first(monkeypatch, tiny_data, tmp_path):
    """Protects from a night of copying into a /tmp that is too small, and from advice about PACKED, which is ours."""
    monkeypatch.setenv("PACKED", "")  # which `prepare_variants` sets
    monkeypatch.setattr(loader_variants, "missing_libraries", dict)
    size = sum(path.stat().st_size for path in tiny_data.rglob("*.JPEG"))
    free_bytes = [7 * size, 9 * size]
    monkeypatch.setattr(loader_variants.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes[0]))
    config = Config(data=str(tiny_data), image_size=32)
    with pytest.raises(UserError, match="GB are free; give --data a folder of some thousand images"):
        loader_variants.prepare_variants(config, tmp_path, ["packed 256"])
    assert not [*tmp_path.iterdir()]
    assert loader_variants.prepare_variants(config, tmp_path, ["torchvision"])  # which is copied nowhere
    with pytest.raises(UserError, match="no loader here has nosuch in its name; there are: torchvision, Pillow; "):
        loader_variants.prepare_variants(config, tmp_path, ["nosuch"])
    del free_bytes[0]
    loader_variants.check_disk_space(config.data, tmp_path)


@pytest.mark.slow
def test_the_whole_command_measures_writes_and_draws(own_data, tmp_path, capsys):
    """Protects the command: real images, real processes, both files and the chart."""
    out = tmp_path / "out"
    options = LoadersOptions(str(own_data), out, image_size=32, rounds=2, window_s=0.05, only="full Pillow")
    assert main(options) == 0
    rates = pandas.read_csv(out / "loaders.csv")
    ours = rates[rates.loader == "ours, packed full"]
    assert (ours.images_per_s > 0).all() and ours.times_plain.notna().all()
    assert (out / "loaders.png").stat().st_size > 10_000 and "ours, packed full" in capsys.readouterr().out
