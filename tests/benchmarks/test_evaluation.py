"""Exact evaluation: loss and accuracy over every image once, for any number of ranks, on real process groups.

    .venv/bin/python -m pytest tests/benchmarks/test_evaluation.py

This file is also the program of the ranks: `python tests/benchmarks/test_evaluation.py DATA RESULTS` under horovodrun.
"""

import math
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # for the ranks, which no pytest started


from benchmarks.common.config import Config  # noqa: E402
from benchmarks.common.engine import fit  # noqa: E402
from benchmarks.common.exits import exit_at_once  # noqa: E402
from benchmarks.common.loader import IMAGENET_MEAN, IMAGENET_STD, build_loaders, open_datasets  # noqa: E402
from benchmarks.common.model import build_model, build_optimizer  # noqa: E402
from benchmarks.common.rank import Rank  # noqa: E402
from benchmarks.common.rows import read_table  # noqa: E402
from benchmarks.common.strategy import Layout, Strategy, all_reduce_sum  # noqa: E402

CPU = torch.device("cpu")
# Ranks, global batch, images. The last batch holds 3, 1, 2, 3, 23 and 1 of them: some ranks have no share of it.
CASES = [(1, 5, 23), (2, 22, 23), (3, 21, 23), (4, 20, 23), (4, 32, 23), (2, 8, 17)]
IDS = [f"{world_size} ranks, batch {global_batch}, {images} images" for world_size, global_batch, images in CASES]


def config_of(data, global_batch: int) -> Config:
    """Two steps and one evaluation."""
    return Config(
        data=str(data),
        arch="resnet18",
        image_size=32,
        global_batch=global_batch,
        workers=0,
        steps=2,
        warmup_steps=0,
        windows=1,
        window_steps=1,
    )


def evaluate(data, run_dir: Path, global_batch: int, rank: int, world_size: int, reduce) -> None:
    """One epoch of the engine with a step that trains nothing; the evaluation's row goes to the set of run_dir, and
    how often this rank was asked for scores to calls-<rank> in it."""
    os.environ["RUN_DIR"] = str(run_dir)
    torch.set_num_threads(1)
    config, worker = config_of(data, global_batch), Rank(rank, rank, world_size, world_size)
    train, val = build_loaders(config, worker)
    num_classes = train.num_classes
    model = build_model(config, num_classes)

    def step(images, target):
        return torch.zeros(()), torch.zeros(len(target), num_classes)

    def predict(images):
        with open(run_dir / f"calls-{rank}", "a") as file:
            file.write("x")
        return model(images)

    strategy = Strategy(
        config,
        worker,
        model=model,
        optimizer=build_optimizer(config, model),
        train=train,
        val=val,
        criterion=torch.nn.CrossEntropyLoss(),
        step=step,
        layout=Layout(world_size),
        all_reduce=reduce,
        predict=predict,
    )
    fit(strategy)


def gloo_ranks(rank: int, folders: dict, results: Path) -> None:
    """All CASES in one process, one process group after the other: importing torch takes the longest here."""
    for number, (world_size, global_batch, images) in enumerate(CASES):
        if rank < world_size:
            store, limit = f"file://{results}/rendezvous-{number}", timedelta(seconds=120)
            dist.init_process_group("gloo", store, limit, rank=rank, world_size=world_size)
            evaluate(
                folders[images], results / "logs" / f"case-{number}", global_batch, rank, world_size, all_reduce_sum
            )
            dist.destroy_process_group()
    exit_at_once(0)


def val_row(results: Path, run_id: str) -> dict:
    """The evaluation's row of epochs.csv."""
    rows = read_table(results, "epochs")
    (row,) = rows[(rows["run_id"] == run_id) & (rows["phase"] == "val")].to_dict("records")
    return row


