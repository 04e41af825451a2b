"""Checkpoints: whole or not at all, written by one rank, read by all, never onto somebody else's device.

torch.load("last.pt", weights_only=True)["model"]    # plain tensors under torchvision's names

Each run has a folder of its own, which the plan names DIR/<strategy>-<round>.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from benchmarks.common.config import FIELDS, IMAGE_FIELDS, NOT_COMPARED, Config
from benchmarks.common.errors import UserError
from benchmarks.common.files import replace_atomically
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.strategy import Strategy

# Fields, besides NOT_COMPARED, that may change when a training is resumed. Every other field must be as it was.
MAY_DIFFER = {
    "epochs": "a longer or a shorter training",
    "global_batch": "compared by `fields_that_must_agree`",
    "batch_per_device": "the global batch that follows from it is compared",
    **dict.fromkeys(("warmup_steps", "windows", "window_steps", "account_steps"), "what is timed"),
    **dict.fromkeys(("workers", "prefetch"), "who reads the images, and when"),
    "label": "a name",
    "skip_bad_files": "what happens at a file that cannot be read",
    # One strategy can resume another's checkpoint, so options of a single strategy may change too.
    **dict.fromkeys(("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "broadcast_buffers"), "of DDP"),
    **dict.fromkeys(("comm_hook", "powersgd_rank", "shard_ranks", "local_period", "local_group"), "of one strategy"),
    **dict.fromkeys(("compression", "opt_level", "cut", "split_size", "copy_stream"), "of one strategy"),
    **dict.fromkeys(("microbatches", "pipeline_schedule"), "of one strategy"),
}


def fields_that_must_agree(config: Config, num_classes: int) -> dict[str, Any]:
    """What must agree between a checkpoint and the run that resumes it, whatever --resume-anyway says."""
    return {
        "arch": config.arch,
        "norm": config.norm,
        "num_classes": num_classes,
        "global_batch": config.global_batch,
        "seed": config.seed,
    }


def trained_with(config: Config) -> dict[str, Any]:
    """The settings that must not change when a training is resumed.

    The fingerprint of the images is '' for synthetic images, and in a run that no launcher started.
    """
    folder, images = RunFolder.current(), dict.fromkeys(IMAGE_FIELDS, "")
    if folder:
        images = {name: folder.settings()["asked"].get(name, "") for name in IMAGE_FIELDS}
    fields = {name: value for name, value in vars(config).items() if name not in MAY_DIFFER | NOT_COMPARED}
    return fields | images


def compare_settings(path: Path, saved: dict[str, Any], config: Config) -> str:
    """The settings that have changed since the checkpoint, in words; '' where none has.

    Raises UserError where one has changed, unless --resume-anyway says to go on with the new ones.
    """
    defaults = {name: field.default for name, field in FIELDS.items()}  # of fields that are newer than the checkpoint
    before, now = defaults | saved["settings"], trained_with(config)
    names = [name for name in now if name not in IMAGE_FIELDS or (before.get(name) not in ("", None) and now[name])]
    changed = [f"{name} {now[name]}, not {before.get(name)}" for name in names if before.get(name) != now[name]]
    if changed and not config.resume_anyway:
        raise UserError(
            f"{path} is of a training with other settings (this run has {'; '.join(changed)}); set these as they were, "
            "or add --resume-anyway to go on with the new ones"
        )
    return "; ".join(changed)


CHECKPOINT = re.compile(r"(last|previous|best|epoch\d+-step\d+)\.pt")
# Files that a killed run leaves: those of replace_atomically, and those of make_writable.
LEFT_OVER = re.compile(rf"\.{CHECKPOINT.pattern}\.[0-9a-f]{{16}}|\.probe\.\w+")


class Checkpointer:
    """The checkpoints of one run. Every rank calls `save` and `resume`. Only the reporting rank writes; each reads for
    itself."""

    def __init__(self, strategy: Strategy):
        self.strategy, self.config = strategy, strategy.config

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

    def resume(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Restore everything, if --resume asks for it and finds a checkpoint.

        Returns the checkpoint or None, and columns for the row: a reason, where settings of the training have changed.
        Raises UserError for a folder that cannot be written, or that holds another run's checkpoints, and for a
        checkpoint of another training, or of a strategy whose state this one cannot load.
        """
        if self.config.checkpoint_dir:
            check_unused(self.config)
            if self.strategy.context.reports:
                make_writable(Path(self.config.checkpoint_dir))
        saved = load_checkpoint(self.config, self.strategy.num_classes)
        if saved is None:
            return None, {}
        changed = compare_settings(resumed_file(self.config), saved, self.config)
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
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            # torch raises these for the state of another model or optimizer
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


