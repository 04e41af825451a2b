"""Checkpoints: whole or not at all, written by one rank, read by all, never onto somebody else's device.

torch.load("last.pt", weights_only=True)["model"]    # plain tensors under torchvision's names

Each run has a folder of its own, which the plan names DIR/<strategy>-<round>.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from benchmarks.common.config.config import Config
from benchmarks.common.model.model_families import draw_model
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import make_folder, open_lock, open_no_follow, replace_atomically
from benchmarks.common.system.folders_of_others import make_own_folder, refuse_folder_of_others
from benchmarks.common.train.checkpoint_checks import (
    compare_settings,
    equal_values,
    fields_that_must_agree,
    problems,
    shown_value,
    trained_with,
)
from benchmarks.common.train.strategy import Strategy

CHECKPOINT = re.compile(r"(last|previous|best|epoch\d+-step\d+)\.pt")
# Files that a killed run leaves: those of replace_atomically, and those of make_writable.
LEFT_OVER = re.compile(rf"\.{CHECKPOINT.pattern}\.[0-9a-f]{{16}}|\.probe\.\w+")
IN_USE = ".in-use"  # a run holds it locked
CLAIM_LIMIT_S, CLAIM_POLL_S = 10.0, 0.1  # a run that was killed may take a moment to end


class Checkpointer:
    """The checkpoints of one run. Every rank calls `save` and `resume`. Only the reporting rank writes. Each rank
    reads for itself, so that states which ranks do not share need no broadcast."""

    def __init__(self, strategy: Strategy):
        self.strategy, self.config = strategy, strategy.config
        self.claims = contextlib.ExitStack()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_: object) -> None:
        """Let other runs have the folder: this one writes no more."""
        self.claims.close()

    def save(self, name: str, at: dict[str, Any]) -> None:
        """Write checkpoint_dir/name. at: where training stands (tensors, numbers), which `resume` returns again."""
        self.strategy.sync_state()
        state = self.strategy.save_state()
        if not self.strategy.context.reports:
            return
        whole = {
            "about": fields_that_must_agree(self.config, self.strategy.num_classes),
            "settings": trained_with(self.config),
            **state,
            **at,
            "random": torch.get_rng_state(),
            "extra": {key: value.state_dict() for key, value in self.strategy.state.extra.items()},
        }
        keep = self.config.checkpoint_keep and name == "last.pt"
        kept = f"epoch{at['epoch']}-step{at['step']}.pt" if keep else ""
        save_checkpoint(Path(self.config.checkpoint_dir), name, whole, kept)

    def resume(self, num_steps: int) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Restore everything, if --resume asks for it and finds a checkpoint. num_steps: of an epoch.

        Returns the checkpoint or None, and columns for the row: a reason, where settings of the training have changed.
        Raises UserError for a folder that cannot be written, that another run is using, or that holds another run's
        checkpoints, and for a checkpoint of another training, with impossible content, or of a strategy whose state
        this one cannot load.
        """
        if self.config.checkpoint_dir:
            check_unused(self.config)
            if self.strategy.context.reports:
                make_writable(Path(self.config.checkpoint_dir), self.claims)
                check_unused(self.config)  # again: a run that had the folder may have ended while this one waited
        saved = load_checkpoint(self.config, self.strategy.num_classes)
        if saved is None:
            return None, {}
        path = resumed_file(self.config)
        changed = compare_settings(path, saved, self.config)
        with torch.device("meta"):
            model = draw_model(self.config, self.strategy.num_classes)
        if problem := next(problems(saved, model, num_steps, self.config), ""):
            raise UserError(f"{path}: {problem}; {remedy_for(self.config)}")
        for key in self.strategy.state.extra:
            if key not in saved["extra"]:
                raise UserError(f"the checkpoint holds no {key}: another strategy wrote it; start without --resume")
        optimizer = self.strategy.optimizer
        requested = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        try:
            self.strategy.load_state(saved)
            for key, value in self.strategy.state.extra.items():
                value.load_state_dict(saved["extra"][key])
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            # torch raises these for the state of another optimizer
            why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise UserError(
                f"the checkpoint's state does not fit ({why}); resume it with the strategy that wrote it, or start "
                "without --resume"
            ) from None
        for group, values in zip(optimizer.param_groups, requested, strict=True):
            group.update(values)  # momentum and weight decay stay as this run's configuration says
        self.strategy.sync_state()  # changes nothing where ranks hold the same; fills the average of local_sgd
        torch.set_rng_state(saved["random"])
        return saved, {"reason": f"resumed with other settings: {changed}"} if changed else {}


def check_unused(config: Config) -> None:
    """Raises UserError where the folder holds checkpoints and the run has no --resume."""
    folder = Path(config.checkpoint_dir)
    if not config.resume and holds_checkpoints(folder):
        raise UserError(
            f"{folder} holds checkpoints of an earlier run; add --resume to go on from them, or choose another "
            "--checkpoint-dir"
        )


def holds_checkpoints(folder: Path) -> bool:
    return folder.is_dir() and any(CHECKPOINT.fullmatch(path.name) for path in folder.iterdir())


