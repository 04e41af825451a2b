"""TFLOP/s and MFU: which peak, and of how many devices.

.venv/bin/python -m pytest tests/results/test_device_use.py
"""

import pytest
from result_sets import add_runs

from scripts.results.device_use import device_use, peak_tflops
from scripts.results.result_set import load_set


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "tf32", 494.7),
        ("Tesla V100-PCIE-16GB", "apex-O1", 112.0),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "fp32", None),
        ("Tesla T4", "bf16", None),
    ],
)
def test_the_peak_is_the_data_sheets_of_just_this_gpu(name, precision, peak):
    assert peak_tflops(name, precision, 8, {})[0] == peak


def test_mfu_counts_devices_and_threads(tmp_path):
    # 100 images/s x 1 GFLOP over 2 ranks of 1 thread; with 4 ranks on 2 cores the peak is that of 2.
    facts = {"num_cores": 2, "measured_peak": {"device_name": "Test CPU", "threads": 2, "tflops": {"fp32": 0.4}}}
    for name, row, mfu in (("two", {}, 0.25), ("four", {"world_size": 4}, 0.25), ("one", {"world_size": 1}, 0.5)):
        use = device_use(load_set(add_runs(tmp_path / name, "ddp", 100, noise=0, **row)).groups[0], facts)
        assert use.tflops == pytest.approx(0.1) and use.mfu == pytest.approx(mfu)
    gpu = {"device": "cuda", "device_name": "NVIDIA H200", "precision": "bf16", "world_size": 8}
    use = device_use(load_set(add_runs(tmp_path / "gpu", "ddp", 1e4, noise=0, **gpu)).groups[0], {})
    assert use.mfu == pytest.approx(1e4 * 1e9 / (8 * 989.4e12))