def make_writable(folder: Path) -> None:
    """Make the folder, write a file there and delete it, and remove what killed runs have left half written.

    Raises UserError where one of these fails: before the first epoch, not after it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe.") as probe:
            probe.write(b"may checkpoints be written here?\n")
            probe.flush()
        for path in folder.iterdir():
            if LEFT_OVER.fullmatch(path.name):
                path.unlink(missing_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"cannot write checkpoints in {folder}: {why}; choose another --checkpoint-dir") from None


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
        folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(path, write)
        if kept:
            copy_whole(path, folder / kept)
    except (OSError, RuntimeError) as error:  # torch hides a full disk behind a RuntimeError
        why = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"cannot write the checkpoint {path}: {why}; the one before is kept") from None


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file. Not by a hard link: some file systems have none. Raises OSError."""
    with open(source, "rb") as content:
        replace_atomically(target, lambda file: shutil.copyfileobj(content, file, 2**20))


def _on_cpu(value: Any) -> Any:
    """`value` with every tensor in it on the CPU; those that are stay what they are."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def resumed_file(config: Config) -> Path:
    """The file that --resume reads: in the run's folder, or, if that holds no checkpoints, in the folder above."""
    folder, name = Path(config.checkpoint_dir), f"{config.resume_from}.pt"
    if RunFolder.current() and not holds_checkpoints(folder) and (folder.parent / name).exists():
        return folder.parent / name
    return folder / name


def best_acc1_on_disk(config: Config, num_classes: int) -> float:
    """The top-1 accuracy of the run's best.pt in percent; 0 where there is none that can be read, or one of another
    model."""
    path = Path(config.checkpoint_dir) / "best.pt"
    if not path.is_file():
        return 0.0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        same = state["about"] == fields_that_must_agree(config, num_classes)
        return float(state["best_acc1"]) if same else 0.0
    except Exception:  # an unpickler answers garbage with whatever comes up
        return 0.0


def remedy_for(config: Config) -> str:
    other = "previous for the one before" if config.resume_from == "last" else "last"
    return f"use --resume-from {other}, or start without --resume"


def load_checkpoint(config: Config, num_classes: int) -> dict | None:
    """The state that --resume asks for, on the CPU; None where there is nothing to resume. Raises UserError for a file
    that is truncated, foreign, or of another model."""
    if not config.resume:
        return None
    if not config.checkpoint_dir:
        raise UserError("resume needs --checkpoint-dir, the folder with last.pt")
    path, remedy = resumed_file(config), remedy_for(config)
    if not path.exists():
        print(f"nothing to resume: {path} does not exist yet; starting from the beginning", flush=True)
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler answers garbage with whatever comes up
        why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise UserError(f"{path} is truncated or foreign ({why}); {remedy}") from None
    if not isinstance(state, dict) or not {"about", "settings", "model", "optimizer", "extra"} <= state.keys():
        raise UserError(f"{path} is no checkpoint of this suite; {remedy}")
    for name, value in fields_that_must_agree(config, num_classes).items():
        found = state["about"].get(name)
        if found != value:
            raise UserError(f"{path} was trained with {name} {found}, but this run has {name} {value}; {remedy}")
    return state
