"""Each test has two cases: on the CPU with little work, and on the GPU, marked `gpu`. What the GPU's cases measure is
printed at the end, and is in the file of --junitxml."""

import gc
import sys

import pytest
from machines import CPU, GPU, Machine

from benchmarks.common.errors import UserError
from benchmarks.common.machine import usable_gpus


@pytest.fixture(scope="session", autouse=True)
def one_thread_and_no_gpu():
    """In place of the other tests' fixture: these see the GPUs."""


@pytest.fixture(params=[pytest.param(CPU, id="cpu"), pytest.param(GPU, id="gpu", marks=pytest.mark.gpu)])
def machine(request, monkeypatch, record_property) -> Machine:
    import torch

    for name in ("NUM_GPUS", "NPROC", "THREADS_PER_RANK", "RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    if not request.param.on_gpu:
        monkeypatch.setenv("DEVICE", "cpu")
        torch.set_num_threads(1)
        yield request.param
        return
    if why := why_no_gpu():
        pytest.skip(why)
    record_property("device", torch.cuda.get_device_name(0))
    yield request.param
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def why_no_gpu() -> str:
    """'' where one can be used."""
    try:
        return "" if usable_gpus() else "no NVIDIA GPU is here, or it is hidden: make gpu-test"
    except UserError as error:
        return str(error)


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """As large as ImageNet's."""
    from machines import draw_photographs

    folder = tmp_path_factory.mktemp("photographs")
    draw_photographs(folder / "train", 64, seed=0)
    draw_photographs(folder / "val", 24, seed=1)
    return folder


def pytest_terminal_summary(terminalreporter):
    reports = [each for status in ("failed", "passed") for each in terminalreporter.stats.get(status, [])]
    reports = [each for each in reports if each.when == "call" and "device" in dict(each.user_properties)]
    if not reports:
        return
    terminalreporter.write_sep("=", f"measured on {dict(reports[0].user_properties)['device']}")
    for report in reports:
        name = report.nodeid.partition("::test_")[2]
        values = ", ".join(f"{key} {value}" for key, value in report.user_properties if key != "device")
        failed = "FAILED  " if report.failed else ""
        terminalreporter.write_line(f"{report.duration:6.1f} s  {failed}{name}  {values}".rstrip())
