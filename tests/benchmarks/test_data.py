"""The same images for every strategy: what a rank reads depends on the seed and the epoch, and on nothing else.

.venv/bin/python -m pytest tests/benchmarks/test_data.py
"""

import itertools
import shutil
from collections import Counter

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import NUM_TRAIN, NUM_VAL, loaders, pixels, refusal, save, spoil

from benchmarks.common import machine
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.loader import GlobalBatchSampler, build_loaders
from benchmarks.common.rank import Rank


def dealt(num_images, global_batch, num_steps, num_shards, epoch=0, shuffle=True, start_step=0):
    """indices[shard][step]: what each shard reads."""
    shares = []
    for shard in range(num_shards):
        batches = GlobalBatchSampler(num_images, global_batch, num_steps, shard, num_shards, shuffle, seed=3)
        batches.epoch, batches.start_step = epoch, start_step
        shares.append([[index for _, _, index in batch] for batch in batches])
    return shares


def flat(lists):
    return [*itertools.chain(*lists)]


# --- which images ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4, 6, 12])
def test_ranks_are_disjoint_and_together_the_same_global_batch(num_shards):
    """Protects the comparison of world sizes: step k trains on the same images, each of them once."""
    (whole,) = dealt(100, 12, 8, 1)
    shares = dealt(100, 12, 8, num_shards)
    for step in range(8):
        parts = [share[step] for share in shares]
        assert all(len(part) == 12 // num_shards for part in parts)
        assert flat(parts) == whole[step]
    assert len(set(flat(whole))) == 96  # and no image twice in an epoch


def test_set_epoch_changes_the_order_and_only_the_epoch_does():
    """Protects against the pitfall of a sampler that deals the same order in every epoch."""
    first, second, again = (flat(dealt(40, 8, 5, 1, epoch)[0]) for epoch in (0, 1, 0))
    assert first == again != second
    assert sorted(first) == sorted(second) == list(range(40))


def test_a_set_smaller_than_an_epoch_is_repeated_whole():
    """Protects batches larger than the set, and --steps beyond it: whole batches, every image equally often."""
    (whole,) = dealt(5, 8, 5, 1)
    assert [len(batch) for batch in whole] == [8] * 5
    assert set(Counter(flat(whole)).values()) == {8}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 100), st.integers(1, 12), st.integers(1, 7))
