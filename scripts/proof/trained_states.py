"""What a run trained, and the states that it left: what the reference goes on from, and is compared with.

from scripts.proof.trained_states import kept_states, training_of
"""

import dataclasses
from pathlib import Path

import torch

from benchmarks.common.config.config import Config
from benchmarks.common.config.settings import Shape
from benchmarks.common.model.model import build_model, draw_model
from scripts.proof.reference import AUTOCAST, MOMENTUM, PLAIN, TRAVELS_AS, State
from scripts.proof.reference_images import labelled_images, num_classes

# Who computes it, where and when: the reference does not read these, and is trained once for all their values.
NOT_READ = (
    "checkpoint_dir", "checkpoint_steps", "checkpoint_keep", "resume", "resume_from", "resume_anyway", "workers",
    "prefetch", "timeout_s", "limit_s", "rendezvous", "bucket_cap_mb", "compression", "opt_level", "cut", "split_size",
    "copy_stream", "microbatches", "pipeline_schedule", "comm_hook", "powersgd_rank", "shard_ranks", "local_period",
    "local_group", "compile", "cuda_graphs", "fused", "cudnn_benchmark", "cudnn_deterministic", "static_graph",
    "gradient_as_bucket_view",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Training:
    """What a run trained, as far as the reference reads it."""

    config: Config
    shape: Shape
    precision: str
    device: str

    @property
    def exact(self) -> bool:
        return self.shape.exact and self.device == "cpu" and self.shape.num_shards <= 2

    @property
    def num_steps(self) -> int:
        return self.config.epochs * self.config.steps


@dataclasses.dataclass(frozen=True)
class Kept:
    """A state that a run left: after how many of its steps, the scale of its loss, and where ranks train apart, what
    each of them has by itself."""

    step: int
    state: State
    scale: float = 2.0**16
    ranks: tuple[State, ...] = ()


def no_reference(training: Training) -> str:
    """Why no reference does what the run does; empty where one does."""
    if training.precision not in (*PLAIN, *AUTOCAST):
        return f"there is no reference in precision {training.precision}"
    if training.shape.compression not in TRAVELS_AS:
        return f"there is no reference whose gradients travel as {training.shape.compression}"
    return ""


def training_of(config: Config, met: dict) -> Training:
    """config: what the run was asked. met: what it came to."""
    shape = Shape(**{field.name: met[field.name] for field in dataclasses.fields(Shape)})
    config = dataclasses.replace(config, **{name: getattr(Config(), name) for name in NOT_READ})
    batch = met.get("global_batch", config.global_batch)  # met where images a device were asked
    config = dataclasses.replace(config, global_batch=batch, batch_per_device=0)
    torch.set_num_threads(met["threads_per_rank"])  # other threads, other sums
    return Training(dataclasses.replace(config, decoder=met["decoder"]), shape, met["precision"], met["device"])


def kept_states(folder: Path, training: Training) -> list[Kept]:
    """What a run left: of one with checkpoint_keep the initial weights and every state, in order, else the last."""
    paths = [*folder.glob("epoch*-step*.pt")] or [folder / "last.pt"]
    kept = {read.step: read for read in (read_kept(path, training) for path in paths)}
    return [*([] if training.exact else [initial(training)]), *(kept[step] for step in sorted(kept))]


def initial(training: Training) -> Kept:
    """What every run starts from."""
    classes = num_classes(labelled_images(Path(training.config.data) / "train"))
    net = build_model(training.config, classes, torch.device(training.device))
    return Kept(0, {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()})


def read_kept(path: Path, training: Training) -> Kept:
    """A checkpoint's State. A parameter that its optimizer does not hold has no momentum there."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    state, moved = dict(saved["model"]), saved["optimizer"]["state"]
    with torch.device("meta"):
        names = [name for name, _ in draw_model(training.config, len(state["fc.bias"])).named_parameters()]
    held = [number for group in saved["optimizer"]["param_groups"] for number in group["params"]]
    for number, of_parameter in moved.items():
        name = names[number] if len(held) == len(names) else f"an optimizer of {len(held)} tensors, number {number}"
        if of_parameter.get("momentum_buffer") is not None:
            state[MOMENTUM + name] = of_parameter["momentum_buffer"]
    at = saved["epoch"] * training.config.steps + saved["step"]
    return Kept(at, state, scale_of(saved["extra"]), tuple(of_ranks(training, state, saved.get("ranks") or [])))


def of_ranks(training: Training, state: State, vectors: list[torch.Tensor]) -> list[State]:
    """Of each rank: a vector of its weights, its buffers and its momentum, in the model's order, as a State."""
    with torch.device("meta"):
        net = draw_model(training.config, len(state["fc.bias"]))
    tensors = [*net.named_parameters(), *net.named_buffers()]
    tensors += [(MOMENTUM + name, parameter) for name, parameter in net.named_parameters() if MOMENTUM + name in state]
    sizes = [tensor.numel() for _, tensor in tensors]
    return [
        {name: part.view(tensor.shape) for (name, tensor), part in zip(tensors, vector.split(sizes), strict=True)}
        for vector in vectors
    ]


def scale_of(extra: dict) -> float:
    """The scale of the loss among what a script saved besides; torch's and Apex's first one where there is none."""
    for name, value in extra.items():
        if name in ("scale", "loss_scale"):
            return float(value)
        if isinstance(value, dict) and value:
            return scale_of(value)
    return 2.0**16


def disturbed(state: State, rounding: float, seed: int = 1) -> State:
    """A State whose weights have random relative errors of up to `rounding`, as if other kernels had rounded them."""
    draw, changed = torch.Generator().manual_seed(seed), {}
    for name, tensor in state.items():
        error = torch.rand(tensor.shape, generator=draw) * 2 - 1 if tensor.is_floating_point() else torch.zeros(())
        changed[name] = tensor if name.startswith(MOMENTUM) else (tensor * (1 + rounding * error)).to(tensor.dtype)
    return changed
