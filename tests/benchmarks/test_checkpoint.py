"""Checkpoints: killed at any moment and resumed, a run ends as if nothing had happened, to the last bit.

.venv/bin/python -m pytest tests/benchmarks/test_checkpoint.py
"""

import contextlib
import copy
import dataclasses
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import torch
from fault_runs import FAULTS
from support import ROOT, environment, make_run_folder

from benchmarks import single
from benchmarks.common.config.config import Config
from benchmarks.common.model.model_families import draw_model
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError
from benchmarks.common.train import checkpoint
from benchmarks.common.train.checkpoint import load_checkpoint, make_writable, save_checkpoint
from benchmarks.common.train.checkpoint_checks import compare_settings, fields_that_must_agree, problems, trained_with
from benchmarks.common.train.engine import fit
from scripts.runner import run_plan
from scripts.runner.processes import processes_of_run
from scripts.studies.allreduce.launch_ranks import torchrun_command

HOROVODRUN = ["-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2"]
STEPS = 6  # of an epoch; a run is killed in the middle of the first of two
WAITS = {"FAULT": "slow step=5", "SLOW_S": 300, "PYTHONPATH": FAULTS}  # until it is killed, after two checkpoints


@pytest.fixture(autouse=True)
def signals_as_before():
    """A run with checkpoints takes SIGTERM and SIGUSR1 for itself; here it runs in pytest's own process."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


@pytest.fixture
def checkpoints(tmp_path):
    """A folder for checkpoints of 90 MB each, which pytest would keep."""
    folder = tmp_path / "check points"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# --- a killed run -------------------------------------------------------------------------------------------------


def train(name: str, tiny_config, tiny_data, run_dir: Path, *flags, **faults) -> subprocess.Popen:
    """Start a strategy on real ranks, marked by RUN_DIR, as a launcher would."""
    make_run_folder(run_dir)
    start, variables = torchrun_command(2, run_dir)
    launch = {"single": [sys.executable], "horovod_ddp": [sys.executable, *HOROVODRUN, sys.executable]}
    command = [*launch.get(name, start), "-m", f"benchmarks.{name}", "--config", tiny_config, "--data", tiny_data]
    command += ["--global-batch", 4, "--steps", STEPS, "--lr-schedule", "cosine", *flags]
    env = environment(RUN_DIR=run_dir, OMP_NUM_THREADS=1, GLOO_SOCKET_IFNAME="lo", **variables, **faults)
    with open(run_dir / "run.log", "w") as log:
        return subprocess.Popen([str(word) for word in command], cwd=ROOT, env=env, stdout=log, stderr=log)


def kill_in_the_middle(process: subprocess.Popen, run_dir: Path, folder: Path) -> None:
    """SIGKILL to every process of the run, as soon as it has written its second checkpoint: the first is previous.pt
    then, and no file of another name is about to become last.pt."""
    try:
        deadline = time.monotonic() + 200
        while not (folder / "previous.pt").exists() or [*folder.glob(".*.pt.*")]:
            assert process.poll() is None and time.monotonic() < deadline, (run_dir / "run.log").read_text()
            time.sleep(0.01)
    finally:
        while alive := processes_of_run(run_dir):
            for each in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()


def tensors(value, path="") -> dict[str, torch.Tensor]:
    """Every tensor in nested dictionaries and lists, by its path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {name: tensor for key, inner in items for name, tensor in tensors(inner, f"{path}/{key}").items()}


