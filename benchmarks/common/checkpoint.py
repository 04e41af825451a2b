"""Checkpoints: whole or not at all, written by one rank, read by all. One strategy can resume another's.

torch.load("last.pt", weights_only=True)["model"]    # under torchvision's names
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from benchmarks.common.config import IMAGE_FIELDS, NOT_COMPARED, Config
from benchmarks.common.errors import UserError
from benchmarks.common.exchange import sync_buffers
from benchmarks.common.files import replace_atomically
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.strategy import Strategy

CHECKPOINT = re.compile(r"(last|previous|best|epoch\d+-step\d+)\.pt")
# Besides NOT_COMPARED, when a training is resumed; epochs not under a cosine.
MAY_DIFFER = {
    *("epochs", "global_batch", "batch_per_device", "label", "workers", "prefetch"),
    *("warmup_steps", "windows", "window_steps", "account_steps"),
    # of a single strategy
    *("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "broadcast_buffers", "comm_hook", "powersgd_rank"),
    *("shard_ranks", "local_period", "local_group", "compression", "opt_level", "cut", "split_size"),
    *("microbatches", "pipeline_schedule"),
}


class Checkpointer:
    """Of every rank."""

    def __init__(self, strategy: Strategy):
        self.strategy, self.config = strategy, strategy.config

    def save(self, name: str, at: dict[str, Any]) -> None:
        """at: where training stands."""
        sync_state(self.strategy)
        state = save_state(self.strategy)
        if not self.strategy.rank.reports:
            return
        whole = {
            "about": fields_that_must_agree(self.config, self.strategy.train.num_classes),
            "settings": trained_with(self.config) | {"epochs": self.config.epochs},
            **state,
            **at,
            "random": torch.get_rng_state(),
            "extra": {key: value.state_dict() for key, value in self.strategy.extra_state.items()},
        }
        keep = self.config.checkpoint_keep and name == "last.pt"
        kept = f"epoch{at['epoch']}-step{at['step']}.pt" if keep else ""
        save_checkpoint(Path(self.config.checkpoint_dir), name, whole, kept)

    def resume(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The checkpoint that --resume finds, or None, and for the row the reason of changed settings. Raises UserError
        for a folder that cannot be written or holds another run's, and a checkpoint that does not fit."""
        if self.config.checkpoint_dir:
            check_unused(self.config)
            if self.strategy.rank.reports:
                make_writable(Path(self.config.checkpoint_dir))
        saved = load_checkpoint(self.config, self.strategy.train.num_classes)
        if saved is None:
            return None, {}
        changed = compare_settings(resumed_file(self.config), saved, self.config)
        groups = self.strategy.optimizer.param_groups
        requested = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        try:
            load_state(self.strategy, saved)
            for key, value in self.strategy.extra_state.items():
                value.load_state_dict(saved["extra"][key])
        except Exception as error:  # torch's are of many types, for another model or optimizer
            raise UserError(
                f"the checkpoint's state does not fit ({_first_line(error)}); resume it with the strategy that wrote "
                "it, or start without --resume"
            ) from None
        for group, values in zip(self.strategy.optimizer.param_groups, requested, strict=True):
            group.update(values)  # momentum and weight decay are this run's
        sync_state(self.strategy)  # fills the average of local_sgd
        torch.set_rng_state(saved["random"])
        return saved, {"reason": f"resumed with other settings: {changed}"} if changed else {}


def sync_state(strategy: Strategy) -> None:
    """A collective."""
    if strategy.sync_state:
        strategy.sync_state()
    elif strategy.rank.world_size > 1:
        sync_buffers(strategy.model, strategy.rank, strategy.all_reduce)


def save_state(strategy: Strategy) -> dict[str, Any]:
    """`model` and `optimizer`, whole on the reporting rank. A collective."""
    if strategy.save_state:
        return strategy.save_state()
    return {"model": strategy.model.state_dict(), "optimizer": strategy.optimizer.state_dict()}


def load_state(strategy: Strategy, saved: dict[str, Any]) -> None:
    """A collective. Raises as load_state_dict does."""
    if strategy.load_state:
        strategy.load_state(saved)
    else:
        strategy.model.load_state_dict(saved["model"])
        strategy.optimizer.load_state_dict(saved["optimizer"])


def fields_that_must_agree(config: Config, num_classes: int) -> dict[str, Any]:
    """Whatever --resume-anyway says."""
    fields = {name: getattr(config, name) for name in ("arch", "norm", "global_batch", "seed")}
    return fields | {"num_classes": num_classes}


