"""Checkpoints: whole or not at all, written by one rank, read by all, never onto somebody else's device.

torch.load("last.pt", weights_only=True)["model"]    # plain tensors under torchvision's names

Each run has a folder of its own, which the plan names DIR/<strategy>-<round>.
"""

import contextlib
import errno
import fcntl
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from benchmarks.common.config.config import FIELDS, Config
from benchmarks.common.config.settings import NOT_COMPARED
from benchmarks.common.dist.devices import RankContext
from benchmarks.common.model.model import draw_model
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import make_folder, open_lock, replace_atomically

CHECKPOINT = re.compile(r"(last|previous|best|epoch\d+-step\d+)\.pt")
# Files that a killed run leaves: those of replace_atomically, and those of make_writable.
LEFT_OVER = re.compile(rf"\.{CHECKPOINT.pattern}\.[0-9a-f]{{16}}|\.probe\.\w+")
IN_USE = ".in-use"  # a run holds it locked
CLAIM_LIMIT_S, CLAIM_POLL_S = 10.0, 0.1  # a run that was killed may take a moment to end
# Fields, besides NOT_COMPARED, that may change when a training is resumed. Every other field must be as it was.
MAY_DIFFER = {
    "epochs": "a longer or a shorter training",
    "global_batch": "compared by `about`",
    "batch_per_device": "the global batch that follows from it is compared",
    **dict.fromkeys(("warmup_steps", "windows", "window_steps", "account_steps"), "what is timed"),
    **dict.fromkeys(("workers", "prefetch"), "who reads the images, and when"),
    "skip_bad_files": "what happens at a file that cannot be read",
    # One strategy can resume another's checkpoint, so options of a single strategy may change too.
    **dict.fromkeys(("bucket_cap_mb", "static_graph", "gradient_as_bucket_view"), "of DDP"),
    **dict.fromkeys(("comm_hook", "powersgd_rank", "shard_ranks", "local_period", "local_group"), "of one strategy"),
    **dict.fromkeys(("compression", "opt_level", "cut", "split_size", "copy_stream"), "of one strategy"),
    **dict.fromkeys(("microbatches", "pipeline_schedule"), "of one strategy"),
}

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
        context: RankContext,
        num_classes: int,
        share: Callable[[], None],
        state: State,
        load: Load,
        extra: dict,
    ):
        self.config, self.context, self.num_classes = config, context, num_classes
        self.share, self.state, self.load, self.extra = share, state, load, extra
        self.held = contextlib.ExitStack()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_) -> None:
        """Let other runs have the folder: this one writes no more."""
        self.held.close()

    def save(self, name: str, at: dict) -> None:
        """Write checkpoint_dir/name. at: where training stands (tensors, numbers), which `resume` returns again."""
        self.share()
        state = self.state()
        if not self.context.reports:
            return
        whole = {
            "about": about(self.config, self.num_classes),
            "settings": trained_with(self.config),
            **state,
            **at,
            "random": torch.get_rng_state(),
            "extra": {key: value.state_dict() for key, value in self.extra.items()},
        }
        keep = self.config.checkpoint_keep and name == "last.pt"
        kept = f"epoch{at['epoch']}-step{at['step']}.pt" if keep else ""
        save_checkpoint(Path(self.config.checkpoint_dir), name, whole, kept)

    def resume(self, optimizer: torch.optim.Optimizer, num_steps: int) -> tuple[dict | None, dict]:
        """Restore everything, if --resume asks for it and finds a checkpoint. num_steps: of an epoch.

        Returns the checkpoint or None, and columns for the row: a reason, where settings of the training have changed.
        Raises UserError for a folder that cannot be written, that another run is using, or that holds another run's
        checkpoints, and for a checkpoint of another training, with impossible content, or of a strategy whose state
        this one cannot load.
        """
        if self.config.checkpoint_dir:
            check_unused(self.config)
            if self.context.reports:
                make_writable(Path(self.config.checkpoint_dir), self.held)
        saved = load_checkpoint(self.config, self.num_classes)
        if saved is None:
            return None, {}
        path = source_of(self.config)
        changed = compare_settings(path, saved, self.config)
        with torch.device("meta"):
            model = draw_model(self.config, self.num_classes)
        if problem := next(problems(saved, model, num_steps, self.config), ""):
            raise UserError(f"{path}: {problem}; {remedy_for(self.config)}")
        for key in self.extra:
            if key not in saved["extra"]:
                raise UserError(f"the checkpoint holds no {key}: another strategy wrote it; start without --resume")
        asked = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        try:
            self.load(saved)
            for key, value in self.extra.items():
                value.load_state_dict(saved["extra"][key])
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            # torch raises these for the state of another optimizer
            why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise UserError(
                f"the checkpoint's state does not fit ({why}); resume it with the strategy that wrote it, or start "
                "without --resume"
            ) from None
        for group, values in zip(optimizer.param_groups, asked, strict=True):
            group.update(values)  # momentum and weight decay stay as this run's configuration says
        self.share()  # a no-op where every rank has read the same file
        torch.set_rng_state(saved["random"])
        return saved, {"reason": f"resumed with other settings: {changed}"} if changed else {}


