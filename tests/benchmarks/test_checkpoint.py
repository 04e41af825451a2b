"""Checkpoints: killed at any moment and resumed, a run ends as if nothing had happened, to the last bit.

.venv/bin/python -m pytest tests/benchmarks/test_checkpoint.py
"""

import contextlib
import dataclasses
import multiprocessing
import random
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
from support import ROOT, asked, environment, make_run_folder

from benchmarks import single
from benchmarks.common.checkpoint import (
    compare_settings,
    fields_that_must_agree,
    load_checkpoint,
    make_writable,
    save_checkpoint,
    trained_with,
)
from benchmarks.common.config import Config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.run_folder import RunFolder
from scripts.runner import plan
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
        pytest.skip("needs Horovod: scripts/setup/horovod.sh")
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
    parts = {key: {} for key in ("settings", "optimizer", "extra")}
    weights = {"weight": torch.full((2_000_000,), float(number))}
    return {"about": fields_that_must_agree(Config(), 4), "model": weights, **parts}


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
    make_writable(checkpoints)  # the next run: what killed writers left does not add up
    assert not half_written(checkpoints) and (checkpoints / "last.pt").exists()


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


def pickle_with_code(path: Path) -> None:
    victim = path.parent / "executed"
    path.write_bytes(b"cos\nmkdir\n(S'" + str(victim).encode() + b"'\ntR.")


def weights_alone(path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, path)


@pytest.mark.parametrize("spoil", [truncated, pickle_with_code, weights_alone], ids=lambda f: f.__name__)
def test_a_spoiled_checkpoint_is_refused_with_the_way_out_and_never_executed(checkpoints, spoil):
    """Protects the user after a crash: the message names the file and the one before, which then works. A pickle with
    code in it is promise 1 of SECURITY.md."""
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


@pytest.mark.parametrize(
    "changes, num_classes, words",
    [
        ({"arch": "resnet34"}, 4, "was trained with arch resnet50, but this run has arch resnet34"),
        ({"global_batch": 8}, 4, "was trained with global_batch 256, but this run has global_batch 8"),
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
    config = Config(**SMALL, memory_format="contiguous", checkpoint_dir=str(folder))  # as a run has resolved it
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
    variables = asked()
    config = Config(**SMALL, checkpoint_dir=str(tmp_path))
    others = [config, dataclasses.replace(config, lr=0.2)]

    def of_round(number):
        templates = [plan.RunTemplate(name, each) for name in ("single", "ddp") for each in others]
        return [plan.make_run(variables, template, number) for template in templates]

    runs = plan.order_rounds(dataclasses.replace(variables, repeats=2), of_round)
    folders = {Path(run.config.checkpoint_dir).relative_to(tmp_path).as_posix() for run in runs}
    assert len(folders) == len(runs) == 8 and folders > {"single-1", "single-2", "ddp-1", "ddp-2"}
    assert all(run.requested["checkpoint_dir"] == run.config.checkpoint_dir and not run.config.resume for run in runs)
    plain = [
        plan.make_run(
            variables,
            plan.RunTemplate(run.strategy, dataclasses.replace(run.config, checkpoint_dir="")),
            run.round,
        )
        for run in runs
    ]
    assert [run.key for run in runs] == [run.key for run in plain]
    monkeypatch.setenv("ALLOCATION", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert plan.make_run(variables, plan.RunTemplate("single", config)).config.resume


def test_a_folder_that_cannot_be_written_is_found_before_training(tmp_path):
    """Protects the first epoch; root can write anywhere but below a file and into /proc."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "deeper", Path("/proc/self/checkpoints")):
        with pytest.raises(UserError, match=r"cannot write checkpoints in .*; choose another --checkpoint-dir"):
            fit(single.build(Config(**SMALL, checkpoint_dir=str(folder))))


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


def test_a_training_goes_on_with_its_images(trained, tmp_path, monkeypatch):
    """Protects the same: other images have another fingerprint, which a launcher has told; where nobody has, there is
    nothing to compare."""
    config, saved = trained
    config = dataclasses.replace(config, resume=True)
    folder = RunFolder(tmp_path)
    folder.write_plan(config, {"fingerprint": "4-40-23-abc"})
    monkeypatch.setenv("RUN_DIR", str(tmp_path))
    path, known = Path("last.pt"), saved | {"settings": trained_with(config)}
    assert compare_settings(path, known, config) == compare_settings(path, saved, config) == ""
    folder.write_plan(config, {"fingerprint": "4-41-23-def"})
    with pytest.raises(UserError, match="this run has fingerprint 4-41-23-def, not 4-40-23-abc"):
        compare_settings(path, known, config)


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


def test_more_epochs_under_a_cosine_are_said_in_the_row_and_on_the_terminal(tmp_path, monkeypatch, capsys):
    """Every later learning rate is another than in one training of as many epochs."""
    folder = tmp_path / "ck"
    config = Config(**SMALL, memory_format="contiguous", lr_schedule="cosine", epochs=1, checkpoint_dir=str(folder))
    fit(single.build(config))
    monkeypatch.setenv("RUN_DIR", str(make_run_folder(tmp_path / "set" / "logs" / "run")))
    fit(single.build(dataclasses.replace(config, epochs=2, resume=True)))
    said = "resumed with 2 epochs, not 1: the cosine ends later"
    assert RunFolder.current().summary()["row"]["reason"].startswith(said) and said in capsys.readouterr().out
    shutil.rmtree(folder)


def test_batch_norm_on_single_values_is_refused_before_the_first_step(tmp_path):
    """One image of 32 px is one value a channel in ResNet's last layers; torch's traceback names neither."""
    config = Config(**(SMALL | {"global_batch": 1}))
    with pytest.raises(
        UserError, match=r"each part of a step is one image of 32 px.*larger --global-batch.*--norm group"
    ):
        fit(single.build(config))
    fit(single.build(dataclasses.replace(config, norm="group", steps=2)))


def test_a_checkpoint_whose_state_does_not_fit_is_one_line(trained, tmp_path):
    """Protects the user who resumes with another strategy's or a damaged checkpoint from a traceback."""
    config, saved = trained
    weights = {name: tensor for name, tensor in saved["model"].items() if name != "fc.weight"}
    save_checkpoint(tmp_path / "ck", "last.pt", saved | {"model": weights})
    with pytest.raises(UserError, match=r"the checkpoint's state does not fit .*; resume it with the strategy that"):
        fit(single.build(dataclasses.replace(config, checkpoint_dir=str(tmp_path / "ck"), resume=True)))
    shutil.rmtree(tmp_path / "ck")
