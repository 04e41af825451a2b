"""Checkpoints: resumed, a run ends as if nothing had happened, to the last bit."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten_with_path

from benchmarks import single
from benchmarks.common import engine
from benchmarks.common.checkpoint import (
    compare_settings,
    fields_that_must_agree,
    load_checkpoint,
    save_checkpoint,
    trained_with,
)
from benchmarks.common.clock import Clock
from benchmarks.common.config import Config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.rank import Rank
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.strategy import Strategy

SMALL = {"arch": "resnet18", "image_size": 32, "global_batch": 4, "loader": "synthetic", "steps": 3, "workers": 0}
SMALL |= {"warmup_steps": 1, "windows": 1, "window_steps": 1}


pytestmark = pytest.mark.usefixtures("small_model")


@pytest.fixture
def checkpoints(tmp_path):
    return tmp_path / "check points"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_model):
    """(configuration, checkpoint) of a run to its end. Its folder holds last.pt and best.pt."""
    folder = tmp_path_factory.mktemp("trained")
    config = Config(**SMALL, memory_format="contiguous", checkpoint_dir=str(folder))  # as a run has resolved it
    fit(single.build(config))
    return config, torch.load(folder / "last.pt", weights_only=True)


# --- resumed runs ---------------------------------------------------------------------------------------------------


def with_dropout(config: Config) -> Strategy:
    """A strategy whose step draws a random number, as dropout does."""
    strategy = single.build(config)

    def step(images, target):
        torch.rand(1)
        return strategy.step(images, target)

    return dataclasses.replace(strategy, step=step)


def test_a_run_resumed_in_mid_epoch_ends_bit_identical_to_an_uninterrupted_one(tiny_data, checkpoints, capsys):
    """Weights, statistics, momenta, order, schedule, random numbers, and the loss of a whole epoch; from previous.pt,
    after last.pt was cut short."""
    config = Config(**SMALL | {"loader": "folder", "steps": 5}, data=str(tiny_data), epochs=2, lr_schedule="cosine")
    config = dataclasses.replace(config, checkpoint_dir=str(checkpoints), checkpoint_steps=4, checkpoint_keep=True)
    fit(with_dropout(config))
    kept = [f"epoch{epoch}-step{step}.pt" for epoch, step in ((0, 4), (1, 0), (1, 4), (2, 0))]
    assert sorted(path.name for path in checkpoints.glob("epoch*")) == kept
    last = checkpoints / "last.pt"
    expected = torch.load(last, weights_only=True)
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    with pytest.raises(UserError, match="--resume-from previous"):
        fit(single.build(dataclasses.replace(config, resume=True)))
    fit(with_dropout(dataclasses.replace(config, resume=True, resume_from="previous")))
    ours, theirs = (tree_flatten_with_path(state) for state in (torch.load(last, weights_only=True), expected))
    assert ours[1] == theirs[1] and len(expected["optimizer"]["state"]) == 6
    for (path, value), (_, other) in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, path
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch 1 train")]
    assert len(printed) == 2 and len({line.partition(" images")[0] for line in printed}) == 1, printed


def test_the_sums_of_a_resumed_epoch_come_in_once(trained, checkpoints):
    """What all ranks had summed is not added by each."""
    config, saved = trained
    save_checkpoint(checkpoints, "last.pt", saved | {"step": 2, "train_sums": torch.ones(4, dtype=torch.float64)})
    strategy = single.build(dataclasses.replace(config, checkpoint_dir=str(checkpoints), resume=True))
    for number in range(2):
        rank = Rank(number, number, 2, 2)
        of_rank = dataclasses.replace(strategy, rank=rank, all_reduce=lambda tensor: tensor)
        run = engine._Run(of_rank, Clock(rank.devices))
        assert run.resume() == (1, 2) and run.meter.sums.sum() == (0 if number else 4)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_spoiled_checkpoint_is_named_and_never_executed(tmp_path):
    """Promise 1 of SECURITY.md."""
    last = tmp_path / "last.pt"
    pickle_with_code = b"cos\nmkdir\n(S'" + str(tmp_path / "executed").encode() + b"'\ntR."
    torch.save({"weight": torch.zeros(3)}, last)
    for content in (last.read_bytes(), pickle_with_code):
        last.write_bytes(content)
        with pytest.raises(UserError, match=r"last\.pt.*--resume-from previous"):
            load_checkpoint(Config(checkpoint_dir=str(tmp_path), resume=True), 4)
    assert [*tmp_path.iterdir()] == [last]


def test_nothing_to_resume_is_a_beginning_and_no_folder_is_a_mistake(checkpoints):
    """Protects jobs that are requeued: the same command line starts and continues."""
    assert load_checkpoint(Config(checkpoint_dir=str(checkpoints), resume=True), 4) is None
    with pytest.raises(UserError, match="--checkpoint-dir"):
        load_checkpoint(Config(resume=True), 4)


def test_a_folder_that_is_in_use_or_cannot_be_written_is_found_before_training(trained, tmp_path):
    config, _ = trained
    (tmp_path / "file").touch()  # root can write anywhere but below a file
    for folder, named in ((config.checkpoint_dir, "--resume"), (tmp_path / "file" / "deeper", "--checkpoint-dir")):
        with pytest.raises(UserError, match=named):
            fit(single.build(dataclasses.replace(config, checkpoint_dir=str(folder))))


# --- what a run resumes from ----------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    parts = {key: {} for key in ("settings", "model", "optimizer", "extra")}
    save_checkpoint(tmp_path, "last.pt", parts | {"about": fields_that_must_agree(Config(), 4)})
    for changes, num_classes, named in (({"arch": "resnet34"}, 4, "resnet34"), ({}, 10, "num_classes 4")):
        with pytest.raises(UserError, match=named):
            load_checkpoint(Config(checkpoint_dir=str(tmp_path), resume=True, **changes), num_classes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0.2, "steps": 4}, "steps 4, not 3; lr 0.2, not 0.1"),
        ({"lr_schedule": "cosine", "epochs": 3}, "epochs 3, not 1"),
        ({"epochs": 3, "windows": 2, "workers": 2, "timeout_s": 9.0, "local_period": 2}, ""),
    ],
)
def test_a_training_goes_on_with_its_settings_unless_told_otherwise(trained, changes, named):
    config, saved = trained
    config = dataclasses.replace(config, resume=True, **changes)
    if named:
        with pytest.raises(UserError, match=f"{named}.*--resume-anyway"):
            compare_settings(Path("last.pt"), saved, config)
    assert named in compare_settings(Path("last.pt"), saved, dataclasses.replace(config, resume_anyway=True))


def test_a_training_goes_on_with_its_images(trained, tmp_path, monkeypatch):
    config, saved = trained
    monkeypatch.setenv("RUN_DIR", str(tmp_path))
    RunFolder(tmp_path).write_plan(config, {"fingerprint": "4-40-23-abc"})
    known = saved | {"settings": trained_with(config)}
    assert compare_settings(Path("last.pt"), known, config) == compare_settings(Path("last.pt"), saved, config) == ""
    RunFolder(tmp_path).write_plan(config, {"fingerprint": "4-41-23-def"})
    with pytest.raises(UserError, match="4-41-23-def, not 4-40-23-abc"):
        compare_settings(Path("last.pt"), known, config)