def whole_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """The State of a strategy whose ranks each hold all of it."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load_whole_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: dict) -> None:
    """Its Load."""
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


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

    Raises UserError where one of these fails: before the first epoch, not after it.
    """
    try:
        make_folder(folder)
        held.enter_context(claimed(folder))
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe.") as probe:
            probe.write(b"may checkpoints be written here?\n")
            probe.flush()
        for path in folder.iterdir():
            if LEFT_OVER.fullmatch(path.name):
                path.unlink(missing_ok=True)
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

    def write(file) -> None:
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
    """Copy a file. Not by a hard link: some file systems have none. Raises OSError."""
    with open(source, "rb") as content:
        replace_atomically(target, lambda file: shutil.copyfileobj(content, file, 2**20))


def _on_cpu(value):
    """`value` with every tensor in it on the CPU; those that are stay what they are."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def source_of(config: Config) -> Path:
    """The file that --resume reads. It lies in the run's folder.

    If that holds no checkpoints, it may lie in the folder above: older versions had one folder for all runs of a suite.
    """
    folder, name = Path(config.checkpoint_dir), f"{config.resume_from}.pt"
    if RunFolder.current() and not holds_checkpoints(folder) and (folder.parent / name).exists():
        return folder.parent / name
    return folder / name


def remedy_for(config: Config) -> str:
    other = "previous" if config.resume_from == "last" else "last"
    return f"use --resume-from {other} for the one before, or start without --resume"


def load_checkpoint(config: Config, num_classes: int) -> dict | None:
    """The state that --resume asks for, on the CPU; None where there is nothing to resume.

    Raises UserError for a file that is truncated, foreign, or of another model.
    """
    if not config.resume:
        return None
    if not config.checkpoint_dir:
        raise UserError("resume needs --checkpoint-dir, the folder with last.pt")
    path, remedy = source_of(config), remedy_for(config)
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
    wanted = about(config, num_classes)
    for name, value in wanted.items():
        if not _same(state["about"].get(name), value):
            found = _shown(state["about"].get(name))
            raise UserError(f"{path} is of {name} {found}, but this run has {value}; {remedy}")
    return state


def _same(saved: object, own: object) -> bool:
    """Whether a checkpoint's value equals the run's own. The checkpoint's may be anything that torch loads."""
    return isinstance(saved, (str, int, float, type(None))) and saved == own


def _shown(saved: object) -> str:
    return str(saved) if isinstance(saved, (str, int, float, type(None))) else f"a {type(saved).__name__}"


def about(config: Config, num_classes: int) -> dict:
    """What must agree between a checkpoint and the run that resumes it, whatever --resume-anyway says."""
    return {
        "arch": config.arch,
        "norm": config.norm,
        "num_classes": num_classes,
        "global_batch": config.global_batch,
        "seed": config.seed,
    }


def trained_with(config: Config) -> dict:
    """The settings that must not change when a training is resumed.

    The fingerprint of the images is '' for synthetic images, and in a run that no launcher started.
    """
    folder, fingerprint = RunFolder.current(), ""
    if folder and folder.has_settings():
        fingerprint = folder.settings()["asked"].get("fingerprint", "")
    fields = {name: value for name, value in vars(config).items() if name not in MAY_DIFFER | NOT_COMPARED}
    return fields | {"fingerprint": fingerprint}


