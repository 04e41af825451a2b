"""Does what this project says of GPUs hold on this one? In the order of what is worth most.

make gpu-test                                       # all; the first nine minutes say most
make gpu-test TESTS="-k 'time_single or memory'"    # some
make gpu-test TESTS="-x --last-failed"
"""

import dataclasses
import platform
import re

import pytest
import torch
from machines import (
    backends,
    built,
    difference,
    on_two_ranks,
    run_make,
    seconds_of,
    take_step,
    time_ddp,
    time_run,
)

from benchmarks.common import machine as this_machine
from benchmarks.common.engine import fit
from benchmarks.common.loader import build_loaders
from benchmarks.common.rank import Rank
from benchmarks.common.summary import cudagraph_skips

pytestmark = pytest.mark.real_interpreter  # its processes use the GPU

STRATEGIES = """
    single ddp ddp_amp fsdp zero1 dataparallel ddp_spawn ddp_compressed local_sgd model_parallel pipeline_parallel
    hybrid_parallel slurm
""".split()
STRATEGIES += [pytest.param("ddp_compile", marks=pytest.mark.slow)]
MOST_APART = {"fp32": (1e-3, 0.05), "bf16": (0.1, 0.7)}
"""See `difference`. On one CPU another memory format makes (6e-6, 5e-3), bf16 in place of fp32 (0.03, 0.4), and other
images (1.4, 1.4)."""
FREE_SHARE = 0.8  # of an idle GPU's memory: CUDA's own context takes some, and a display


def test_versions_clocks_and_free_memory(machine, record_property):
    """First: nobody else computes on the GPU."""
    record_property("python", platform.python_version())
    record_property("torch", str(torch.__version__))  # xdist sends plain text only
    record_property("cores", this_machine.num_cores())
    if not machine.on_gpu:
        return
    torch.zeros(1, device=machine.device)
    free, total = torch.cuda.mem_get_info(machine.device)
    record_property("cuda", torch.version.cuda)
    record_property("cudnn", torch.backends.cudnn.version())
    record_property("nccl", ".".join(map(str, torch.cuda.nccl.version())))
    record_property("driver", this_machine.driver_version())
    record_property("capability", "{}.{}".format(*torch.cuda.get_device_capability(machine.device)))
    record_property("memory_gb", f"{total / 1e9:.1f}")
    record_property("sm_mhz", torch.cuda.clock_rate(machine.device))
    assert free > FREE_SHARE * total, f"{(total - free) / 1e9:.1f} GB are taken: another process computes on the GPU"


@pytest.mark.slow
def test_peaks(machine, record_property, monkeypatch):
    """TFLOP/s that MFU is over; and copies of memory."""
    from scripts.runner import device_peak

    if not machine.on_gpu:
        monkeypatch.setattr(device_peak, "MEASURE_S", 0.001)
    tflops = device_peak.measure_peak()["tflops"]
    for precision, value in tflops.items():
        record_property(f"{precision}_tflops", f"{value:.4g}")
    if machine.on_gpu:
        record_property("sm_mhz", torch.cuda.clock_rate(machine.device))
        assert tflops.get("bf16", tflops["fp16"]) > tflops["fp32"]
    on_host = torch.ones(machine.copied_mb * 2**18, pin_memory=machine.on_gpu)
    source = on_host.to(machine.device)
    target = torch.empty_like(source)
    of_memory = 2 * source.nbytes / seconds_of(lambda: target.copy_(source), machine.device)  # read and written
    from_host = source.nbytes / seconds_of(lambda: target.copy_(on_host, non_blocking=True), machine.device)
    record_property("memory_gb_per_s", f"{of_memory / 1e9:.4g}")
    record_property("from_host_gb_per_s", f"{from_host / 1e9:.4g}")


def check_apart(record_property, found, expected, precision: str) -> None:
    head, weights = difference(found, expected)
    record_property("apart", f"{head:.1e} {weights:.1e}")
    assert head < MOST_APART[precision][0] and weights < MOST_APART[precision][1]


@pytest.mark.launches
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    "precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)]
)  # slow: many CPUs emulate it
def test_a_step_is_the_cpus(machine, record_property, monkeypatch, precision, name):
    if name == "dataparallel":  # on several GPUs BatchNorm sees a part of the batch at a time
        monkeypatch.setattr("benchmarks.dataparallel.usable_gpus", lambda: 1)
    if (name, precision) in (("ddp_amp", "fp32"), ("ddp_compile", "bf16")):
        pytest.skip("ddp_amp computes in bf16; one of the two is enough to compile")
    config = dataclasses.replace(machine.small, precision=precision)
    loss, weights = take_step(name, config, on_cpu=False)
    expected_loss, expected = take_step("ddp" if name == "ddp_compile" else name, config, on_cpu=True)
    check_apart(record_property, weights, expected, precision)
    assert loss == pytest.approx(expected_loss, rel=1e-4 if precision == "fp32" else 2e-2)


