"""The memory forecast beside what torch allocates in real steps, and what it refuses."""

import dataclasses
import gc
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from support import OURS, asked, start_bench
from torch._C._profiler import _EventType
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks import fsdp
from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rows import read_table
from benchmarks.common.strategy import Layout
from scripts.memory import memory_check
from scripts.memory.memory_check import (
    RESERVED_BYTES,
    MemoryCase,
    largest_batch,
    layout_function,
    loader_bytes,
    why_not_fitting,
    why_runs_do_not_fit,
)
from scripts.memory.memory_forecast import forecast, peak_bytes
from scripts.runner import plan
from scripts.runner.default_batch import with_fitting_batch
from scripts.runner.request import Request

SMALL = Config(arch="resnet18", image_size=64, global_batch=32)
V100_16GB, V100_32GB = 16.9e9, 34.1e9


def refused(strategy: str, config: Config, memory_bytes: float, free_bytes: float = 1e12) -> str:
    """On four GPUs."""
    return why_not_fitting(config, layout_function(strategy), 4, memory_bytes, free_bytes)


def real_peak(config: Config, mesh: DeviceMesh | None = None) -> int:
    """The most bytes that torch's own allocator gave out in two real steps. mesh: of FSDP."""
    gc.collect()  # what is freed meanwhile would be taken off
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        net = build_model(config, 1000)
        if mesh:
            fsdp.shard(net, config, mesh)
        optimizer = build_optimizer(config, net)
        optimizer.param_groups[0]["foreach"] = True  # as on a GPU: the update is then of all gradients at once
        images = torch.zeros(config.global_batch, 3, config.image_size, config.image_size)
        target = torch.zeros(config.global_batch, dtype=torch.long)
        for _ in range(2):
            optimizer.zero_grad()
            output = net(images)
            loss = cross_entropy(output, target)
            loss.backward()
            optimizer.step()
            del output, loss
    now = peak = 0
    for change in sorted(lasting_changes(profiler.profiler.kineto_results.experimental_event_tree()), key=when):
        now += change.extra_fields.alloc_size
        peak = max(peak, now)
    return peak


def when(event) -> int:
    return event.start_time_ns


def lasting_changes(events) -> list:
    """The profiler's events below these by which memory is taken or given back, without oneDNN's scratch memory: that
    of a convolution which it gives back itself."""
    changes, events = [], list(events)
    while events:
        event = events.pop()
        events += event.children
        own = sorted((child for child in event.children if child.tag == _EventType.Allocation), key=when)
        changes += without_scratch(own) if "convolution" in event.name else own
        if event.tag == _EventType.Allocation and event.parent is None:
            changes.append(event)
    return changes


def without_scratch(changes: list) -> list:
    taken, lasting = {}, []
    for change in changes:
        fields = change.extra_fields
        if fields.alloc_size > 0:
            taken[fields.ptr] = change
        elif taken.pop(fields.ptr, None) is None:
            lasting.append(change)
    return lasting + list(taken.values())


@pytest.mark.parametrize("arch, image_size, batch", [("resnet50", 64, 16), ("vit_b_16", 32, 8)])
@pytest.mark.launches
def test_the_forecast_is_what_a_real_step_allocates(arch, image_size, batch):
    config = Config(arch=arch, image_size=image_size, global_batch=batch)
    (need,), real = forecast(config, Layout()), real_peak(config)
    assert need.peak == pytest.approx(real, rel=0.05)