def compare_settings(path: Path, saved: dict, config: Config) -> str:
    """The settings that have changed since the checkpoint, in words; '' where none has, or where it does not say.

    Raises UserError where one has changed, unless --resume-anyway says to go on with the new ones.
    """
    before, now = saved.get("settings"), trained_with(config)
    if not isinstance(before, dict):
        print(f"warning: {path} does not say what it was trained with; lr, data and other settings were not compared")
        return ""
    defaults = {name: field.default for name, field in FIELDS.items()}  # of fields that are newer than the checkpoint
    before = defaults | before
    names = [name for name in now if name != "fingerprint" or (before.get(name) not in ("", None) and now[name])]
    changed = [
        f"{name} {now[name]}, not {_shown(before.get(name))}"
        for name in names
        if not _same(before.get(name), now[name])
    ]
    if changed and not config.resume_anyway:
        raise UserError(
            f"{path} is of a training with other settings (this run has {'; '.join(changed)}); set these as they were, "
            "or add --resume-anyway to go on with the new ones"
        )
    return "; ".join(changed)


def problems(saved: dict, model: torch.nn.Module, num_steps: int, config: Config) -> Iterator[str]:
    """What is in a checkpoint that no training writes.

    model: a model of the checkpoint's architecture, on the meta device. num_steps: of an epoch.
    """
    yield from _wrong_numbers(saved, num_steps)
    yield from _wrong_weights(saved["model"], model.state_dict(), config)
    yield from _wrong_optimizer(saved.get("optimizer"), [*model.parameters()])
    for name, tensor in _tensors(saved):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            yield f"{name} is no plain tensor"
        elif tensor.is_floating_point() and not tensor.isfinite().all():
            yield f"{name} holds values that are not finite"


def _wrong_numbers(saved: dict, num_steps: int) -> Iterator[str]:
    for name, most in (("epoch", math.inf), ("step", num_steps), ("best_acc1", 100.0)):
        value = saved.get(name)
        kinds = (int, float) if name == "best_acc1" else (int,)
        if type(value) not in kinds or not 0 <= value <= most:
            limit = "" if most == math.inf else f" to {most:g}"
            yield f"its {name} is {value!r:.60}, and must be a number from 0{limit}"
    for name, like in (("train_sums", torch.zeros(4, dtype=torch.float64)), ("random", torch.get_rng_state())):
        value = saved.get(name)
        if not isinstance(value, torch.Tensor) or (value.dtype, value.shape) != (like.dtype, like.shape):
            yield f"its {name} must be {like.dtype} of shape {tuple(like.shape)}"
    if not isinstance(saved.get("extra"), dict):
        yield "its extra must be a dictionary"


def _wrong_weights(weights: object, wanted: Mapping[str, torch.Tensor], config: Config) -> Iterator[str]:
    if not isinstance(weights, dict):
        yield f"its model is a {type(weights).__name__}, and must be a dictionary of tensors"
        return
    for name in [*wanted, *weights]:
        if name not in weights:
            yield f"the weights of {name} are missing"
        elif name not in wanted:
            yield f"the weights {name!r:.60} are none of {config.arch}'s"
    half = {torch.float16} if config.opt_level in ("O2", "O3") else set()  # Apex keeps the weights themselves in it
    for name, like in wanted.items():
        found = weights.get(name)
        if not isinstance(found, torch.Tensor) or found.shape != like.shape or found.dtype not in {like.dtype} | half:
            what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            yield f"{name} is {what}, and must be {like.dtype} {tuple(like.shape)}"


def _wrong_optimizer(optimizer: object, parameters: list[torch.Tensor]) -> Iterator[str]:
    whole = isinstance(optimizer, dict) and isinstance(optimizer.get("state"), dict)
    if not whole or not isinstance(optimizer.get("param_groups"), list):
        yield "its optimizer must be a dictionary with state and param_groups"
        return
    for number, values in optimizer["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(values, dict):
            yield f"its optimizer's state {number!r:.60} is of no parameter"
            continue
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameters[number].shape:
                shape = tuple(parameters[number].shape)
                yield f"the {name} of parameter {number} is {tuple(value.shape)}, and must be {shape}"


def _tensors(value: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested dictionaries, lists and tuples, with its place."""
    if isinstance(value, torch.Tensor):
        yield name, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, inner in items:
        yield from _tensors(inner, f"{name}/{key}".lstrip("/"))
