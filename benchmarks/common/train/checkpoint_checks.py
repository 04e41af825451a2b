"""Which checkpoints a run may load: those of the same training, with content that a training writes."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.config.config import FIELDS, Config
from benchmarks.common.config.settings import IMAGE_FIELDS, NOT_COMPARED
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError

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
    **dict.fromkeys(("bucket_cap_mb", "static_graph", "gradient_as_bucket_view"), "of DDP"),
    **dict.fromkeys(("comm_hook", "powersgd_rank", "shard_ranks", "local_period", "local_group"), "of one strategy"),
    **dict.fromkeys(("compression", "opt_level", "cut", "split_size", "copy_stream"), "of one strategy"),
    **dict.fromkeys(("microbatches", "pipeline_schedule"), "of one strategy"),
}


def equal_values(saved: object, current: object) -> bool:
    """Whether a checkpoint's value equals the run's own. The checkpoint's may be anything that torch loads."""
    return isinstance(saved, (str, int, float, type(None))) and saved == current


def shown_value(saved: object) -> str:
    return str(saved) if isinstance(saved, (str, int, float, type(None))) else f"a {type(saved).__name__}"


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
    """The settings that have changed since the checkpoint, in words; '' where none has, or where it does not say.

    Raises UserError where one has changed, unless --resume-anyway says to go on with the new ones.
    """
    before, now = saved.get("settings"), trained_with(config)
    if not isinstance(before, dict):
        print(f"warning: {path} does not say what it was trained with; lr, data and other settings were not compared")
        return ""
    defaults = {name: field.default for name, field in FIELDS.items()}  # of fields that are newer than the checkpoint
    before = defaults | before
    names = [name for name in now if name not in IMAGE_FIELDS or (before.get(name) not in ("", None) and now[name])]
    changed = [
        f"{name} {now[name]}, not {shown_value(before.get(name))}"
        for name in names
        if not equal_values(before.get(name), now[name])
    ]
    if changed and not config.resume_anyway:
        raise UserError(
            f"{path} is of a training with other settings (this run has {'; '.join(changed)}); set these as they were, "
            "or add --resume-anyway to go on with the new ones"
        )
    return "; ".join(changed)


def problems(saved: dict[str, Any], model: torch.nn.Module, num_steps: int, config: Config) -> Iterator[str]:
    """What is in a checkpoint that no training writes.

    model: a model of the checkpoint's architecture, on the meta device. num_steps: of an epoch.
    """
    yield from _wrong_numbers(saved, num_steps)
    yield from _wrong_weights(saved["model"], model.state_dict(), config)
    yield from _wrong_optimizer(saved.get("optimizer"), [*model.parameters()])
    for name, tensor in _tensors(saved):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            yield f"{name} is no plain tensor"
            continue
        # of one value that is expanded to many, a look at all would need memory for all
        stored = tensor[tuple(slice(1 if stride == 0 else None) for stride in tensor.stride())]
        if stored.numel() * stored.element_size() > stored.untyped_storage().nbytes():
            yield f"{name} is no plain tensor"
        elif stored.is_floating_point() and not stored.isfinite().all():
            yield f"{name} holds values that are not finite"


def _wrong_numbers(saved: dict[str, Any], num_steps: int) -> Iterator[str]:
    for name, most in (("epoch", math.inf), ("step", num_steps), ("best_acc1", 100.0)):
        value: Any = saved.get(name)
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


def _wrong_weights(weights: object, expected: Mapping[str, torch.Tensor], config: Config) -> Iterator[str]:
    if not isinstance(weights, dict):
        yield f"its model is a {type(weights).__name__}, and must be a dictionary of tensors"
        return
    for name in [*expected, *weights]:
        if name not in weights:
            yield f"the weights of {name} are missing"
        elif name not in expected:
            yield f"the weights {name!r:.60} are none of {config.arch}'s"
    half = {torch.float16} if config.opt_level in ("O2", "O3") else set()  # Apex keeps the weights themselves in it
    for name, like in expected.items():
        found = weights.get(name)
        if not isinstance(found, torch.Tensor) or found.shape != like.shape or found.dtype not in {like.dtype} | half:
            what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            yield f"{name} is {what}, and must be {like.dtype} {tuple(like.shape)}"


def _wrong_optimizer(optimizer: object, parameters: list[torch.Tensor]) -> Iterator[str]:
    parts = (optimizer.get("state"), optimizer.get("param_groups")) if isinstance(optimizer, dict) else (None, None)
    if not isinstance(optimizer, dict) or not isinstance(parts[0], dict) or not isinstance(parts[1], list):
        yield "its optimizer must be a dictionary with state and param_groups"
        return
    for group in optimizer["param_groups"]:
        numbers = group.get("params") if isinstance(group, dict) else None
        if not isinstance(numbers, list) or not all(type(each) is int for each in numbers):
            yield "its optimizer's param_groups must be dictionaries whose params are numbers of parameters"
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
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _tensors(inner, f"{name}/{key}".lstrip("/"))
