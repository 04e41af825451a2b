"""Checkpoints: whole or not at all, written by one rank, read by all, never onto somebody else's device.

torch.load("last.pt", weights_only=True)["model"]    # plain tensors under torchvision's names
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.common.config import Config
from benchmarks.common.devices import Worker
from benchmarks.common.errors import UserError

State = Callable[[], dict]
"""What training goes on from, whole: `model` under torchvision's names, `optimizer`, and what else a script needs."""
Load = Callable[[dict], None]
"""Takes up a checkpoint, which holds what State gave, on the CPU."""


class Checkpointer:
    """The checkpoints of one run. Every rank calls both methods; one of them writes, and each reads for itself, so
    that states which ranks do not share need no broadcast.

    share: brings what ranks hold differently to all of them. state, load: called on every rank. extra: more objects
    with a state_dict to save, by name.
    """

    def __init__(
        self,
        config: Config,
        worker: Worker,
        num_classes: int,
        share: Callable[[], None],
        state: State,
        load: Load,
        extra: dict,
    ):
        self.config, self.worker, self.num_classes = config, worker, num_classes
        self.share, self.state, self.load, self.extra = share, state, load, extra

    def save(self, name: str, at: dict) -> None:
        """Write checkpoint_dir/name. at: where training stands (tensors, numbers), which `resume` returns again."""
        self.share()
        state = self.state()
        if not self.worker.reports:
            return
        whole = {
            "about": about(self.config, self.num_classes),
            **state,
            **at,
            "random": torch.get_rng_state(),
            "extra": {key: value.state_dict() for key, value in self.extra.items()},
        }
        folder = Path(self.config.checkpoint_dir)
        save_checkpoint(folder, name, whole)
        if self.config.checkpoint_keep and name == "last.pt":
            kept = folder / f"epoch{at['epoch']}-step{at['step']}.pt"
            kept.unlink(missing_ok=True)
            os.link(folder / name, kept)

    def resume(self) -> dict | None:
        """Restore everything, if --resume asks for it and finds a checkpoint; returns the checkpoint.

        Raises UserError for a checkpoint of another training, or of a strategy whose state this one cannot take up.
        """
        saved = load_checkpoint(self.config, self.num_classes)
        if saved is None:
            return None
        for key in self.extra:
            if key not in saved["extra"]:
                raise UserError(f"the checkpoint holds no {key}: another strategy wrote it; start without --resume")
        try:
            self.load(saved)
        except (KeyError, ValueError) as error:  # how torch says that an optimizer's state is another one's
            why = str(error).splitlines()[0][:120]
            raise UserError(
                f"the checkpoint's state does not fit ({why}); resume it with the strategy that wrote it, or start "
                "without --resume"
            ) from None
        for key, value in self.extra.items():
            value.load_state_dict(saved["extra"][key])
        self.share()  # a no-op where every rank has read the same file
        torch.set_rng_state(saved["random"])
        return saved


def whole_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """The State of a strategy whose ranks each hold all of it."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load_whole_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: dict) -> None:
    """Its Load."""
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def save_checkpoint(folder: Path, name: str, state: dict) -> None:
    """Write `state` (tensors, numbers, text) to folder/name by way of a temporary file.

    The last.pt before it stays as previous.pt. Raises UserError where the folder cannot be written.
    """
    path, temporary = folder / name, folder / f".{name}.writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(_on_cpu(state), file)  # so that a machine without this device can read it
            file.flush()
            os.fsync(file.fileno())
        if name == "last.pt" and path.exists():
            # A link, not a rename: at every moment there is a whole last.pt.
            (folder / ".previous.pt").unlink(missing_ok=True)
            os.link(path, folder / ".previous.pt")
            os.replace(folder / ".previous.pt", folder / "previous.pt")
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch hides a full disk behind a RuntimeError
        with contextlib.suppress(OSError):
            temporary.unlink()
        why = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"cannot write the checkpoint {path}: {why}; the one before is kept") from None


def _on_cpu(value):
    """`value` with every tensor in it on the CPU; those that are stay what they are."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def load_checkpoint(config: Config, num_classes: int) -> dict | None:
    """The state that --resume asks for, on the CPU; None where there is nothing to resume.

    Raises UserError for a file that is truncated, foreign, or of another model.
    """
    if not config.resume:
        return None
    path = Path(config.checkpoint_dir) / f"{config.resume_from}.pt"
    if not config.checkpoint_dir:
        raise UserError("resume needs --checkpoint-dir, the folder with last.pt")
    if not path.exists():
        print(f"nothing to resume: {path} does not exist yet; starting from the beginning", flush=True)
        return None
    other = "previous" if config.resume_from == "last" else "last"
    remedy = f"use --resume-from {other} for the one before, or start without --resume"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler answers garbage with whatever comes up
        why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise UserError(f"{path} is truncated or foreign ({why}); {remedy}") from None
    if not isinstance(state, dict) or "model" not in state or not isinstance(state.get("about"), dict):
        raise UserError(f"{path} is no checkpoint of this suite; {remedy}")
    wanted = about(config, num_classes)
    for name, value in wanted.items():
        if state["about"].get(name) != value:
            raise UserError(f"{path} is of {name} {state['about'].get(name)}, but this run has {value}; {remedy}")
    return state


def about(config: Config, num_classes: int) -> dict:
    """What must agree between a checkpoint and the run that resumes it."""
    return {
        "arch": config.arch,
        "norm": config.norm,
        "num_classes": num_classes,
        "global_batch": config.global_batch,
        "seed": config.seed,
    }