def trained_with(config: Config) -> dict[str, Any]:
    """What must not change when a training is resumed."""
    folder, images = RunFolder.current(), dict.fromkeys(IMAGE_FIELDS, "")
    if folder:
        images = {name: folder.requested().get(name, "") for name in IMAGE_FIELDS}
    may_differ = MAY_DIFFER - ({"epochs"} if config.lr_schedule == "cosine" else set())
    fields = {name: value for name, value in vars(config).items() if name not in may_differ | {*NOT_COMPARED}}
    return fields | images


def compare_settings(path: Path, saved: dict[str, Any], config: Config) -> str:
    """'' for no difference. Raises UserError without --resume-anyway."""
    before, now = saved["settings"], trained_with(config)
    names = [name for name in now if name not in IMAGE_FIELDS or (before.get(name) not in ("", None) and now[name])]
    changed = [f"{name} {now[name]}, not {before.get(name)}" for name in names if before.get(name) != now[name]]
    if changed and not config.resume_anyway:
        raise UserError(
            f"{path} is of a training with other settings (this run has {'; '.join(changed)}); set these as they were, "
            "or add --resume-anyway to go on with the new ones"
        )
    return "; ".join(changed)


def check_unused(config: Config) -> None:
    """Raises UserError."""
    folder = Path(config.checkpoint_dir)
    if not config.resume and holds_checkpoints(folder):
        raise UserError(
            f"{folder} holds checkpoints of an earlier run; add --resume to go on from them, or choose another "
            "--checkpoint-dir"
        )


def holds_checkpoints(folder: Path) -> bool:
    return folder.is_dir() and any(CHECKPOINT.fullmatch(path.name) for path in folder.iterdir())


def make_writable(folder: Path) -> None:
    """And without what killed runs left half written. Raises UserError, before the first epoch."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            probe.write(b"may checkpoints be written here?\n")
            probe.flush()
        for path in folder.glob(".*.pt.*"):
            path.unlink(missing_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"cannot write checkpoints in {folder}: {why}; choose another --checkpoint-dir") from None


def save_checkpoint(folder: Path, name: str, state: dict, kept: str = "") -> None:
    """The last.pt before it stays as previous.pt. kept: one more copy. Raises UserError."""
    path = folder / name

    def write(file: BinaryIO) -> None:
        torch.save(_on_cpu(state), file)  # for machines without this device
        if name == "last.pt" and path.exists():
            copy_whole(path, folder / "previous.pt")  # only now: the disk had space for the new one

    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, write)
        if kept:
            copy_whole(path, folder / kept)
    except (OSError, RuntimeError) as error:  # torch hides a full disk behind a RuntimeError
        why = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"cannot write the checkpoint {path}: {why}; the one before is kept") from None


def copy_whole(source: Path, target: Path) -> None:
    """Some file systems have no hard links. Raises OSError."""
    with open(source, "rb") as content:
        replace_atomically(target, lambda file: shutil.copyfileobj(content, file, 2**20))


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def resumed_file(config: Config) -> Path:
    """In the run's folder, or, if that holds no checkpoints, in the one above."""
    folder, name = Path(config.checkpoint_dir), f"{config.resume_from}.pt"
    if RunFolder.current() and not holds_checkpoints(folder) and (folder.parent / name).exists():
        return folder.parent / name
    return folder / name


def load_checkpoint(config: Config, num_classes: int) -> dict | None:
    """None where there is nothing to resume. Raises UserError for a file that is truncated, foreign, or of another
    model."""
    if not config.resume:
        return None
    if not config.checkpoint_dir:
        raise UserError("resume needs --checkpoint-dir, the folder with last.pt")
    path = resumed_file(config)
    other = "previous for the one before" if config.resume_from == "last" else "last"
    remedy = f"use --resume-from {other}, or start without --resume"
    if not path.exists():
        print(f"nothing to resume: {path} does not exist yet; starting from the beginning", flush=True)
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler answers garbage with whatever comes up
        raise UserError(f"{path} is truncated or foreign ({_first_line(error)}); {remedy}") from None
    if not isinstance(state, dict) or not {"about", "settings", "model", "optimizer", "extra"} <= state.keys():
        raise UserError(f"{path} is no checkpoint of this suite; {remedy}")
    for name, value in fields_that_must_agree(config, num_classes).items():
        found = state["about"].get(name)
        if found != value:
            raise UserError(f"{path} was trained with {name} {found}, but this run has {name} {value}; {remedy}")
    return state


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
