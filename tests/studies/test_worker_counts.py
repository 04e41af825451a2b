"""How many cores a device needs: from the curve, by its own numbers, and said to be worked out where it is.

.venv/bin/python -m pytest tests/studies/test_worker_counts.py
"""

import pytest

from benchmarks.common.config import Config
from benchmarks.common.listing import list_images
from scripts.results.intervals import Estimate
from scripts.studies.loaders import worker_counts
from scripts.studies.loaders.worker_counts import cores_for, needed_cores_text, sample


def curve(**rates) -> dict[int, Estimate]:
    return {int(number[1:]): Estimate(rate, None, None, 1, 3) for number, rate in rates.items()}


def test_cores_follow_the_curve_and_beyond_it_its_last_point():
    """Protects advice from hope: workers that share a memory or a cache do not add up, and the curve knows."""
    measured = curve(n1=1000.0, n2=1800.0, n4=2400.0)
    assert cores_for(measured, 500) == 0.5
    assert cores_for(measured, 1800) == 2
    assert cores_for(measured, 2100) == 3
    assert cores_for(measured, 6000) == pytest.approx(10)  # 600 a core, as with 4
    ten, three = needed_cores_text(measured, 6000), needed_cores_text(measured, 2100)
    assert "needs 10 cores" in ten and "beyond the 4 measured here" in ten
    assert "needs 3 cores" in three and "beyond" not in three


def test_advice_names_the_machine_and_what_else_would_do(monkeypatch):
    """Protects a purchase: the curve, the cores for a device, and for each other way its own, on this machine."""
    rates = {"ours": {1: 1000, 2: 1800}, "faster": {1: 2000}, "slower": {1: 500}}
    others = {"decoder faster": "faster", "decoder slower": "slower"}
    monkeypatch.setattr(worker_counts.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(worker_counts, "loaders_to_time", lambda config, temporary: ("ours", others))
    monkeypatch.setattr(
        worker_counts, "time_window", lambda name, config, cores, seconds: (rates[name][len(cores)], 1.0)
    )
    machine, one, two, needed, faster, slower = worker_counts.describe_needed_cores(Config(), 3600)
    assert machine.startswith(f"loading on {worker_counts.describe_machine()}, load average")
    assert one == "1 core: 1,000 images/s (n = 3 windows)" and two.startswith("2 cores: 1,800 images/s")
    assert needed.startswith("a device that trains 3,600 images/s needs 4 cores") and "beyond the 2" in needed
    assert faster.startswith("decoder faster: 2,000 images/s")
    assert faster.endswith("a core, 2.00 times as fast: 2 cores")
    assert slower.endswith("a core, 0.50 times as fast: 8 cores")


@pytest.mark.slow
def test_advice_of_real_loaders(tiny_data, tmp_path, monkeypatch):
    """Protects the command: real windows of every decoder that is here, and of a pack made for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setenv("PACKED", "")  # which is set meanwhile
    monkeypatch.setattr(worker_counts, "WINDOW_S", 0.05)
    lines = worker_counts.describe_needed_cores(Config(data=str(tiny_data), image_size=32, global_batch=8), 1e6)
    assert lines[-1].startswith("packed, full size (./bench data pack): ") and "decoder pillow" in "".join(lines)


def test_a_sample_is_links_to_images_of_train(tiny_data, tmp_path):
    data = sample(Config(data=str(tiny_data)), tmp_path)
    assert len(list_images(data / "train")) == 40 and len(list_images(data / "val")) == 1
    assert {path.resolve().parents[1] for path in (data / "train" / "images").iterdir()} == {tiny_data / "train"}


def test_the_users_packed_folder_is_not_written_to(tiny_data, tmp_path, monkeypatch):
    """Protects packed files of another data set, whose folder PACKED names: hours of work for ImageNet. Mutant: PACKED
    set after packing."""
    mine = tmp_path / "my packed files"
    mine.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setenv("PACKED", str(mine))
    worker_counts.loaders_to_time(Config(data=str(tiny_data), image_size=32, global_batch=8), tmp_path)
    assert not [*mine.iterdir()] and (tmp_path / "sample/packed/full/train.safetensors").exists()
