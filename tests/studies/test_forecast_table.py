"""The report's forecast for GPUs: marked as such until a row of the set measures it.

.venv/bin/python -m pytest tests/studies/test_forecast_table.py
"""

import csv

import pytest
from result_sets import CPU
from support import recorded

from benchmarks.common.store.results import append_rows
from scripts.sets.result_set import load_set
from scripts.studies.roofline.forecast_table import FORECAST, FORECAST_HEADER, forecast_table

H200 = {"device": "cuda", "device_name": "NVIDIA H200", "arch": "resnet50", "image_size": 224, "precision": "bf16"}


def set_of(folder, images_per_s, **change):
    folder.mkdir()
    row = CPU | H200 | {"run_id": "single-1", "strategy": "single", "repeat": 1, "world_size": 1, "global_batch": 256}
    asked = {"compile": change.pop("compile", False), "loader": change.pop("loader", "synthetic")}
    row |= {"memory_format": "channels_last"} | change
    append_rows(folder, "runs", [recorded(folder, row, **asked)])
    windows = [{"run_id": "single-1", "window": n, "images": 2048, "seconds": 2048 / images_per_s} for n in range(3)]
    append_rows(folder, "windows", windows)
    return load_set(folder)


def measured(results, gpu="H200 SXM", precision="bf16") -> str:
    _, rows = forecast_table(results)
    (row,) = [row for row in rows if row[:2] == [gpu, precision]]
    return dict(zip(FORECAST_HEADER, row, strict=True))["measured here"]


def band() -> tuple[float, float]:
    with open(FORECAST, newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if (row["gpu"], row["precision"]) == ("H200 SXM", "bf16")]
    return float(row["forecast_low"]), float(row["forecast_high"])


def test_a_forecast_stays_one_until_it_is_measured(tmp_path):
    """Protects honesty: a set from a CPU measures none of these."""
    results = set_of(tmp_path / "cpu", 100, device="cpu", device_name="Test CPU")
    text, rows = forecast_table(results)
    assert "nothing here is measured" in text and {row[-1] for row in rows} == {"forecast only", "estimate only"}


@pytest.mark.parametrize(
    "change", [{"precision": "fp32"}, {"arch": "resnet18"}, {"image_size": 64}, {"global_batch": 128}]
)
def test_another_model_or_batch_measures_nothing(tmp_path, change):
    """Protects against a confirmation by what was not forecast."""
    assert measured(set_of(tmp_path / "other", 3000, **change)) == "forecast only"


@pytest.mark.parametrize("words", ["below the forecast", "as forecast", "above the forecast"])
def test_a_measured_row_confirms_or_refutes(tmp_path, words):
    """Protects the table's word on its own forecast, and that it stands in one row only."""
    low, high = band()
    speed = {"below the forecast": 0.9 * low, "as forecast": (low + high) / 2, "above the forecast": 1.1 * high}[words]
    results = set_of(tmp_path / "gpu", speed)
    assert measured(results).endswith(words) and "(single)" in measured(results)
    text, rows = forecast_table(results)
    assert f"2 of {len(rows)} rows are measured" in text  # of the roof's forecast, and of the estimate by reading


def test_several_gpus_count_as_one_each(tmp_path):
    """Protects the comparison with the roof of one GPU."""
    low, high = band()
    results = set_of(tmp_path / "two", low + high, world_size=2, global_batch=512)
    assert measured(results).endswith("as forecast")


@pytest.mark.parametrize("compiled, way", [(False, "bf16, eager"), (True, "bf16, compiled")])
def test_an_estimate_by_reading_is_held_against_the_first_measurement(tmp_path, compiled, way):
    """Protects the expectation from being forgotten, or confirmed by other work than it is of."""
    speed = 3600.0 if compiled else 3000.0
    results = set_of(tmp_path / "gpu", speed, compile=compiled)
    other = {"bf16, eager", "bf16, compiled"} - {way}
    assert measured(results, precision=way).endswith("as forecast")
    assert measured(results, precision=other.pop()) == "estimate only"
    assert measured(results, gpu="H100 SXM", precision=way) == "estimate only"
    fast = set_of(tmp_path / "fast", 5000.0, compile=compiled)
    assert measured(fast, precision=way).endswith("above the forecast")
    for change in ({"loader": "folder"}, {"memory_format": "contiguous"}, {"global_batch": 1024}):
        results = set_of(tmp_path / "-".join(change), speed, compile=compiled, **change)
        assert measured(results, precision=way) == "estimate only"