@pytest.mark.launches
def test_the_forecast_of_fsdp_is_what_a_rank_allocates():
    """The group sends nothing, and allocates what a real one does."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        real = real_peak(SMALL, init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)))
    finally:
        dist.destroy_process_group()
    (need,) = forecast(SMALL, Layout(num_weight_shards=4))
    assert 0.95 * real <= need.peak <= 1.12 * real


@pytest.mark.launches
def test_each_way_of_dividing_saves_what_it_should():
    (whole,) = forecast(SMALL, Layout())
    (shard,) = forecast(SMALL, Layout(num_shards=4))
    assert shard.activations == pytest.approx(whole.activations / 4, rel=0.01) and shard.parameters == whole.parameters
    (buckets,) = forecast(SMALL, Layout(num_shards=4, num_gradient_copies=1))
    assert buckets.peak - shard.peak == shard.gradients
    cut = dataclasses.replace(SMALL, cut=3)  # an estimated one depends on the micro-batch
    halves = forecast(cut, Layout(num_stages=2))
    assert sum(half.parameters for half in halves) == whole.parameters
    assert sum(half.activations for half in halves) == pytest.approx(whole.activations, rel=0.05)
    gpipe = forecast(cut, Layout(num_stages=2, num_microbatches=8))
    first, last = forecast(cut, Layout(num_stages=2, num_microbatches=8, one_f_one_b=True))
    assert (8 * first.activations, 8 * last.activations) == pytest.approx(
        (2 * gpipe[0].activations, gpipe[1].activations), rel=0.01
    )
    large = dataclasses.replace(SMALL, global_batch=1024)  # beside which the weights' bf16 copies are small
    (full,), (amp,) = forecast(large, Layout()), forecast(large, Layout(autocast="bf16"))
    assert 0.45 * full.activations < amp.activations < 0.65 * full.activations
    (scattered,) = forecast(SMALL, Layout(num_shards=4, one_process_loads=True))
    assert scattered.peak - shard.peak == 24 * 3 * 64 * 64 * 4


@pytest.mark.launches
def test_the_largest_batch_fits_and_the_next_does_not():
    layout = Layout(num_stages=2, num_microbatches=4)
    limit = peak_bytes(dataclasses.replace(SMALL, global_batch=64), layout)
    assert largest_batch(dataclasses.replace(SMALL, global_batch=256), layout, limit) == 64
    assert largest_batch(SMALL, layout, 1e6) == 0


@pytest.mark.launches
def test_the_published_protocol_on_four_v100():
    """ddp of 3200 images fits 32 GB and not 16, and the sentence names what does."""
    config = load_config(["--config", "configs/v100x4.yaml"])
    assert refused("ddp", config, V100_32GB) == ""
    message = refused("ddp", config, V100_16GB)
    assert "needs 18.3 GB on one device, of 16.9 less 1.5" in message and message.endswith("--global-batch 2688")
    assert refused("pipeline_parallel", config, V100_16GB) == ""


@pytest.mark.launches
def test_loaders_need_memory():
    """Each rank: 2 batches ready in each of 8 workers, and 2 more, for training and for validation; 2 page-locked ones.
    On two nodes each keeps half; but the first rank of a pipeline reads all images of training."""
    config = load_config(["--config", "configs/v100x4.yaml"])
    ddp, pipeline = (layout_function(name)(config, 4) for name in ("ddp", "pipeline_parallel"))
    a_batch = 3200 * 3 * 224 * 224
    assert loader_bytes(config, ddp) == loader_bytes(config, pipeline) == (2 * (8 * 2 + 2) + 2) * a_batch
    assert loader_bytes(config, ddp, num_nodes=2) == 19 * a_batch
    assert loader_bytes(config, pipeline, num_nodes=2) == (20 + 18 / 2) * a_batch
    assert "0.1 are free; use --workers 0" in refused("ddp", config, V100_32GB, free_bytes=64e6)


# --- the default batch --------------------------------------------------------------------------------------------


def variables_on_gpus(monkeypatch, flags: str, **variables: object) -> Request:
    """On two GPUs that need not be here, without a configuration of the user's."""
    for name, value in {"NUM_GPUS": 2, "NPROC": 2, "ARGS": f"--loader synthetic {flags}", **variables}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("STRATEGIES", raising=False)
    return asked()