def test_validation_covers_every_image_exactly_once(num_images, per_shard, num_shards):
    """Protects exact evaluation for any number of images, any batch, any number of ranks: no padding, no gap."""
    global_batch = per_shard * num_shards
    shares = dealt(num_images, global_batch, -(-num_images // global_batch), num_shards, shuffle=False)
    everything = [index for share in shares for batch in share for index in batch]
    assert sorted(everything) == list(range(num_images))
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) - min(sizes) <= -(-num_images // global_batch)  # fair, to an image a batch


@pytest.mark.parametrize("num_shards", [1, 3])
def test_validation_loaders_read_every_file_once(tiny_data, num_shards):
    """Protects the same through the real loader, on 23 files, which nothing divides."""
    targets = [
        pixels(loaders(tiny_data, rank, num_shards, global_batch=2 * num_shards)[1])[1] for rank in range(num_shards)
    ]
    counts = Counter(torch.cat(targets).tolist())
    expected = [len(list(folder.iterdir())) for folder in sorted((tiny_data / "val").iterdir())]
    assert [counts[n] for n in range(4)] == expected and sum(expected) == NUM_VAL


# --- which pixels ----------------------------------------------------------------------------------------------


def test_pixels_depend_on_neither_workers_nor_ranks_nor_where_a_run_resumed(tiny_data):
    """Protects equivalence and bit-identical resume: augmentation is drawn from (seed, epoch, position)."""
    images, targets = pixels(loaders(tiny_data)[0], epoch=1)
    assert images.shape == (NUM_TRAIN, 3, 32, 32) and images.dtype == torch.float32
    torch.manual_seed(99)  # what training drew before does not matter either
    by_workers, workers_targets = pixels(loaders(tiny_data, workers=2)[0], epoch=1)
    assert torch.equal(by_workers, images) and torch.equal(workers_targets, targets)
    shares = [pixels(loaders(tiny_data, rank, 2)[0], epoch=1)[0].split(4) for rank in range(2)]
    assert torch.equal(torch.cat([part for step in zip(*shares, strict=True) for part in step]), images)
    resumed, _ = pixels(loaders(tiny_data)[0], epoch=1, start_step=3)
    assert torch.equal(resumed, images[3 * 8 :])


def test_reading_leaves_the_random_generator_of_training_alone(tiny_data):
    """Protects dropout and the like: what they draw must not depend on workers=0 against workers=2."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    pixels(loaders(tiny_data)[0])
    assert torch.equal(torch.rand(3), expected)


def test_augmentation_differs_by_epoch_and_seed_and_can_be_off(tiny_data):
    """Protects training from seeing the same crop of an image again and again."""

    def by_image(seed=0, epoch=0, **changes):
        loader = loaders(tiny_data, seed=seed, **changes)[0]
        loader.set_epoch(epoch)
        order = [index for batch in loader.sampler for _, _, index in batch]
        return dict(zip(order, pixels(loader, epoch)[0], strict=True))

    def same(a, b):
        return sum(torch.equal(a[n], b[n]) for n in range(NUM_TRAIN))

    first = by_image()
    assert same(first, by_image()) == NUM_TRAIN
    assert same(first, by_image(epoch=1)) == 0
    assert same(first, by_image(seed=1)) == 0
    assert same(by_image(augment=False), by_image(augment=False, epoch=1)) == NUM_TRAIN


def test_images_are_normalised_once(tiny_data):
    """Protects the input's scale (a published script normalises twice): mean near 0 and deviation near 1."""
    images, _ = pixels(loaders(tiny_data, augment=False)[0])
    assert abs(images.mean()) < 0.5 and 0.5 < images.std() < 1.5


# --- which files -----------------------------------------------------------------------------------------------


def test_files_of_any_mode_and_size_are_read(own_data):
    """Protects real ImageNet, which has a PNG and CMYK files named .JPEG, and hand-made folders."""
    for part in ("train", "val"):
        folder = own_data / part / "left"
        save(folder / "grey.JPEG", "L", (40, 300))
        save(folder / "print.JPEG", "CMYK", (300, 40))
        save(folder / "alpha.JPEG", "RGBA", kind="PNG")
        save(folder / "palette.jpg", "P", (1, 1), kind="PNG")
    train, val = loaders(own_data, global_batch=44)
    for loader, num_images in ((train, 44), (val, NUM_VAL + 4)):
        images, _ = pixels(loader)
        assert images.shape == (num_images, 3, 32, 32) and images.isfinite().all()


@pytest.mark.parametrize("part, kind, workers", [("train", "truncated", 2), ("val", "empty", 0)])
def test_a_file_that_is_no_whole_image_is_named(own_data, part, kind, workers):
    """Protects hours of search: the message has the file and the ways out, from a loader worker, too."""
    bad = sorted((own_data / part).rglob("*.JPEG"))[5]
    spoil(bad, kind)
    loader = loaders(own_data, workers=workers)[part == "val"]
    message = refusal(loader)
    assert str(bad) in message and "or use --skip-bad-files" in message


def test_bad_files_are_counted_and_replaced_where_asked(own_data):
    """Protects --skip-bad-files: training batches stay whole, validation leaves the file out, both say how many."""
    for part in ("train", "val"):
        spoil(own_data / part / "top" / f"top {6}.JPEG", "truncated")
    train, val = loaders(own_data, skip_bad_files=True)
    assert len(pixels(train)[0]) == NUM_TRAIN and train.num_bad_files == 1
    assert len(pixels(val)[0]) == NUM_VAL - 1 and val.num_bad_files == 1


def test_a_set_without_a_readable_image_is_refused_even_then(own_data):
    """Protects --skip-bad-files from an epoch of nothing."""
    for path in (own_data / "train").rglob("*.JPEG"):
        spoil(path, "text")
    assert "nor are the 99 after it" in refusal(loaders(own_data, skip_bad_files=True)[0])


def test_a_val_folder_that_lacks_a_class_keeps_the_numbers_of_the_others(own_data):
    """Protects accuracy: numbering val's own folders would shift every class after the gap."""
    shutil.rmtree(own_data / "val" / "checks")  # the first of four
    train, val = loaders(own_data)
    assert set(pixels(val)[1].tolist()) == {1, 2, 3} and train.classes == val.classes


def test_unfit_folders_and_batches_are_refused(own_data, tmp_path):
    """Protects the reader of the message, where preflight did not run before."""
    with pytest.raises(UserError, match="global_batch 8 is not a multiple of 3 ranks; change one of them"):
        loaders(own_data, world_size=3)
    with pytest.raises(UserError, match=r"cannot read .*DATA must hold train/ and val/"):
        loaders(tmp_path / "nowhere")
    (own_data / "val" / "unheard of").mkdir()
    with pytest.raises(UserError, match=r"has classes that train/ lacks: \['unheard of'\]"):
        loaders(own_data)
    for path in (own_data / "train").rglob("*.JPEG"):
        path.unlink()
    with pytest.raises(UserError, match="holds no class folder with images"):
        loaders(own_data)


def test_more_ranks_than_the_last_batch_has_images(tiny_data):
    """Protects against a hang or a crash: ranks without a share of the last batch just have a batch less."""
    sizes = [len(list(loaders(tiny_data, rank, 4, global_batch=20)[1])) for rank in range(4)]
    assert sizes == [2, 2, 2, 1]  # 23 = 20 + 3


def test_synthetic_batches_need_no_files_and_differ_by_rank():
    """Protects `loader: synthetic`: fixed, seeded, on the device, with nothing to validate."""
    shapes = {"loader": "synthetic", "steps": 3}
    ranks = [list(loaders("/nonexistent", rank, 2, **shapes)[0]) for rank in range(2)]
    assert [len(batches) for batches in ranks] == [3, 3]
    assert ranks[0][0][0].shape == (4, 3, 32, 32) and not torch.equal(ranks[0][0][0], ranks[1][0][0])
    assert list(loaders("/nonexistent", **shapes)[1]) == []
    in_bf16 = next(iter(loaders("/nonexistent", 0, 2, precision="bf16", **shapes)[0]))[0]
    assert in_bf16.dtype == torch.bfloat16 and torch.equal(in_bf16, ranks[0][0][0].bfloat16())


def test_workers_auto_is_a_number_that_the_row_holds(tiny_data, monkeypatch):
    """Protects a rank's own core: none for loading without a GPU, all but one beside one."""
    train, _ = loaders(tiny_data, workers="auto")
    assert train.resolved["workers"] == 0 and loaders(tiny_data, workers=2)[0].resolved["workers"] == 2
    monkeypatch.setenv("THREADS_PER_RANK", "8")
    assert [machine.resolve_num_workers("auto", on_gpu) for on_gpu in (True, False)] == [7, 0]
    assert machine.resolve_num_workers(3, on_gpu=True) == 3
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    assert machine.resolve_num_workers("auto", on_gpu=True) == 1


def test_a_killed_worker_is_named_and_nobody_waits_for_it(tiny_data):
    """Protects from a hang where the kernel kills a loader worker for lack of memory."""
    train, _ = loaders(tiny_data, workers=2, global_batch=2)
    before, batches = psutil.Process().children(), iter(train)
    next(batches)
    workers = [child for child in psutil.Process().children() if child not in before]
    assert len(workers) == 2
    workers[0].kill()
    with pytest.raises(UserError, match=r"gave no batch .*lack of memory \(see dmesg\): use fewer --workers"):
        for _ in batches:
            pass


@pytest.mark.parametrize("loader", ["synthetic", "folder"])
def test_targets_to_receive_into_are_on_the_device(tiny_data, loader):
    """Protects the timed windows of a pipeline: its ranks without images copied such targets from pageable memory in
    every step, for which the host may wait. Mutant: targets on the host."""
    config = Config(data=str(tiny_data), loader=loader, global_batch=8, image_size=32, workers=0, steps=2)
    rank = Rank(1, 1, 2, 2, (torch.device("meta"),))  # a device that is not the host
    batches = list(build_loaders(config, rank, only_rank0_reads=True)[0].host_batches)
    assert len(batches) == 2
    for batch in batches:
        assert {batch.images.device.type, batch.target.device.type} == {"meta"}
        assert batch.target.shape == (8,) and batch.target.dtype == torch.int64
