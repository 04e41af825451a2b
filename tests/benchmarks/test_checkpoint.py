"""Checkpoints: killed at any moment and resumed, a run ends as if nothing had happened, to the last bit.

.venv/bin/python -m pytest tests/benchmarks/test_checkpoint.py
"""

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

import pytest
import torch
from support import ROOT, environment

from benchmarks import single
from benchmarks.common.checkpoint import about, load_checkpoint, save_checkpoint
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from scripts.probe.ranks import torchrun
from scripts.suite.processes import of_run

HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2", sys.executable]
LAUNCH = {"single": [sys.executable], "horovod_ddp": HOROVODRUN}
STEPS = 20  # of an epoch, so that a kill lands in the middle of the first of two


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


def train(name: str, tiny_config, tiny_data, run_dir: Path, *flags) -> subprocess.Popen:
    """Start a strategy on real ranks, marked by RUN_DIR, as a launcher would."""
    run_dir.mkdir(parents=True)
    start, variables = torchrun(2, run_dir)
    command = [*LAUNCH.get(name, start), "-m", f"benchmarks.{name}", "--config", tiny_config, "--data", tiny_data]
    command += ["--global-batch", 4, "--steps", STEPS, "--lr-schedule", "cosine", *flags]
    env = environment(RUN_DIR=run_dir, OMP_NUM_THREADS=1, GLOO_SOCKET_IFNAME="lo", **variables)
    with open(run_dir / "run.log", "w") as log:
        return subprocess.Popen([str(word) for word in command], cwd=ROOT, env=env, stdout=log, stderr=log)


def kill_in_the_middle(process: subprocess.Popen, run_dir: Path, folder: Path) -> None:
    """SIGKILL to every process of the run, as soon as it has written its second checkpoint."""
    try:
        deadline = time.monotonic() + 200
        while not (folder / "previous.pt").exists():
            assert process.poll() is None and time.monotonic() < deadline, (run_dir / "run.log").read_text()
            time.sleep(0.01)
    finally:
        while alive := of_run(run_dir):
            for each in alive:
                each.kill()
        process.wait()


def tensors(value, path="") -> dict[str, torch.Tensor]:
    """Every tensor in nested dictionaries and lists, by its path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {name: tensor for key, inner in items for name, tensor in tensors(inner, f"{path}/{key}").items()}


@pytest.mark.parametrize("name", ["single", "ddp", pytest.param("horovod_ddp", marks=pytest.mark.slow)])
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

    killed = train(name, tiny_config, tiny_data, logs / "killed", "--checkpoint-dir", broken, "--checkpoint-steps", 2)
    kill_in_the_middle(killed, logs / "killed", broken)
    state = torch.load(broken / "last.pt", weights_only=True)
    assert state["epoch"] == 0 and 0 < state["step"] < STEPS

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
    return {"about": about(Config(), 4), "model": {"weight": torch.full((2_000_000,), float(number))}}


def keep_saving(folder: Path) -> None:
    for number in range(1, 10_000):
        save_checkpoint(folder, "last.pt", small_state(number))


def test_a_kill_during_a_write_leaves_a_whole_checkpoint(checkpoints):
    """Protects the only copy of days of training. The temporary file left behind shows that the kill hit a write."""
    config = Config(checkpoint_dir=str(checkpoints), resume=True)
    draw, hits = random.Random(0), 0
    save_checkpoint(checkpoints, "last.pt", small_state(0))
    for _ in range(8):
        writer = multiprocessing.get_context("fork").Process(target=keep_saving, args=[checkpoints])
        writer.start()
        while not (checkpoints / "previous.pt").exists() or not (checkpoints / ".last.pt.writing").exists():
            assert writer.is_alive()
        time.sleep(draw.uniform(0, 0.01))
        writer.kill()
        writer.join()
        hits += (checkpoints / ".last.pt.writing").exists()
        for name in ("last", "previous"):
            state = load_checkpoint(dataclasses.replace(config, resume_from=name), 4)
            assert len(state["model"]["weight"].unique()) == 1
        (checkpoints / "previous.pt").unlink()
    assert hits > 0
    save_checkpoint(checkpoints, "last.pt", small_state(5))  # what a killed writer left is in nobody's way
    assert not (checkpoints / ".last.pt.writing").exists()


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


def test_a_checkpoint_with_flipped_bytes_is_loaded_or_refused(checkpoints):
    """Protects against a traceback from a bad disk: whatever is in the file, a state comes back or a UserError."""
    save_checkpoint(checkpoints, "last.pt", {"about": about(Config(), 4), "model": {"weight": torch.zeros(9)}})
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
        ({"arch": "resnet34"}, 4, "is of arch resnet50, but this run has resnet34"),
        ({"norm": "group"}, 4, "is of norm batch, but this run has group"),
        ({"global_batch": 8}, 4, "is of global_batch 256, but this run has 8"),
        ({"seed": 1}, 4, "is of seed 0, but this run has 1"),
        ({}, 10, "is of num_classes 4, but this run has 10"),
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
    single.main(config)
    kept = [f"epoch{epoch}-step{step}.pt" for epoch, step in ((0, 4), (1, 0), (1, 4), (2, 0))]
    assert sorted(path.name for path in checkpoints.glob("epoch*")) == kept
    expected = torch.load(checkpoints / "last.pt", weights_only=True)
    best = torch.load(checkpoints / "best.pt", weights_only=True)["model"]
    assert best["fc.weight"].shape == (4, 512)
    truncated(checkpoints / "last.pt")
    with pytest.raises(UserError, match="is truncated or foreign"):
        single.main(dataclasses.replace(config, resume=True))
    single.main(dataclasses.replace(config, resume=True, resume_from="previous"))
    resumed = torch.load(checkpoints / "last.pt", weights_only=True)
    ours, theirs = tensors(resumed), tensors(expected)
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