@pytest.mark.parametrize(
    "name", ["single", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "horovod_ddp"))]
)
def test_a_killed_and_resumed_run_ends_bit_identical_to_an_uninterrupted_one(
    name, tiny_config, tiny_data, tmp_path, checkpoints
):
    """Protects what a long training is worth after a crash: weights, statistics, momenta, order, schedule.

    Seen to fail without the optimizer's state in the checkpoint, and with the resumed epoch started at step 0.
    """
    if name == "horovod_ddp" and not find_spec("horovod"):
        pytest.skip("needs Horovod: scripts/setup/install_horovod.sh")
    broken, whole = checkpoints / "broken", checkpoints / "whole"
    logs = tmp_path / "a set" / "logs"

    killed = train(
        name, tiny_config, tiny_data, logs / "killed", "--checkpoint-dir", broken, "--checkpoint-steps", 2, **WAITS
    )
    kill_in_the_middle(killed, logs / "killed", broken)
    state = torch.load(broken / "last.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 5)

    runs = [
        train(name, tiny_config, tiny_data, logs / "resumed", "--checkpoint-dir", broken, "--resume"),
        train(name, tiny_config, tiny_data, logs / "whole", "--checkpoint-dir", whole),
    ]
    for run, label in zip(runs, ("resumed", "whole"), strict=True):
        assert run.wait(300) == 0, (logs / label / "run.log").read_text()
    assert f"resumed at step {state['step']} of epoch 0" in (logs / "resumed" / "run.log").read_text()
    resumed, expected = (torch.load(folder / "last.pt", weights_only=True) for folder in (broken, whole))
    assert (resumed["epoch"], resumed["step"]) == (expected["epoch"], expected["step"]) == (2, 0)
    assert resumed["best_acc1"] == expected["best_acc1"]
    ours, theirs = tensors(resumed), tensors(expected)
    assert ours.keys() == theirs.keys()
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert "/model/layer4.1.bn2.running_var" in ours and "/optimizer/state/0/momentum_buffer" in ours


# --- files --------------------------------------------------------------------------------------------------------


def small_state(number: float) -> dict:
    """A state of 8 MB that shows whether it is whole: all its numbers are equal."""
    return {"about": fields_that_must_agree(Config(), 4), "model": {"weight": torch.full((2_000_000,), float(number))}}


def keep_saving(folder: Path) -> None:
    for number in range(1, 10_000):
        save_checkpoint(folder, "last.pt", small_state(number))


def half_written(folder: Path) -> list[Path]:
    """Files of checkpoints whose writing has not come to its end."""
    return [*folder.glob(".*.pt.*")]


def test_a_kill_during_a_write_leaves_a_whole_checkpoint(checkpoints):
    """Protects the only copy of days of training. The temporary file left behind shows that the kill hit a write."""
    config = Config(checkpoint_dir=str(checkpoints), resume=True)
    draw, hits = random.Random(0), 0
    save_checkpoint(checkpoints, "last.pt", small_state(0))
    for _ in range(8):
        writer = multiprocessing.get_context("fork").Process(target=keep_saving, args=[checkpoints])
        writer.start()
        while not (checkpoints / "previous.pt").exists() or not half_written(checkpoints):
            assert writer.is_alive()
        time.sleep(draw.uniform(0, 0.01))
        writer.kill()
        writer.join()
        hits += len(half_written(checkpoints)) > 0
        for name in ("last", "previous"):
            state = load_checkpoint(dataclasses.replace(config, resume_from=name), 4)
            assert len(state["model"]["weight"].unique()) == 1
        (checkpoints / "previous.pt").unlink()
    assert hits > 0
    with contextlib.ExitStack() as held:
        make_writable(checkpoints, held)  # the next run: what killed writers left does not add up
    assert not half_written(checkpoints) and (checkpoints / "last.pt").exists()


def hold(folder: Path, reported) -> None:
    with contextlib.ExitStack() as held:
        make_writable(folder, held)
        reported.send("held")
        reported.recv()


def test_two_runs_do_not_write_into_one_folder(checkpoints, monkeypatch):
    """Protects the checkpoint of a run in progress: another run would write over it, and take the file that is being
    written for what a killed run has left."""
    monkeypatch.setattr(checkpoint, "CLAIM_LIMIT_S", 0.2)
    ours, theirs = multiprocessing.Pipe()
    first = multiprocessing.get_context("fork").Process(target=hold, args=[checkpoints, theirs])
    first.start()
    assert ours.recv() == "held"
    (checkpoints / f".last.pt.{'0' * 16}").touch()
    with contextlib.ExitStack() as held, pytest.raises(UserError, match="another run is writing checkpoints in"):
        make_writable(checkpoints, held)
    assert half_written(checkpoints)
    ours.send("go")
    first.join()
    with contextlib.ExitStack() as held:
        make_writable(checkpoints, held)
    assert not half_written(checkpoints)


def test_a_folder_that_another_run_has_filled_meanwhile_is_refused(checkpoints, monkeypatch):
    """Protects the checkpoints of a run that ends while another one waits for its folder. Mutant: one look, before the
    wait."""
    make_writable_at_once = checkpoint.make_writable

    def after_the_end_of_another_run(folder, held):
        save_checkpoint(folder, "last.pt", small_state(1))
        make_writable_at_once(folder, held)

    monkeypatch.setattr(checkpoint, "make_writable", after_the_end_of_another_run)
    with pytest.raises(UserError, match="holds checkpoints of an earlier run"):
        fit(single.build(Config(**SMALL, checkpoint_dir=str(checkpoints))))


@pytest.mark.parametrize(("about", "best_acc1"), [({}, 50.75), ({"arch": "resnet50"}, 0.0)])
def test_a_resumed_run_keeps_the_better_best_of_its_folder(trained, checkpoints, capsys, about, best_acc1):
    """Protects best.pt from a worse one: it may be of an epoch after the checkpoint that is resumed. One of another
    model says nothing. Mutants: the accuracy in the resumed checkpoint alone; any best.pt."""
    config, saved = trained  # on synthetic images, where each epoch has a top-1 of 0
    save_checkpoint(checkpoints, "last.pt", saved | {"best_acc1": 0.0})
    save_checkpoint(checkpoints, "best.pt", saved | {"best_acc1": 50.75, "about": saved["about"] | about})
    fit(single.build(dataclasses.replace(config, checkpoint_dir=str(checkpoints), resume=True, epochs=2)))
    for name in ("last.pt", "best.pt"):
        assert torch.load(checkpoints / name, weights_only=True)["best_acc1"] == best_acc1
    said = "best.pt stays until an epoch reaches its top-1, 50.75 %; the resumed checkpoint knew of 0.00 %"
    assert (said in capsys.readouterr().out) == bool(best_acc1)


def test_a_run_with_nothing_to_resume_keeps_the_better_best_of_its_folder(trained, checkpoints, capsys):
    """Protects best.pt where last.pt was lost: --resume then trains from the beginning. Mutant: the file on the disk is
    read only where there is a checkpoint to resume."""
    config, saved = trained  # on synthetic images, where each epoch has a top-1 of 0
    save_checkpoint(checkpoints, "best.pt", saved | {"best_acc1": 50.75})
    fit(single.build(dataclasses.replace(config, checkpoint_dir=str(checkpoints), resume=True)))
    assert torch.load(checkpoints / "best.pt", weights_only=True)["best_acc1"] == 50.75
    assert "reaches its top-1, 50.75 %; there is no checkpoint to resume" in capsys.readouterr().out


def test_the_checkpoint_before_the_last_is_kept(checkpoints):
    """Protects --resume-from previous; best.pt has no such history."""
    for number in (1, 2, 3):
        save_checkpoint(checkpoints, "last.pt", small_state(number))
        save_checkpoint(checkpoints, "best.pt", small_state(number))
    assert {path.name for path in checkpoints.iterdir()} == {"last.pt", "previous.pt", "best.pt"}
    for name, number in (("last", 3), ("previous", 2), ("best", 3)):
        config = Config(checkpoint_dir=str(checkpoints), resume=True, resume_from=name)
        assert load_checkpoint(config, 4)["model"]["weight"][0] == number


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("these are not the weights you are looking for\n")


def pickle_with_code(path: Path) -> None:
    victim = path.parent / "executed"
    path.write_bytes(b"cos\nmkdir\n(S'" + str(victim).encode() + b"'\ntR.")


def weights_alone(path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, path)


def a_list(path: Path) -> None:
    torch.save([1, 2], path)


def about_a_number(path: Path) -> None:
    torch.save({"model": {}, "about": 3}, path)


@pytest.mark.parametrize(
    "spoil", [truncated, empty, text, pickle_with_code, weights_alone, a_list, about_a_number], ids=lambda f: f.__name__
)
def test_a_spoiled_checkpoint_is_refused_with_the_way_out_and_never_executed(checkpoints, spoil):
    """Protects the user after a crash: the message names the file and the one before, which then works."""
    for number in (1, 2):
        save_checkpoint(checkpoints, "last.pt", small_state(number))
    spoil(checkpoints / "last.pt")
    config = Config(checkpoint_dir=str(checkpoints), resume=True)
    with pytest.raises(UserError) as error:
        load_checkpoint(config, 4)
    message = str(error.value)
    assert str(checkpoints / "last.pt") in message and "use --resume-from previous for the one before" in message
    assert "\n" not in message and not (checkpoints / "executed").exists()
    state = load_checkpoint(dataclasses.replace(config, resume_from="previous"), 4)
    assert state["model"]["weight"][0] == 1


@pytest.mark.parametrize("name", ["previous", "best"])
def test_the_way_out_of_another_checkpoint_than_the_last_one_is_the_last_one(checkpoints, name):
    """Protects the user of --resume-from previous, whom the message sent to last.pt as "the one before"."""
    checkpoints.mkdir()
    text(checkpoints / f"{name}.pt")
    with pytest.raises(UserError, match="use --resume-from last, or start without --resume"):
        load_checkpoint(Config(checkpoint_dir=str(checkpoints), resume=True, resume_from=name), 4)


def test_a_checkpoint_with_flipped_bytes_is_loaded_or_refused(checkpoints):
    """Protects against a traceback from a bad disk: whatever is in the file, a state comes back or a UserError."""
    save_checkpoint(
        checkpoints, "last.pt", {"about": fields_that_must_agree(Config(), 4), "model": {"weight": torch.zeros(9)}}
    )
    content = (checkpoints / "last.pt").read_bytes()
    draw, refused = random.Random(0), 0
    for _ in range(300):
        spoiled = bytearray(content)
        for _ in range(draw.randint(1, 20)):
            spoiled[draw.randrange(len(spoiled))] = draw.randrange(256)
        (checkpoints / "last.pt").write_bytes(spoiled[: draw.choice([len(spoiled), draw.randrange(len(spoiled))])])
        try:
            load_checkpoint(Config(checkpoint_dir=str(checkpoints), resume=True), 4)
        except UserError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "changes, num_classes, words",
    [
        ({"arch": "resnet34"}, 4, "was trained with arch resnet50, but this run has arch resnet34"),
        ({"norm": "group"}, 4, "was trained with norm batch, but this run has norm group"),
        ({"global_batch": 8}, 4, "was trained with global_batch 256, but this run has global_batch 8"),
        ({"seed": 1}, 4, "was trained with seed 0, but this run has seed 1"),
        ({}, 10, "was trained with num_classes 4, but this run has num_classes 10"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(checkpoints, changes, num_classes, words):
    """Protects against training on that is neither the old run nor a new one."""
    save_checkpoint(checkpoints, "last.pt", small_state(1))
    with pytest.raises(UserError, match=words):
        load_checkpoint(Config(checkpoint_dir=str(checkpoints), resume=True, **changes), num_classes)


def test_nothing_to_resume_is_a_beginning_and_no_folder_is_a_mistake(checkpoints, capsys):
    """Protects jobs that are requeued: the same command line starts and continues."""
    assert load_checkpoint(Config(checkpoint_dir=str(checkpoints)), 4) is None
    assert load_checkpoint(Config(checkpoint_dir=str(checkpoints), resume=True), 4) is None
    assert "nothing to resume" in capsys.readouterr().out
    with pytest.raises(UserError, match="resume needs --checkpoint-dir"):
        load_checkpoint(Config(resume=True), 4)


def test_a_folder_that_cannot_be_written_is_a_users_error(tmp_path):
    """Protects the reader of the message; root can write anywhere but below a file and into /proc."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "deeper", Path("/proc/self/checkpoints")):
        with pytest.raises(UserError, match=r"cannot write the checkpoint .*; the one before is kept"):
            save_checkpoint(folder, "last.pt", small_state(1))


@pytest.mark.medium
def test_after_a_truncated_checkpoint_training_goes_on_from_the_one_before(tiny_data, checkpoints):
    """The same through a whole script. Protects that `previous` is a full state, and best.pt plain weights."""
    config = Config(
        data=str(tiny_data),
        arch="resnet18",
        image_size=32,
        global_batch=8,
        workers=0,
        epochs=2,
        lr=0.1,
        warmup_steps=1,
        windows=1,
        window_steps=1,
        checkpoint_dir=str(checkpoints),
        checkpoint_steps=4,
        checkpoint_keep=True,
    )
    fit(single.build(config))
    kept = [f"epoch{epoch}-step{step}.pt" for epoch, step in ((0, 4), (1, 0), (1, 4), (2, 0))]
    assert sorted(path.name for path in checkpoints.glob("epoch*")) == kept
    expected = torch.load(checkpoints / "last.pt", weights_only=True)
    best = torch.load(checkpoints / "best.pt", weights_only=True)["model"]
    assert best["fc.weight"].shape == (4, 512)
    truncated(checkpoints / "last.pt")
    with pytest.raises(UserError, match="is truncated or foreign"):
        fit(single.build(dataclasses.replace(config, resume=True)))
    fit(single.build(dataclasses.replace(config, resume=True, resume_from="previous")))
    resumed = torch.load(checkpoints / "last.pt", weights_only=True)
    ours, theirs = tensors(resumed), tensors(expected)
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []


# --- a folder of its own ------------------------------------------------------------------------------------------

SMALL = {
    "arch": "resnet18",
    "image_size": 32,
    "global_batch": 4,
    "loader": "synthetic",
    "steps": 3,
    "workers": 0,
    "warmup_steps": 1,
    "windows": 1,
    "window_steps": 1,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(configuration, checkpoint) of a run to its end. Its folder holds last.pt and best.pt."""
    folder = tmp_path_factory.mktemp("trained")
    config = Config(**SMALL, checkpoint_dir=str(folder))
    fit(single.build(config))
    yield config, torch.load(folder / "last.pt", weights_only=True)
    shutil.rmtree(folder)


def test_a_second_run_does_not_replace_what_the_first_has_kept(trained):
    """Protects best.pt, which a worse run replaced, since it knew of no better one."""
    config, _ = trained
    before = {path.name: path.stat().st_mtime_ns for path in Path(config.checkpoint_dir).iterdir()}
    with pytest.raises(UserError, match="holds checkpoints of an earlier run; add --resume to go on from them, or"):
        fit(single.build(config))
    assert before == {path.name: path.stat().st_mtime_ns for path in Path(config.checkpoint_dir).iterdir()}


def test_each_run_of_a_plan_has_a_folder_of_its_own(tmp_path, monkeypatch):
    """Protects strategies, rounds and settings from each other's checkpoints; what is counted as settings is not
    touched. A job that was put back into the queue resumes, though nobody has typed it."""
    monkeypatch.setenv("NUM_GPUS", "0")
    monkeypatch.setenv("NPROC", "2")
    variables = run_plan.read_variables()
    config = Config(**SMALL, checkpoint_dir=str(tmp_path))
    others = [config, dataclasses.replace(config, lr=0.2)]

    def of_round(number):
        templates = [run_plan.RunTemplate(name, each) for name in ("single", "ddp") for each in others]
        return [run_plan.make_run(variables, template, number) for template in templates]

    runs = run_plan.order_rounds(dataclasses.replace(variables, repeats=2), of_round)
    folders = {Path(run.config.checkpoint_dir).relative_to(tmp_path).as_posix() for run in runs}
    assert len(folders) == len(runs) == 8 and folders > {"single-1", "single-2", "ddp-1", "ddp-2"}
    assert all(run.requested["checkpoint_dir"] == run.config.checkpoint_dir and not run.config.resume for run in runs)
    plain = [
        run_plan.make_run(
            variables,
            run_plan.RunTemplate(run.strategy, dataclasses.replace(run.config, checkpoint_dir="")),
            run.round,
        )
        for run in runs
    ]
    assert [run.key for run in runs] == [run.key for run in plain]
    monkeypatch.setenv("ALLOCATION", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert run_plan.make_run(variables, run_plan.RunTemplate("single", config)).config.resume


def test_checkpoints_from_before_runs_had_folders_are_found(checkpoints, tmp_path, monkeypatch):
    """Protects trainings that an older suite began, in the folder above; only where a launcher has started the run."""
    save_checkpoint(checkpoints, "last.pt", small_state(3))
    config = Config(checkpoint_dir=str(checkpoints / "ddp-1"), resume=True)
    assert load_checkpoint(config, 4) is None
    monkeypatch.setenv("RUN_DIR", str(make_run_folder(tmp_path / "run")))
    assert load_checkpoint(config, 4)["model"]["weight"][0] == 3
    save_checkpoint(checkpoints / "ddp-1", "last.pt", small_state(4))
    assert load_checkpoint(config, 4)["model"]["weight"][0] == 4


def test_a_folder_that_cannot_be_written_is_found_before_training(tmp_path):
    """Protects the first epoch; root can write anywhere but below a file and into /proc."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "deeper", Path("/proc/self/checkpoints")):
        with pytest.raises(UserError, match=r"cannot write checkpoints in .*; choose another --checkpoint-dir"):
            fit(single.build(Config(**SMALL, checkpoint_dir=str(folder))))


def test_a_runs_folder_that_is_a_link_is_refused(tmp_path):
    """Protects another folder from what somebody else's checkpoint folder leads to. Mutant: no look."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="is a link; no checkpoint is written through one"):
        fit(single.build(Config(**SMALL, checkpoint_dir=str(tmp_path / "checkpoints"))))
    assert not [*(tmp_path / "outside").iterdir()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
@pytest.mark.parametrize("place", [".", ".."])
def test_no_checkpoint_is_written_where_another_user_could_replace_the_folder(checkpoints, place):
    """Protects the user's own files: another user had made the folder, or the one above it, and put a link in its place
    while the run trained. Mutants: no look; a look at the folder alone."""
    (folder := checkpoints / "single-1").mkdir(parents=True)
    os.chown(folder / place, 12345, -1)
    expected = rf"{re.escape(checkpoints.name)}.* belongs to another user \(12345\); choose another --checkpoint-dir"
    with pytest.raises(UserError, match=expected), contextlib.ExitStack() as held:
        make_writable(folder, held)
    assert not [*folder.iterdir()]


def test_a_link_among_checkpoints_is_not_copied(checkpoints):
    """Protects the user's own files: a folder of somebody else's has last.pt as a link to one, and a previous.pt that
    can be resumed, and the next save copied the file over previous.pt, where others read it. Mutants: no look before
    the first step; copy_whole follows a link."""
    checkpoints.mkdir()
    private = checkpoints.parent / "private"
    private.write_text("a key")
    (checkpoints / "last.pt").symlink_to(private)
    with pytest.raises(UserError, match=r"last.pt is a link, and no link is copied"), contextlib.ExitStack() as held:
        make_writable(checkpoints, held)
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        save_checkpoint(checkpoints, "last.pt", small_state(1))
    assert not (checkpoints / "previous.pt").exists()


def test_a_pipe_among_checkpoints_is_refused(checkpoints):
    """Protects a run from a save that never ends: it would copy the pipe, for which no one writes. Mutant: no look."""
    checkpoints.mkdir()
    os.mkfifo(checkpoints / "last.pt")
    with pytest.raises(UserError, match=r"last.pt is not a regular file"), contextlib.ExitStack() as held:
        make_writable(checkpoints, held)


def test_no_file_of_a_folder_is_a_link_to_another(checkpoints):
    """Protects file systems without links, and previous.pt from what happens to last.pt."""
    for number in (1, 2):
        save_checkpoint(checkpoints, "last.pt", small_state(number), f"epoch{number}-step0.pt")
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "epoch1-step0.pt",
        "epoch2-step0.pt",
        "last.pt",
        "previous.pt",
    ]
    assert all(path.stat().st_nlink == 1 and not path.is_symlink() for path in checkpoints.iterdir())


# --- what a run resumes from --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.2}, "this run has lr 0.2, not 0.1"),
        (
            {"precision": "tf32", "lr_schedule": "cosine"},
            "this run has precision tf32, not fp32; lr_schedule cosine, not",
        ),
        ({"steps": 4}, "this run has steps 4, not 3"),
        ({"loader": "folder"}, "this run has loader folder, not synthetic"),
        ({"epochs": 3, "windows": 2, "workers": 2, "timeout_s": 9.0, "limit_s": 1.0, "local_period": 2}, ""),
    ],
)
def test_a_training_goes_on_with_its_settings(trained, changes, words, capsys):
    """Protects the weights at the end from being of two trainings without a word. --resume-anyway goes on."""
    config, saved = trained
    config = dataclasses.replace(config, resume=True, **changes)
    path = Path("last.pt")
    if not words:
        assert compare_settings(path, saved, config) == ""
        return
    with pytest.raises(UserError, match=f"{words}.*or add --resume-anyway"):
        compare_settings(path, saved, config)
    found = compare_settings(path, saved, dataclasses.replace(config, resume_anyway=True))
    assert words.removeprefix("this run has ") in found


def test_a_training_goes_on_with_its_images(trained, tmp_path, monkeypatch, capsys):
    """Protects the same: other images have another fingerprint, which a launcher has told; where nobody has, and in
    checkpoints of an older suite, there is nothing to compare, and the latter is said."""
    config, saved = trained
    config = dataclasses.replace(config, resume=True)
    folder = RunFolder(tmp_path)
    folder.write_requested(config, {"fingerprint": "4-40-23-abc"})
    monkeypatch.setenv("RUN_DIR", str(tmp_path))
    path, known = Path("last.pt"), saved | {"settings": trained_with(config)}
    assert compare_settings(path, known, config) == compare_settings(path, saved, config) == ""
    folder.write_requested(config, {"fingerprint": "4-41-23-def"})
    with pytest.raises(UserError, match="this run has fingerprint 4-41-23-def, not 4-40-23-abc"):
        compare_settings(path, known, config)
    assert capsys.readouterr().out == ""
    assert compare_settings(path, {"model": {}}, config) == ""
    assert "does not say what it was trained with" in capsys.readouterr().out


@pytest.mark.medium
def test_a_run_that_resumes_anyway_says_so_in_its_row(trained, tmp_path, monkeypatch):
    """Protects the reader of an ok row; momentum is of the run, and not of the checkpoint."""
    config, _ = trained
    folder = shutil.copytree(config.checkpoint_dir, tmp_path / "ck")
    monkeypatch.setenv("RUN_DIR", str(make_run_folder(tmp_path / "set" / "logs" / "run")))
    changes = {"momentum": 0.5, "epochs": 2, "resume": True, "resume_anyway": True}
    fit(single.build(dataclasses.replace(config, checkpoint_dir=str(folder), **changes)))
    assert RunFolder.current().summary()["row"]["reason"] == "resumed with other settings: momentum 0.5, not 0.9"
    assert torch.load(folder / "last.pt", weights_only=True)["optimizer"]["param_groups"][0]["momentum"] == 0.5
    shutil.rmtree(folder)


def with_model(name, change):
    def spoil(saved):
        saved["model"][name] = change(saved["model"][name])

    return spoil


def with_values(**values):
    return lambda saved: saved.update(values)


IMPOSSIBLE = {
    "NaN weights": (
        with_model("fc.weight", lambda weight: weight * math.nan),
        "model/fc.weight holds values that are not",
    ),
    "infinite momentum": (
        lambda saved: saved["optimizer"]["state"][3]["momentum_buffer"].fill_(math.inf),
        "optimizer/state/3/momentum_buffer holds values that are not finite",
    ),
    "epoch -5": (with_values(epoch=-5), "its epoch is -5, and must be a number from 0;"),
    "epoch in words": (with_values(epoch="one"), "its epoch is 'one', and must be"),
    "a step beyond the epoch": (with_values(step=4), "its step is 4, and must be a number from 0 to 3"),
    "no step": (lambda saved: saved.pop("step"), "its step is None, and must be"),
    "best_acc1 in words": (with_values(best_acc1="high"), "its best_acc1 is 'high', and must be"),
    "sums of another shape": (with_values(train_sums=torch.zeros(3)), "its train_sums must be torch.float64 of shape"),
    "no generator": (with_values(random=7), "its random must be torch.uint8"),
    "no extra": (lambda saved: saved.pop("extra"), "its extra must be a dictionary"),
    "a missing layer": (lambda saved: saved["model"].pop("layer3.0.conv1.weight"), "layer3.0.conv1.weight are missing"),
    "an unknown layer": (
        lambda saved: saved["model"].update(w=torch.ones(1)),
        "the weights 'w' are none of resnet18's",
    ),
    "another shape": (
        with_model("fc.weight", lambda weight: weight[:5]),
        "fc.weight is torch.float32 (5, 512), and must",
    ),
    "another type": (with_model("conv1.weight", lambda weight: weight.half()), "conv1.weight is torch.float16"),
    "text for weights": (with_model("fc.bias", lambda weight: "0"), "fc.bias is str, and must be torch.float32"),
    "a model of text": (with_values(model="resnet18"), "its model is a str, and must be"),
    "no optimizer": (lambda saved: saved.pop("optimizer"), "its optimizer must be a dictionary"),
    "momentum of another shape": (
        lambda saved: saved["optimizer"]["state"][0].update(momentum_buffer=torch.ones(2)),
        "the momentum_buffer of parameter 0 is (2,), and must be (64, 3, 7, 7)",
    ),
    "an optimizer of more layers": (
        lambda saved: saved["optimizer"]["state"].update({62: {}}),
        "its optimizer's state 62 is of no parameter",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_checkpoint_is_one_line_and_nothing_of_it_is_taken_up(trained, name):
    """Protects a training from starting with half of a state, and its user from a traceback."""
    config, saved = trained
    spoil, words = IMPOSSIBLE[name]
    saved = copy.deepcopy(saved)
    with torch.device("meta"):
        model = draw_model(config, 1000)
    assert list(problems(saved, model, 3, config)) == []
    spoil(saved)
    found = next(problems(saved, model, 3, config))
    assert words.rstrip(";") in found and "\n" not in found


def test_an_impossible_checkpoint_ends_a_run_before_it_trains(trained, tmp_path):
    """The same through a whole script."""
    config, saved = trained
    save_checkpoint(tmp_path / "ck", "last.pt", saved | {"epoch": -5})
    with pytest.raises(UserError, match=r"last.pt: its epoch is -5, .*; use --resume-from previous for the one before"):
        fit(single.build(dataclasses.replace(config, checkpoint_dir=str(tmp_path / "ck"), resume=True)))
    shutil.rmtree(tmp_path / "ck")