@pytest.mark.launches
def test_the_default_batch_is_halved_until_every_core_strategy_fits(monkeypatch, capsys):
    """All have the same number, also one strategy by itself."""
    flags = "--arch resnet18 --image-size 64 --precision fp32"
    monkeypatch.delenv("CONFIG", raising=False)
    needed_gb = {}
    for batch in (64, 128):
        own = variables_on_gpus(monkeypatch, f"{flags} --batch-per-device {batch}", GPU_MEMORY_GB=1000)
        for run in plan.plan_strategies(own):
            config = memory_check.resolve_config(run.strategy, run.config, 2)
            bytes_needed = peak_bytes(config, layout_function(run.strategy)(config, 2)) + RESERVED_BYTES
            needed_gb[batch] = max(needed_gb.get(batch, 0), bytes_needed / 1e9)
    variables = variables_on_gpus(monkeypatch, flags, GPU_MEMORY_GB=(needed_gb[64] + needed_gb[128]) / 2)
    found = with_fitting_batch(variables)
    assert load_config(found.flags).batch_per_device == 64
    assert "note: 64 images on each GPU instead of 256" in (note := capsys.readouterr().err) and "on one device" in note
    assert with_fitting_batch(dataclasses.replace(variables, strategies="ddp_amp")).flags == found.flags
    assert all(not run.skip for run in plan.skip_what_does_not_fit(plan.plan_strategies(found)))


@pytest.mark.parametrize(
    "flags, more",
    [
        ("--global-batch=512", {}),
        ("", {"CONFIG": "configs/imagenet-resnet50.yaml"}),
        ("", {"NUM_GPUS": 0}),
        ("", {"NNODES": 2}),  # whose nodes might differ
    ],
)
def test_a_batch_that_is_named_stays(monkeypatch, flags, more):
    monkeypatch.setitem(sys.modules, "scripts.memory.memory_forecast", None)  # an import of it would fail
    monkeypatch.delenv("CONFIG", raising=False)
    variables = variables_on_gpus(monkeypatch, flags, GPU_MEMORY_GB=2, **more)
    assert with_fitting_batch(variables) == variables


@pytest.mark.launches
def test_a_suite_skips_what_does_not_fit_and_runs_the_rest(recorder, checkout, tiny_data, tmp_path):
    """On four stand-in GPUs: out of memory is said beforehand, in a row with the remedy."""
    (results := tmp_path / "a set").mkdir()
    (results / "environment.json").write_text("{}")
    ours = recorder.variables | {"PASSED_ON": OURS, "RESULTS": results, "DATA": tiny_data, "NUM_GPUS": 4, "REPEATS": 1}
    ours |= {"STRATEGIES": "single ddp", "GPU_MEMORY_GB": 6}
    ours |= {"ARGS": "--arch resnet18 --image-size 64 --precision fp32 --global-batch 4096"}
    keywords = {"capture_output": True, "text": True, "timeout": 100}
    done = start_bench(checkout, popen=subprocess.run, **ours, **keywords)
    assert done.returncode == 0, done.stderr
    rows = {row["strategy"]: row for row in read_table(results, "runs").to_dict("records")}
    assert {name: row["status"] for name, row in rows.items()} == {"single": "skipped", "ddp": "ok"}
    assert "--global-batch" in (reason := rows["single"]["reason"]) and reason in done.stdout
    words = [word for call in recorder.calls() for word in call["words"]]
    assert "benchmarks.ddp" in words and "benchmarks.single" not in words


def test_a_machine_without_gpus_pays_nothing(monkeypatch):
    """No torch for an answer that is known."""
    monkeypatch.setenv("NUM_GPUS", "0")
    monkeypatch.setitem(sys.modules, "scripts.memory.memory_forecast", None)  # an import of it would fail
    cases = [MemoryCase("ddp", Config(arch="resnet152", global_batch=2**16), 2, 1)]
    assert why_runs_do_not_fit(cases, 2) == [""]
    monkeypatch.setenv("NUM_GPUS", "2")  # and nobody can ask them
    assert why_runs_do_not_fit(cases, 2) == [""]
    monkeypatch.setenv("GPU_MEMORY_GB", "16 GB")
    with pytest.raises(UserError, match="for a V100 of 16 GB"):
        why_runs_do_not_fit(cases, 2)
