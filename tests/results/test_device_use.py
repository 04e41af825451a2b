"""TFLOP/s and MFU: which peak, and of how many devices.

.venv/bin/python -m pytest tests/results/test_device_use.py
"""

import pytest
from result_sets import add_runs

from scripts.results import device_use as roofline
from scripts.results.result_set import load_set


def test_published_peaks_and_what_they_are_not():
    # Dense figures of NVIDIA's data sheets; a part of a GPU, or another GPU, is not the GPU of the table.
    assert roofline.peak_tflops("NVIDIA H200", "tf32", 8, {})[0] == 494.7
    assert roofline.peak_tflops("Tesla V100-PCIE-16GB", "apex-O1", 8, {})[0] == 112.0
    assert roofline.peak_tflops("Tesla V100-SXM2-16GB", "apex-O0", 8, {})[0] == 15.7
    assert roofline.peak_tflops("NVIDIA A100-SXM4-80GB", "bf16", 8, {})[0] == 312.0
    for name, precision in (
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "fp32"),
        ("NVIDIA GeForce RTX 4090 D", "fp32"),
        ("NVIDIA L40", "fp32"),
        ("Tesla T4", "bf16"),
        ("Test CPU", "fp32"),
    ):
        assert roofline.peak_tflops(name, precision, 8, {})[0] is None


def test_mfu_counts_devices_and_threads(tmp_path):
    # 100 images/s x 1 GFLOP over 2 ranks of 1 thread; with 4 ranks on 2 cores the peak is that of 2.
    facts = {"num_cores": 2, "measured_peak": {"device_name": "Test CPU", "threads": 2, "tflops": {"fp32": 0.4}}}
    for name, row, mfu in (("two", {}, 0.25), ("four", {"world_size": 4}, 0.25), ("one", {"world_size": 1}, 0.5)):
        use = roofline.device_use(load_set(add_runs(tmp_path / name, "ddp", 100, noise=0, **row)).groups[0], facts)
        assert use.tflops == pytest.approx(0.1) and use.mfu == pytest.approx(mfu)
    gpu = {"device": "cuda", "device_name": "NVIDIA H200", "precision": "bf16", "world_size": 8}
    use = roofline.device_use(load_set(add_runs(tmp_path / "gpu", "ddp", 1e4, noise=0, **gpu)).groups[0], {})
    assert use.mfu == pytest.approx(1e4 * 1e9 / (8 * 989.4e12))