def make_writable(folder: Path, held: contextlib.ExitStack) -> None:
    """Make the folder, and keep other runs out of it until `held` is closed. Write a file there and delete it, and
    remove what killed runs have left half written.

    Raises UserError where one of these fails, and for a folder that another user could change or replace: before the
    first epoch, not after it.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link; no checkpoint is written through one; choose another --checkpoint-dir")
    try:
        make_own_folder(folder, "choose another --checkpoint-dir")
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe.") as probe:
            probe.write(b"may checkpoints be written here?\n")
            probe.flush()
            refuse_folder_of_others(folder, os.fstat(probe.fileno()).st_uid, "choose another --checkpoint-dir")
        held.enter_context(claimed(folder))
        for path in folder.iterdir():
            if LEFT_OVER.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif CHECKPOINT.fullmatch(path.name) and path.is_symlink():
                raise UserError(f"{path} is a link, and no link is copied; put a copy of what it leads to in its place")
            elif CHECKPOINT.fullmatch(path.name) and not path.is_file():  # a copy of a pipe would never end
                raise UserError(f"{path} is not a regular file; take it out of the folder")
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"cannot write checkpoints in {folder}: {why}; choose another --checkpoint-dir") from None


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep runs of other processes out of the folder, which would write over this one's checkpoints.

    A lock of the process: workers of a loader, which live a little longer, do not inherit it. Where the file system has
    no locks, nobody is kept out. Raises UserError where another run has the folder.
    """
    descriptor, deadline = open_lock(folder / IN_USE), time.monotonic() + CLAIM_LIMIT_S
    try:
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise UserError(f"another run is writing checkpoints in {folder}; choose another --checkpoint-dir")
            time.sleep(CLAIM_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def save_checkpoint(folder: Path, name: str, state: dict, kept: str = "") -> None:
    """Write `state` (tensors, numbers, text) to folder/name, whole, and on the disk when this returns.

    The last.pt before it stays as previous.pt. kept: a name for one more copy. Raises UserError where the folder cannot
    be written.
    """
    path = folder / name

    def write(file: BinaryIO) -> None:
        torch.save(_on_cpu(state), file)  # so that a machine without this device can read it
        if name == "last.pt" and path.exists():
            copy_whole(path, folder / "previous.pt")  # only now: the disk had space for the new one

    try:
        make_folder(folder)
        replace_atomically(path, write)
        if kept:
            copy_whole(path, folder / kept)
    except (OSError, RuntimeError) as error:  # torch hides a full disk behind a RuntimeError
        why = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"cannot write the checkpoint {path}: {why}; the one before is kept") from None


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file. Not by a hard link: some file systems have none. Raises OSError, also where `source` is a link.

    A folder of checkpoints may come from somebody else: a link in it would have the user's own files copied there.
    """
    with open(source, "rb", opener=open_no_follow) as content:
        replace_atomically(target, lambda file: shutil.copyfileobj(content, file, 2**20))


def _on_cpu(value: Any) -> Any:
    """`value` with every tensor in it on the CPU; those that are stay what they are."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def resumed_file(config: Config) -> Path:
    """The file that --resume reads. It lies in the run's folder.

    If that holds no checkpoints, it may lie in the folder above: older versions had one folder for all runs of a suite.
    """
    folder, name = Path(config.checkpoint_dir), f"{config.resume_from}.pt"
    if RunFolder.current() and not holds_checkpoints(folder) and (folder.parent / name).exists():
        return folder.parent / name
    return folder / name


def best_acc1_on_disk(config: Config, num_classes: int) -> float:
    """The top-1 accuracy of the run's best.pt in percent: it may be of an epoch after the checkpoint that is resumed.

    0 where there is no such file, none that can be read, or one of another model.
    """
    path = Path(config.checkpoint_dir) / "best.pt"
    if not path.is_file():
        return 0.0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        must_agree = fields_that_must_agree(config, num_classes).items()
        if not all(equal_values(state["about"].get(name), value) for name, value in must_agree):
            return 0.0
        best_acc1 = float(state["best_acc1"])
    except Exception:  # an unpickler answers garbage with whatever comes up
        return 0.0
    return best_acc1 if 0 <= best_acc1 <= 100 else 0.0


def remedy_for(config: Config) -> str:
    other = "previous for the one before" if config.resume_from == "last" else "last"
    return f"use --resume-from {other}, or start without --resume"


def load_checkpoint(config: Config, num_classes: int) -> dict | None:
    """The state that --resume asks for, on the CPU; None where there is nothing to resume.

    Raises UserError for a file that is truncated, foreign, or of another model.
    """
    if not config.resume:
        return None
    if not config.checkpoint_dir:
        raise UserError("resume needs --checkpoint-dir, the folder with last.pt")
    path, remedy = resumed_file(config), remedy_for(config)
    if not path.exists():
        print(f"nothing to resume: {path} does not exist yet; starting from the beginning", flush=True)
        return None
    if not path.is_file():
        raise UserError(f"{path} is not a regular file; {remedy}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler answers garbage with whatever comes up
        why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise UserError(f"{path} is truncated or foreign ({why}); {remedy}") from None
    if not isinstance(state, dict) or "model" not in state or not isinstance(state.get("about"), dict):
        raise UserError(f"{path} is no checkpoint of this suite; {remedy}")
    for name, value in fields_that_must_agree(config, num_classes).items():
        if not equal_values(state["about"].get(name), value):
            found = shown_value(state["about"].get(name))
            raise UserError(f"{path} was trained with {name} {found}, but this run has {name} {value}; {remedy}")
    return state
