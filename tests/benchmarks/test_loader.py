"""The same images for every strategy."""

import itertools
import shutil
from collections import Counter

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import NUM_TRAIN, NUM_VAL, loaders, pixels, refusal, spoil

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.loader import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    GlobalBatchSampler,
    HostLoader,
    Loader,
    open_datasets,
)

CPU = torch.device("cpu")


def dealt(num_images, global_batch, num_steps, num_shards, epoch=0, shuffle=True):
    """indices[shard][step]: what each shard reads."""
    shares = []
    for shard in range(num_shards):
        batches = GlobalBatchSampler(num_images, global_batch, num_steps, shard, num_shards, shuffle, seed=3)
        batches.epoch = epoch
        shares.append([[index for _, _, index in batch] for batch in batches])
    return shares


def flat(lists):
    return [*itertools.chain(*lists)]


# --- which images -------------------------------------------------------------------------------------------------


def test_ranks_are_disjoint_and_together_the_same_global_batch():
    (whole,) = dealt(100, 12, 8, 1)
    assert len(set(flat(whole))) == 96
    for num_shards in (2, 3, 12):
        for step, parts in enumerate(zip(*dealt(100, 12, 8, num_shards), strict=True)):
            assert flat(parts) == whole[step] and {len(part) for part in parts} == {12 // num_shards}


def test_the_epoch_changes_the_order_and_a_small_set_is_repeated_whole():
    first, second, again = (flat(dealt(40, 8, 5, 1, epoch)[0]) for epoch in (0, 1, 0))
    assert first == again != second and sorted(first) == sorted(second) == list(range(40))
    (repeated,) = dealt(5, 8, 5, 1)
    assert [len(batch) for batch in repeated] == [8] * 5 and {*Counter(flat(repeated)).values()} == {8}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 100), st.integers(1, 12), st.integers(1, 7))
def test_validation_covers_every_image_exactly_once(num_images, per_shard, num_shards):
    global_batch = per_shard * num_shards
    shares = dealt(num_images, global_batch, -(-num_images // global_batch), num_shards, shuffle=False)
    assert sorted(flat(flat(shares))) == list(range(num_images))


def test_a_val_folder_that_lacks_a_class_keeps_the_numbers_of_the_others(own_data):
    shutil.rmtree(own_data / "val" / "checks")  # the first of four
    train, val = loaders(own_data)
    assert set(pixels(val)[1].tolist()) == {1, 2, 3} and train.classes == val.classes


def test_unfit_folders_and_batches_are_named(own_data, tmp_path):
    with pytest.raises(UserError, match="global_batch 8"):
        loaders(own_data, world_size=3)
    (own_data / "val" / "unheard of").mkdir()
    with pytest.raises(UserError, match="unheard of"):
        loaders(own_data)
    with pytest.raises(UserError, match="nowhere"):
        loaders(tmp_path / "nowhere")


# --- which pixels -------------------------------------------------------------------------------------------------


def test_pixels_depend_on_neither_workers_nor_ranks_nor_where_a_run_resumed(tiny_data):
    before = torch.get_rng_state()
    images, targets = pixels(loaders(tiny_data)[0], epoch=1)
    assert images.shape == (NUM_TRAIN, 3, 32, 32) and torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    by_workers, workers_targets = pixels(loaders(tiny_data, workers=2)[0], epoch=1)
    assert torch.equal(by_workers, images) and torch.equal(workers_targets, targets)
    shares = [pixels(loaders(tiny_data, rank, 2)[0], epoch=1)[0].split(4) for rank in range(2)]
    assert torch.equal(torch.cat(flat(zip(*shares, strict=True))), images)
    assert torch.equal(pixels(loaders(tiny_data)[0], epoch=1, start_step=3)[0], images[3 * 8 :])


def test_augmentation_differs_by_epoch_and_seed_and_can_be_off(tiny_data):
    def by_image(seed=0, epoch=0, **changes):
        loader = loaders(tiny_data, seed=seed, **changes)[0]
        loader.set_epoch(epoch)
        order = torch.tensor([index for batch in loader.sampler for _, _, index in batch])
        return pixels(loader, epoch)[0][order.argsort()]

    def num_same(a, b):
        return (a == b).flatten(1).all(dim=1).sum()

    first = by_image()
    assert num_same(first, by_image(epoch=1)) == num_same(first, by_image(seed=1)) == 0
    assert num_same(by_image(augment=False), by_image(augment=False, epoch=1)) == NUM_TRAIN


def test_images_are_normalised_on_the_cpu_and_by_the_gpus_kernel():
    """(x / 255 - mean) / std for each of 256 values; in bf16 rounded as autocast would."""
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(2, 1, 1, 3).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    exact = (images.double() / 255 - mean) / std
    for device in (CPU, torch.device("cuda")):
        found = []
        for precision, memory_format in (("fp32", "contiguous"), ("bf16", "channels_last")):
            config = Config(memory_format=memory_format, precision=precision)
            loader = Loader(None, GlobalBatchSampler(1, 1, 1), config, CPU, ["a class"])
            loader.device = device  # the GPU's kernel runs on the CPU, too
            found.append(loader.normalised(images))
        assert (found[0] - exact).abs().max() < 1e-6 and torch.equal(found[1], found[0].bfloat16())
        assert found[0].is_contiguous() and found[1].is_contiguous(memory_format=torch.channels_last)


# --- one process that loads for several devices ---------------------------------------------------------------------


def read_twice(loader: HostLoader) -> list[torch.Tensor]:
    """Pixels and targets of two passes; pixels as they are when the next batch is there."""
    kept = []
    for _ in range(2):
        before = None
        for batch in itertools.chain(loader, [None]):
            kept += [before.images.clone(), before.target] if before else []
            before = batch
    return kept


def test_parts_of_batches_are_put_together(tiny_data):
    """Also while the next batch is read, where validation's last one is smaller, and in a second pass."""
    train, val = open_datasets(Config(data=str(tiny_data), image_size=32))
    for images, sampler in (
        (train, GlobalBatchSampler(40, 7, 6)),
        (val, GlobalBatchSampler(NUM_VAL, 10, 3, shuffle=False)),
    ):
        whole = read_twice(HostLoader(Config(workers=0), CPU, images, sampler))
        in_parts = read_twice(HostLoader(Config(workers=2), CPU, images, sampler, num_devices=3))
        assert len(whole) == len(in_parts) and all(map(torch.equal, whole, in_parts))


# --- files and workers that fail ------------------------------------------------------------------------------------


def test_an_unreadable_image_is_named(own_data):
    spoil(own_data / "train" / "top" / "top 6.JPEG", "truncated")
    assert "top 6.JPEG" in refusal(loaders(own_data, workers=2)[0])


def test_a_killed_worker_is_named_and_nobody_waits_for_it(tiny_data):
    train, _ = loaders(tiny_data, workers=2, global_batch=2)
    before, batches = psutil.Process().children(), iter(train)
    next(batches)
    next(child for child in psutil.Process().children() if child not in before).kill()
    with pytest.raises(UserError, match="--workers"):
        for _ in batches:
            pass
