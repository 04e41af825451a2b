"""Does what this project says of GPUs hold on this one? In the order of what is worth most.

make gpu-test                                       # all; the first nine minutes say most
make gpu-test TESTS="-k 'time_single or memory'"    # some
make gpu-test TESTS="-x --last-failed"
"""

import dataclasses
import platform

import pytest
import torch
from machines import backends, built, difference, on_two_ranks, take_step, time_ddp, time_run

from benchmarks.common import machine as this_machine
from benchmarks.common.engine import fit
from benchmarks.common.loader import build_loaders
from benchmarks.common.rank import Rank

pytestmark = pytest.mark.real_interpreter  # its processes use the GPU

STRATEGIES = """
    single ddp fsdp zero1 dataparallel ddp_spawn ddp_compressed local_sgd model_parallel pipeline_parallel
    hybrid_parallel slurm
""".split()
MOST_APART = (1e-3, 0.05)
"""See `difference`. On one CPU another memory format makes (6e-6, 5e-3), and other images (1.4, 1.4)."""
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


@pytest.mark.launches
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_is_the_cpus(machine, record_property, monkeypatch, name):
    if name == "dataparallel":  # on several GPUs BatchNorm sees a part of the batch at a time
        monkeypatch.setattr("benchmarks.dataparallel.usable_gpus", lambda: 1)
    config = dataclasses.replace(machine.small, precision="fp32")
    loss, weights = take_step(name, config, on_cpu=False)
    expected_loss, expected = take_step(name, config, on_cpu=True)
    head_apart, weights_apart = difference(weights, expected)
    record_property("apart", f"{head_apart:.1e} {weights_apart:.1e}")
    assert head_apart < MOST_APART[0] and weights_apart < MOST_APART[1]
    assert loss == pytest.approx(expected_loss, rel=1e-4)


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