def test_the_loader_beside_a_live_context(machine, photographs, record_property):
    """Images of workers that are forked from a process with a CUDA context, and of a copy beside a busy GPU."""
    config = dataclasses.replace(machine.small, data=str(photographs), loader="folder", steps=8)
    if machine.on_gpu:
        config = dataclasses.replace(config, image_size=224)
    busy = torch.randn(2048, 2048, device=machine.device)

    def images_of(device: torch.device, workers: int) -> list:
        loader, _ = build_loaders(dataclasses.replace(config, workers=workers), Rank(devices=(device,)))
        loader.set_epoch(0)
        found = []
        for images, target in loader:
            for _ in range(20 if machine.on_gpu else 0):
                torch.mm(busy, busy)
            found.append((images.clone(), target.clone()))
        return found

    for ours, expected in zip(images_of(machine.device, 2), images_of(torch.device("cpu"), 0), strict=True):
        torch.testing.assert_close(ours[0].cpu(), expected[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(ours[1].cpu(), expected[1])


def record(record_property, timed) -> None:
    record_property("images_per_s", f"{timed.images_per_s:.1f}")
    record_property("step_ms", f"{timed.step_ms:.2f}")
    record_property("memory_gb", f"{timed.memory_gb:.2f}")
    assert timed.images_per_s > 0


def test_time_single(machine, record_property):
    """bf16, channels_last, 256 images."""
    record(record_property, time_run("single", machine.timed))


@pytest.mark.slow
@pytest.mark.parametrize("cuda_graphs", [False, True], ids=["", "cuda_graphs"])
def test_time_single_compiled(machine, record_property, cuda_graphs):
    """torch only warns where it replays no CUDA graphs."""
    if cuda_graphs and not machine.on_gpu:
        pytest.skip("CUDA graphs are of GPUs")
    config = dataclasses.replace(machine.timed, compile=True, cuda_graphs=cuda_graphs)
    record(record_property, time_run("single", config))
    assert not cuda_graphs or cudagraph_skips() == 0


@pytest.mark.launches
def test_time_ddp_amp_in_fp16(machine, record_property):
    config = dataclasses.replace(machine.timed, precision="fp16" if machine.on_gpu else "bf16")
    record(record_property, time_run("ddp_amp", config))


@pytest.mark.launches
def test_time_single_from_jpegs(machine, record_property, photographs):
    """Beside test_time_single it says what loading costs."""
    changes = {"data": str(photographs), "loader": "folder", "workers": machine.loader_workers}
    if machine.on_gpu:
        changes |= {"steps": 20, "warmup_steps": 4, "windows": 2}
    record(record_property, time_run("single", dataclasses.replace(machine.timed, **changes)))


@pytest.mark.launches
def test_a_resumed_run_is_one_that_went_on(machine, photographs, tmp_path, record_property):
    found = {}
    parts = {"whole": [(2, False)], "resumed": [(1, False), (2, True)]}
    for folder, runs in parts.items():
        for epochs, resume in runs:
            config = dataclasses.replace(
                machine.small,
                data=str(photographs),
                loader="folder",
                epochs=epochs,
                resume=resume,
                checkpoint_dir=str(tmp_path / folder),
                cudnn_benchmark=False,
                cudnn_deterministic=True,
            )
            with built("ddp", config) as strategy:
                fit(strategy)
        found[folder] = torch.load(tmp_path / folder / "last.pt", weights_only=True)["model"]
    whole, resumed = found.values()
    record_property("bit_identical", all(torch.equal(whole[key], resumed[key]) for key in whole))
    for key in whole:
        torch.testing.assert_close(resumed[key], whole[key], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_a_line_with_its_remedy(machine, tmp_path, photographs, record_property):
    """ResNet-50 keeps 86 MB of activations for an image in fp32."""
    images = 10**11  # 1,200 TB of images: more than a process can address
    if machine.on_gpu:
        images = int(2 * torch.cuda.mem_get_info(machine.device)[1] / 86e6)
    config = dataclasses.replace(machine.small, global_batch=images)
    if machine.on_gpu:
        config = dataclasses.replace(config, arch="resnet50", image_size=224)
    # else the forecast of memory would skip the run
    row = run_make("single", tmp_path / "set", config, photographs, GPU_MEMORY_GB=1000000)
    record_property("status", row["status"])
    assert row["status"] == "failed" and "\n" not in row["reason"]
    assert re.search("out of memory|can't allocate memory", row["reason"]) and "--global-batch" in row["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["horovod_ddp", "apex_ddp"])
def test_a_strategy_with_a_library_of_its_own_trains(machine, tmp_path, photographs, record_property, name):
    """Where set-up has built it."""
    row = run_make(name, tmp_path / "set", machine.small, photographs)
    if row["status"] == "skipped":
        pytest.skip(row["reason"])
    record_property("images_per_s", f"{row['images_per_s']:.1f}")
    assert (row["status"], row["device"]) == ("ok", machine.device.type), row["reason"]


def need_two_gpus(machine) -> None:
    if machine.on_gpu and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.launches
def test_time_ddp_on_two_ranks(machine, record_property):
    """By each backend of NCCL."""
    need_two_gpus(machine)
    config = dataclasses.replace(machine.timed, global_batch=2 * machine.timed.global_batch)
    for backend in backends(machine):
        found = on_two_ranks(time_ddp, backend, config)
        record_property(f"{backend}_images_per_s", f"{found['images_per_s']:.1f}")