def plain_loop(data) -> dict:
    """The reference: a plain loop over the files, one image at a time, without our loaders, meters and engine."""
    config = config_of(data, 5)
    _, images = open_datasets(config)
    model = build_model(config, 4).eval()
    mean, std = (torch.tensor(numbers).view(1, 3, 1, 1) for numbers in (IMAGENET_MEAN, IMAGENET_STD))
    loss, top1, num_images = 0.0, 0, len(images)
    for index in range(num_images):
        pixels = torch.empty(1, config.image_size, config.image_size, 3, dtype=torch.uint8)
        targets, _, _ = images.read_into(pixels, [(0, 0, index)])
        with torch.no_grad():
            scores = model((pixels.permute(0, 3, 1, 2) / 255 - mean) / std)
        loss += cross_entropy(scores, torch.tensor(targets)).item()
        top1 += int(scores.argmax() == targets[0])
    assert 0 < top1 < num_images  # else a wrong accuracy could be right by chance
    return {"images": num_images, "loss": loss / num_images, "acc1": 100 * top1 / num_images}


@pytest.fixture(scope="module")
def folders(tiny_data, tmp_path_factory) -> dict:
    """Data sets by their number of validation images."""
    from support import draw_images  # the ranks under horovodrun have no tests/ on their path

    fewer = tmp_path_factory.mktemp("data") / "17 images"
    shutil.copytree(tiny_data / "train", fewer / "train")
    draw_images(fewer / "val", 17, seed=1)
    return {23: tiny_data, 17: fewer}


@pytest.fixture(scope="module")
def expected(folders) -> dict:
    return {num_images: plain_loop(data) for num_images, data in folders.items()}


@pytest.fixture(scope="module")
def of_gloo(folders, tmp_path_factory) -> Path:
    """The result set of all CASES, by 4 real processes."""
    from support import make_run_folder  # as above

    results = tmp_path_factory.mktemp("gloo") / "a set"
    for number in range(len(CASES)):
        make_run_folder(results / "logs" / f"case-{number}")
    mp.spawn(gloo_ranks, (folders, results), nprocs=4, daemon=True)
    return results


def assert_exact(row: dict, expected: dict) -> None:
    assert row["images"] == expected["images"]
    assert row["acc1"] == pytest.approx(expected["acc1"], rel=1e-8)  # the CSV has nine digits
    assert row["loss"] == pytest.approx(expected["loss"], rel=1e-6)


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
@pytest.mark.medium
def test_ranks_of_torch_distributed_evaluate_every_image_once(of_gloo, expected, number):
    """Protects validation against padding, gaps, and averages of averages. Seen to fail with a padding sampler."""
    assert_exact(val_row(of_gloo, f"case-{number}"), expected[CASES[number][2]])


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_every_rank_is_asked_for_scores_equally_often(of_gloo, number):
    """Protects a model whose forward pass is collective: a rank without images of a batch must not leave the others
    waiting. Seen to fail where evaluation ends with a rank's own images."""
    world_size, global_batch, images = CASES[number]
    calls = [len((of_gloo / "logs" / f"case-{number}" / f"calls-{rank}").read_text()) for rank in range(world_size)]
    assert calls == [math.ceil(images / global_batch)] * world_size


@pytest.mark.skipif(find_spec("horovod") is None, reason="needs Horovod: scripts/setup/horovod.sh")
@pytest.mark.medium
def test_ranks_of_horovod_evaluate_every_image_once(tiny_data, expected, tmp_path):
    """Protects the same under Horovod, whose allreduce returns the sum and leaves its argument alone."""
    from support import environment, make_run_folder  # as above

    make_run_folder(tmp_path / "logs" / "case")
    launch = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2"]
    done = subprocess.run(
        [*launch, sys.executable, __file__, str(tiny_data), str(tmp_path)],
        env=environment(OMP_NUM_THREADS=1, HOROVOD_GLOO_TIMEOUT_SECONDS=180),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_exact(val_row(tmp_path, "case"), expected[23])


def horovod_rank(data: str, results: Path) -> None:
    import horovod.torch as hvd

    hvd.init()
    run_dir = results / "logs" / "case"
    evaluate(data, run_dir, 22, hvd.rank(), hvd.size(), lambda tensor: hvd.allreduce(tensor, op=hvd.Sum))
    hvd.shutdown()


if __name__ == "__main__":
    horovod_rank(sys.argv[1], Path(sys.argv[2]))
