"""Read what a run trained, and the states that it saved."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.config import Config
from benchmarks.common.model import build_model, draw_model
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
)
from scripts.verify.reference_images import labelled_images, num_classes

# How, where and when it is computed. The reference does not read these fields; it is trained once for all their values.
NOT_READ = (
    "checkpoint_dir", "checkpoint_steps", "checkpoint_keep", "resume", "resume_from", "resume_anyway", "workers",
    "prefetch", "timeout_s", "limit_s", "bucket_cap_mb", "compression", "opt_level", "cut", "split_size",
    "copy_stream", "microbatches", "pipeline_schedule", "comm_hook", "powersgd_rank", "shard_ranks", "local_period",
    "local_group", "compile", "cuda_graphs", "fused", "cudnn_benchmark", "cudnn_deterministic", "static_graph",
    "gradient_as_bucket_view", "broadcast_buffers", "label",
)  # fmt: skip


def why_no_reference(training: Training) -> str:
    """Why no reference computes what the run computes; '' where one does."""
    if training.precision not in (*PLAIN, *AUTOCAST):
        return f"there is no reference in precision {training.precision}"
    if training.layout.compression not in TRAVELS_AS:
        return f"there is no reference whose gradients travel as {training.layout.compression}"
    return ""


def training_of(config: Config, resolved: dict[str, Any]) -> Training:
    """What a run trained. config: as requested. resolved: what `auto` became. Sets torch's number of threads."""
    layout = Layout(**{name: resolved[name] for name in STORED_FIELDS})
    config = dataclasses.replace(config, **{name: getattr(Config(), name) for name in NOT_READ})
    batch = resolved.get("global_batch", config.global_batch)  # where images per device were requested
    config = dataclasses.replace(config, global_batch=batch, batch_per_device=0)
    torch.set_num_threads(resolved["threads_per_rank"])  # another number of threads adds in another order
    met = {name: resolved[name] for name in ("decoder", "memory_format")}
    return Training(dataclasses.replace(config, **met), layout, resolved["precision"], resolved["device"])


def saved_states(folder: Path, training: Training) -> list[SavedState]:
    """The states that a run saved, in order: the initial weights first, or of an exact proof the last state only."""
    paths = [*folder.glob("epoch*-step*.pt")] or [folder / "last.pt"]
    saved = {state.step: state for state in (read_saved_state(path, training) for path in paths)}
    return [*([] if training.exact else [initial_state(training)]), *(saved[step] for step in sorted(saved))]


def initial_state(training: Training) -> SavedState:
    """The initial weights, which every run starts from."""
    classes = num_classes(labelled_images(Path(training.config.data) / "train"))
    net = build_model(training.config, classes).to(training.device)
    return SavedState(0, {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()})


def read_saved_state(path: Path, training: Training) -> SavedState:
    """The state in a checkpoint. A parameter that the optimizer does not have has no momentum."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    state, moved = dict(saved["model"]), saved["optimizer"]["state"]
    names = [name for name, _ in model_on_meta(training.config).named_parameters()]
    held = [number for group in saved["optimizer"]["param_groups"] for number in group["params"]]
    for number, of_parameter in moved.items():
        name = names[number] if len(held) == len(names) else f"an optimizer of {len(held)} tensors, number {number}"
        state |= optimizer_state(name, of_parameter)
    at = saved["epoch"] * training.config.steps + saved["step"]
    return SavedState(
        at, state, loss_scale(saved["extra"]), tuple(rank_states(training, state, saved.get("ranks") or []))
    )


def rank_states(training: Training, state: State, vectors: list[torch.Tensor]) -> list[State]:
    """The State of each rank, from the vector of its weights, buffers, and what the optimizer keeps of each weight, in
    the model's order. state: whose tensors have the same names and shapes."""
    net = model_on_meta(training.config)
    weights = [name for name, _ in net.named_parameters()]
    names = [*weights, *(name for name, _ in net.named_buffers())]
    names += [prefix + name for name in weights for prefix in OF_OPTIMIZER if prefix + name in state]
    sizes = [state[name].numel() for name in names]
    return [
        {name: part.view(state[name].shape) for name, part in zip(names, vector.split(sizes), strict=True)}
        for vector in vectors
    ]


def model_on_meta(config: Config) -> torch.nn.Module:
    """The model without data, for its names."""
    with torch.device("meta"):
        return draw_model(config, 1)


def loss_scale(extra: dict[str, Any]) -> float:
    """The scale of the loss in what a script saved besides the model; INITIAL_SCALE where there is none."""
    for name, value in extra.items():
        if name in ("scale", "loss_scale"):
            return float(value)
        if isinstance(value, dict) and value:
            return loss_scale(value)
    return INITIAL_SCALE


def perturb(state: State, rounding: float, seed: int = 1) -> State:
    """A State whose weights have random relative errors of up to `rounding`, as if other kernels had rounded them."""
    generator, perturbed = torch.Generator().manual_seed(seed), {}
    for name, tensor in state.items():
        error = torch.rand(tensor.shape, generator=generator) * 2 - 1 if tensor.is_floating_point() else torch.zeros(())
        kept = name.startswith(OF_OPTIMIZER)
        perturbed[name] = tensor if kept else (tensor * (1 + rounding * error)).to(tensor.dtype)
    return perturbed
