"""Exact evaluation: loss and accuracy over every image once, for any number of ranks, on real process groups."""

import math
import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support import NUM_VAL, make_run_folder
from torch.nn.functional import cross_entropy

from benchmarks.common.config import Config
from benchmarks.common.engine import fit
from benchmarks.common.exits import exit_at_once
from benchmarks.common.loader import IMAGENET_MEAN, IMAGENET_STD, build_loaders, open_datasets
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank
from benchmarks.common.rows import read_table
from benchmarks.common.strategy import Layout, Strategy

CASES = [(1, 5), (2, 22), (3, 21), (4, 32)]
"""Ranks, and global batches whose last holds 3, 1, 2 and all images: some ranks have no share of it."""


def config_of(data, global_batch: int) -> Config:
    small = {"arch": "resnet18", "image_size": 32, "workers": 0, "steps": 2}
    return Config(data=str(data), global_batch=global_batch, warmup_steps=0, windows=1, window_steps=1, **small)


def evaluate(data, run_dir: Path, global_batch: int, rank: int, world_size: int) -> None:
    """One epoch with a step that trains nothing; how often this rank was asked for scores goes to calls-<rank>."""
    os.environ["RUN_DIR"] = str(run_dir)
    torch.set_num_threads(1)
    config, worker = config_of(data, global_batch), Rank(rank, rank, world_size, world_size)
    train, val = build_loaders(config, worker)
    num_classes = train.num_classes
    model = build_model(config, num_classes)
    for buffer in model.buffers():
        buffer += rank  # each rank's BatchNorm has statistics of its own; those of rank 0 count

    def step(images, target):
        return torch.zeros(()), torch.zeros(len(target), num_classes)

    def predict(images):
        with open(run_dir / f"calls-{rank}", "a") as file:
            file.write("x")
        return model(images)

    fields = {"optimizer": build_optimizer(config, model), "criterion": torch.nn.CrossEntropyLoss()}
    fields |= {"model": model, "train": train, "val": val, "layout": Layout(world_size)}
    fit(Strategy(config, worker, step=step, predict=predict, **fields))


def gloo_ranks(rank: int, data, results: Path) -> None:
    """All CASES in one process."""
    for number, (world_size, global_batch) in enumerate(CASES):
        if rank < world_size:
            store, limit = f"file://{results}/rendezvous-{number}", timedelta(seconds=120)
            dist.init_process_group("gloo", store, limit, rank=rank, world_size=world_size)
            evaluate(data, results / "logs" / f"case-{number}", global_batch, rank, world_size)
            dist.destroy_process_group()
    exit_at_once(0)


def plain_loop(data) -> dict:
    """The reference: one image at a time, without our loaders, meters and engine."""
    config = config_of(data, 5)
    _, images = open_datasets(config)
    model = build_model(config, 4).eval()
    mean, std = (torch.tensor(numbers).view(1, 3, 1, 1) for numbers in (IMAGENET_MEAN, IMAGENET_STD))
    loss, top1, num_images = 0.0, 0, len(images)
    for index in range(num_images):
        pixels = torch.empty(1, config.image_size, config.image_size, 3, dtype=torch.uint8)
        targets = images.read_into(pixels, [(0, 0, index)])
        with torch.no_grad():
            scores = model((pixels.permute(0, 3, 1, 2) / 255 - mean) / std)
        loss += cross_entropy(scores, torch.tensor(targets)).item()
        top1 += int(scores.argmax() == targets[0])
    assert 0 < top1 < num_images  # else a wrong accuracy could be right by chance
    return {"images": num_images, "loss": loss / num_images, "acc1": 100 * top1 / num_images}


@pytest.mark.launches
def test_ranks_evaluate_every_image_once(tiny_data, tmp_path):
    """No padding, no gap, no average of averages, and the same model on each."""
    for number in range(len(CASES)):
        make_run_folder(tmp_path / "logs" / f"case-{number}")
    mp.spawn(gloo_ranks, (tiny_data, tmp_path), nprocs=4, daemon=True)
    expected, rows = plain_loop(tiny_data), read_table(tmp_path, "epochs")
    for number, (world_size, global_batch) in enumerate(CASES):
        (row,) = rows[(rows["run_id"] == f"case-{number}") & (rows["phase"] == "val")].to_dict("records")
        assert row["images"] == expected["images"] == NUM_VAL
        assert row["acc1"] == pytest.approx(expected["acc1"], rel=1e-8)  # the CSV has nine digits
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        folder = tmp_path / "logs" / f"case-{number}"
        calls = [len((folder / f"calls-{rank}").read_text()) for rank in range(world_size)]
        assert calls == [math.ceil(NUM_VAL / global_batch)] * world_size
