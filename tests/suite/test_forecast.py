"""The memory forecast beside what torch allocates in real steps, and what it refuses.

.venv/bin/python -m pytest tests/suite/test_forecast.py -s     # prints both
"""

import dataclasses

import pytest
import torch
from torch._C._profiler import _EventType
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from benchmarks.common.config import Config, load_config
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.stages import num_microbatches
from scripts.suite.forecast import (
    RESERVED_BYTES,
    Split,
    forecast,
    largest_batch,
    refusal,
    shm_bytes,
)

SMALL = Config(arch="resnet18", image_size=64, global_batch=32)
V100_16GB, V100_32GB = 16.9e9, 34.1e9


def split_of(strategy: str, config: Config, num_ranks: int, num_gpus: int) -> Split:
    """What each strategy is in numbers; one that is not here is one process a device, with all of the model."""
    ranks = Split(num_shards=num_ranks, copies=1, readers=num_ranks, reader_workers=config.workers)
    alone = Split(reader_workers=config.workers)
    micro = num_microbatches(config, num_ranks)
    one_f_one_b = config.pipeline_schedule == "1f1b"
    shards = max(1, num_gpus)
    return {
        "single": alone,
        "dataparallel": Split(shards, copies=1, whole_batch=True, reader_workers=config.workers * shards),
        "ddp_amp": dataclasses.replace(
            ranks, autocast={"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision, torch.bfloat16)
        ),
        "apex_ddp": dataclasses.replace(ranks, autocast=torch.float16 if config.opt_level != "O0" else None),
        "model_parallel": dataclasses.replace(alone, num_stages=2),
        "hybrid_parallel": dataclasses.replace(ranks, num_stages=2),
        "pipeline_parallel": dataclasses.replace(
            alone,
            num_stages=num_ranks,
            num_microbatches=micro,
            one_f_one_b=one_f_one_b,
            evaluates=config.global_batch // num_ranks,
        ),
    }.get(strategy, ranks)


def real_peak(config: Config) -> int:
    """The most bytes at one time that torch's own allocator gave out for two real steps on this CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        net = build_model(config, 1000, torch.device("cpu"))
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
    events, changes = list(profiler.profiler.kineto_results.experimental_event_tree()), []
    while events:
        event = events.pop()
        events += event.children
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = peak = 0
    for _, num_bytes in sorted(changes):
        now += num_bytes
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize(
    "arch, image_size, batch", [("resnet18", 64, 32), ("resnet18", 96, 16), ("resnet50", 64, 16), ("resnet50", 96, 8)]
)
def test_the_forecast_is_what_a_real_step_allocates(arch, image_size, batch):
    """Protects every refusal: 5 % is less than what separates batches that people choose."""
    config = Config(arch=arch, image_size=image_size, global_batch=batch)
    (need,), real = forecast(config, Split()), real_peak(config)
    print(f"{arch} {image_size} px x {batch}: forecast {need.peak / 1e6:.1f} MB, allocated {real / 1e6:.1f} MB")
    assert need.peak == pytest.approx(real, rel=0.05)


def test_activations_an_image_are_those_counted_by_hand():
    """Protects the unit: 22.3 MB an image for ResNet-18 at 224 px in fp32, linear in the batch."""
    one, two = (forecast(Config(arch="resnet18", global_batch=batch), Split())[0].activations for batch in (64, 128))
    assert (two - one) / 64 == pytest.approx(22.3e6, rel=0.02)


def test_each_way_of_dividing_saves_what_it_should():
    (whole,) = forecast(SMALL, Split())
    (shard,) = forecast(SMALL, Split(num_shards=4))
    assert shard.activations == pytest.approx(whole.activations / 4, rel=0.01) and shard.parameters == whole.parameters
    (buckets,) = forecast(SMALL, Split(num_shards=4, copies=1))
    assert buckets.peak - shard.peak == shard.gradients
    halves = forecast(SMALL, Split(num_stages=2))
    assert sum(half.parameters for half in halves) == whole.parameters
    assert sum(half.activations for half in halves) == pytest.approx(whole.activations, rel=0.05)
    gpipe = forecast(SMALL, Split(num_stages=2, num_microbatches=8))
    assert [need.activations for need in gpipe] == pytest.approx([half.activations for half in halves], rel=0.02)
    first, last = forecast(SMALL, Split(num_stages=2, num_microbatches=8, one_f_one_b=True))
    assert (8 * first.activations, 8 * last.activations) == pytest.approx(
        (2 * gpipe[0].activations, gpipe[1].activations), rel=0.01
    )
    large = dataclasses.replace(SMALL, global_batch=1024)  # beside which the weights' bf16 copies are small
    (full,), (amp,) = forecast(large, Split()), forecast(large, Split(autocast=torch.bfloat16))
    assert 0.45 * full.activations < amp.activations < 0.65 * full.activations
    (scattered,) = forecast(SMALL, Split(num_shards=4, whole_batch=True))
    assert scattered.peak - shard.peak == 24 * 3 * 64 * 64 * 4


@pytest.mark.parametrize("split", [Split(num_shards=4, copies=1), Split(num_stages=2, num_microbatches=4)], ids=str)
def test_the_largest_batch_fits_and_the_next_does_not(split):
    unit = split.num_shards * split.num_microbatches

    def peak(batch):
        return max(need.peak for need in forecast(dataclasses.replace(SMALL, global_batch=batch), split))

    limit = peak(16 * unit)
    assert largest_batch(dataclasses.replace(SMALL, global_batch=64 * unit), split, limit) == 16 * unit
    assert largest_batch(SMALL, split, 1e6) == 0


def test_the_published_protocol_on_four_v100():
    """Protects configs/v100x4.yaml: ddp of 3200 images fits 32 GB and not 16, and the sentence names what does."""
    config = load_config(["--config", "configs/v100x4.yaml"])
    ddp = split_of("ddp", config, 4, 4)
    assert refusal(config, ddp, V100_32GB, 8e9) == ""
    said = refusal(config, ddp, V100_16GB, 8e9)
    assert "needs 18.0 GB on one device, of 16.9 less 1.5" in said and "--global-batch 27" in said
    assert "8" not in refusal(config, split_of("pipeline_parallel", config, 4, 4), V100_16GB, 8e9)
    coarse = dataclasses.replace(config, microbatches=4)
    assert "--microbatches 16" in refusal(coarse, split_of("pipeline_parallel", coarse, 4, 4), V100_16GB, 8e9)


@pytest.mark.parametrize("strategy", ["single", "dataparallel", "ddp", "model_parallel", "pipeline_parallel"])
def test_the_small_protocol_fits_16_gb(strategy):
    config = load_config(["--config", "configs/v100x4-16gb.yaml"])
    assert refusal(config, split_of(strategy, config, 4, 4), V100_16GB, 8e9) == ""


def test_loaders_need_shared_memory():
    """2 batches ready in each worker of each rank: 4 ranks x 8 workers x 2 x 800 images x 3 x 224 x 224 bytes."""
    config = load_config(["--config", "configs/v100x4.yaml"])
    ddp = split_of("ddp", config, 4, 4)
    assert shm_bytes(config, ddp) == 4 * 8 * 2 * 800 * 3 * 224 * 224
    said = refusal(config, ddp, V100_32GB, shm_free_bytes := 64e6)
    assert f"{shm_free_bytes / 1e9:.1f}" in said and "--shm-size" in said and "--workers 0" in said
    assert shm_bytes(dataclasses.replace(config, loader="synthetic"), ddp) == 0


def test_a_gpu_of_2_gb_holds_no_resnet152():
    config = Config(arch="resnet152", global_batch=256)
    assert "no batch fits" in refusal(config, Split(num_shards=1), RESERVED_BYTES + 0.3e9, 8e9)
