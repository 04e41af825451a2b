"""Read what a run trained, and the states that it saved."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.common.config import Config
from benchmarks.common.model import draw_model
from benchmarks.common.strategy import STORED_FIELDS, Layout
from scripts.verify.reference import (
    AUTOCAST,
    INITIAL_SCALE,
    OF_OPTIMIZER,
    PLAIN,
    TRAVELS_AS,
    SavedState,
    State,
    Training,
    optimizer_state,
    train_reference,
)

# What the reference reads: it is trained once for all values of the other fields.
READ = (
    "arch", "norm", "precision", "memory_format", "seed", "data", "decoder", "augment", "image_size",
    "global_batch", "epochs", "steps", "lr", "lr_batch", "lr_schedule", "lr_warmup_epochs", "momentum", "weight_decay",
)  # fmt: skip


def why_no_reference(training: Training) -> str:
    """'' where there is one."""
    if training.precision not in (*PLAIN, *AUTOCAST):
        return f"there is no reference in precision {training.precision}"
    if training.layout.compression not in TRAVELS_AS:
        return f"there is no reference whose gradients travel as {training.layout.compression}"
    return ""


def training_of(config: Config, resolved: dict[str, Any]) -> Training:
    """resolved: what `auto` became. Sets torch's number of threads."""
    layout = Layout(**{name: resolved[name] for name in STORED_FIELDS})
    read = {name: getattr(config, name) for name in READ}
    read |= {name: resolved[name] for name in ("decoder", "memory_format")}
    read["global_batch"] = resolved.get("global_batch", config.global_batch)  # of images per device
    torch.set_num_threads(resolved["threads_per_rank"])  # another number of threads adds in another order
    return Training(Config(**read), layout, resolved["precision"], resolved["device"])


def saved_states(folder: Path, training: Training) -> list[SavedState]:
    """Initial weights first; of an exact proof the last state only."""
    paths = [*folder.glob("epoch*-step*.pt")] or [folder / "last.pt"]
    saved = {state.step: state for state in (read_saved_state(path, training) for path in paths)}
    return [*([] if training.exact else [initial_state(training)]), *(saved[step] for step in sorted(saved))]


def initial_state(training: Training) -> SavedState:
    return SavedState(0, train_reference(training, last=0))


def read_saved_state(path: Path, training: Training) -> SavedState:
    saved = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        net = draw_model(training.config, 1)  # without data, for its names
    weights = [name for name, _ in net.named_parameters()]
    held = [number for group in saved["optimizer"]["param_groups"] for number in group["params"]]
    state = dict(saved["model"])
    for number, of_parameter in saved["optimizer"]["state"].items():
        name = weights[number] if len(held) == len(weights) else f"an optimizer of {len(held)} tensors, number {number}"
        state |= optimizer_state(name, of_parameter)
    # as local_sgd saves each rank's own: weights, buffers, and what the optimizer keeps of each weight
    names = [*weights, *(name for name, _ in net.named_buffers())]
    names += [f"{prefix}{name}" for name in weights for prefix in OF_OPTIMIZER if f"{prefix}{name}" in state]
    ranks = [
        {name: part.view(state[name].shape) for name, part in zip(names, parts, strict=True)}
        for parts in (vector.split([state[name].numel() for name in names]) for vector in saved.get("ranks") or [])
    ]
    step = saved["epoch"] * training.config.steps + saved["step"]
    return SavedState(step, state, loss_scale(saved["extra"]), tuple(ranks))


def loss_scale(extra: dict[str, Any]) -> float:
    for name, value in extra.items():
        if name in ("scale", "loss_scale"):
            return float(value)
        if isinstance(value, dict) and value:
            return loss_scale(value)
    return INITIAL_SCALE


def perturb(state: State, rounding: float, seed: int = 1) -> State:
    """Weights with random relative errors of up to `rounding`."""
    generator, perturbed = torch.Generator().manual_seed(seed), dict(state)
    for name, tensor in state.items():
        if tensor.is_floating_point() and not name.startswith(OF_OPTIMIZER):
            error = torch.rand(tensor.shape, generator=generator) * 2 - 1
            perturbed[name] = (tensor * (1 + rounding * error)).to(tensor.dtype)
    return perturbed
