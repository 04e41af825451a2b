"""The training that every strategy has to reproduce: one process that takes the shards one after the other.

    python -m scripts.verify.verify        # compares every strategy with it

Only the initial weights and the learning rate are the suite's own, so that a fault of it is not repeated here.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from benchmarks.common.architectures import ARCHITECTURES
from benchmarks.common.config import Config
from benchmarks.common.model import build_model, learning_rate
from benchmarks.common.strategy import Layout
from scripts.verify.reference_images import Key, decode, labelled_images, num_classes, training_batch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "apex-O1": torch.float16}
PLAIN = ("fp32", "tf32", "apex-O0")  # no autocast; what else a run may compute in has no reference
TRAVELS_AS = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MOMENTUM, SQUARES = "momentum of ", "squared gradients of "
STATE_NAMES = {
    "momentum_buffer": MOMENTUM,
    "step": "steps of ",
    "exp_avg": MOMENTUM,
    "exp_avg_sq": SQUARES,
}
"""What torch's optimizers keep of a parameter, and what a State puts before the parameter's name for it."""
KEPT: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
}
OF_OPTIMIZER = ("steps of ", MOMENTUM, SQUARES)
"""How names of a State begin that are no model's; those of AdamW in its own order."""
ADAM_BETA2 = 0.999
INITIAL_SCALE = 2.0**16  # of the loss in fp16, as of torch and Apex

State = dict[str, torch.Tensor]
"""A state_dict, and what the optimizer keeps of each parameter, such as its momentum under MOMENTUM and its name."""
Average = Callable[[list[torch.Tensor]], torch.Tensor]
"""The mean of the shards' gradients, in the type in which they travel."""


def average_in_order(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Added in the order of the shards, then divided, in the type in which they travel. DDP divides first, which for
    two shards is the same to the last bit."""
    total = torch.zeros_like(gradients[0])
    for gradient in gradients:
        total += gradient
    return total / len(gradients)


def average_in_float64(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Added and divided in float64."""
    total = gradients[0].double()
    for gradient in gradients[1:]:
        total = total + gradient.double()
    return total / len(gradients)


@dataclasses.dataclass(frozen=True)
class Training:
    """What a run trained, as far as the reference reads it."""

    config: Config
    layout: Layout
    precision: str
    device: str

    @property
    def exact(self) -> bool:
        return self.layout.exact and self.device == "cpu" and self.layout.num_shards <= 2

    @property
    def num_steps(self) -> int:
        return self.config.epochs * self.config.steps


@dataclasses.dataclass(frozen=True)
class SavedState:
    """A state that a run saved."""

    step: int
    """Steps before it."""
    state: State
    scale: float = INITIAL_SCALE
    """Of the loss."""
    ranks: tuple[State, ...] = ()
    """Each rank's own state, where the ranks train replicas of their own."""


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How the reference divides a step and computes its gradients."""

    layout: Layout
    device: torch.device
    autocast: torch.dtype | None
    scaler: torch.amp.GradScaler
    average: Average


def train_reference(
    training: Training, before: SavedState | None = None, last: int | None = None, average: Average = average_in_order
) -> State:
    """The State after step `last` (default: the training's last one), trained in this process.

    before: where to go on from; default: the initial weights. average: the mean of the shards' gradients. Running
    statistics are those of shard 0, as on rank 0. Raises UserError where an image cannot be read.
    """
    config, device = training.config, torch.device(training.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True  # as cases.proof_config has them
    net = build_model(config, num_classes(labelled_images(Path(config.data) / "train"))).to(device).train()
    optimizer = plain_optimizer(config, net)
    if before:
        load_state(net, optimizer, before.state)
    autocast, scale = AUTOCAST.get(training.precision), before.scale if before else INITIAL_SCALE
    scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=autocast == torch.float16)
    steps = range(before.step if before else 0, training.num_steps if last is None else last)
    arithmetic = Arithmetic(training.layout, device, autocast, scaler, average)
    if training.layout.period:
        return train_replicas(config, net, optimizer, arithmetic, steps, before.ranks if before else ())
    for at in tqdm(steps, desc="reference", unit="step", disable=None, leave=False):
        epoch, step = divmod(at, config.steps)
        pixels, target = training_batch(config, epoch, step, device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, epoch + step / config.steps)
        average_gradients(net, pixels, target, arithmetic)
        scaler.step(optimizer)
        scaler.update()
    return read_state(net, optimizer)


def plain_optimizer(config: Config, net: nn.Module) -> torch.optim.Optimizer:
    """The architecture's optimizer, built here, so that a mistake of the suite's is not repeated."""
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        betas = (config.momentum, ADAM_BETA2)
        return torch.optim.AdamW(net.parameters(), lr=config.lr, betas=betas, weight_decay=config.weight_decay)
    return torch.optim.SGD(net.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


def train_replicas(
    config: Config,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    arithmetic: Arithmetic,
    steps: range,
    starts: Sequence[State],
) -> State:
    """As train_reference, for local SGD: each group of shards trains a replica, and all replicas get the mean of their
    weights after every layout.period steps.

    starts: the State of each shard (default: that of `net`). The returned statistics and momentum are shard 0's.
    """
    layout = arithmetic.layout
    replicas = [(net, optimizer)]
    for _ in range(1, layout.num_shards // layout.group):
        other = copy.deepcopy(net)
        replicas.append((other, plain_optimizer(config, other)))
    for (replica, own_optimizer), state in zip(replicas, starts[:: layout.group], strict=bool(starts)):
        load_state(replica, own_optimizer, state)
    of_group = dataclasses.replace(
        arithmetic,
        layout=dataclasses.replace(layout, num_shards=layout.group),
        scaler=torch.amp.GradScaler(arithmetic.device.type, enabled=False),
    )
    for at in tqdm(steps, desc="reference", unit="step", disable=None, leave=False):
        epoch, step = divmod(at, config.steps)
        pixels, target = training_batch(config, epoch, step, arithmetic.device)
        for number, (replica, own_optimizer) in enumerate(replicas):
            own_optimizer.param_groups[0]["lr"] = learning_rate(config, epoch + step / config.steps)
            own_pixels = pixels.tensor_split(len(replicas))[number]
            own_target = target.tensor_split(len(replicas))[number]
            average_gradients(replica, own_pixels, own_target, of_group)
            own_optimizer.step()
        if (at + 1) % layout.period == 0 or at + 1 == steps.stop:
            average_weights([replica for replica, _ in replicas], arithmetic.average)
    return read_state(net, optimizer)


@torch.no_grad()
def average_weights(replicas: Sequence[nn.Module], average: Average) -> None:
    """Give every replica the mean of all replicas' weights."""
    for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = average([*parameters])
        for parameter in parameters:
            parameter.copy_(mean)


def read_state(net: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The State of a model and its optimizer, copied to the CPU."""
    state = {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()}
    for name, parameter in net.named_parameters():
        kept = optimizer.state.get(parameter, {})
        state |= {key: tensor.cpu().clone() for key, tensor in optimizer_state(name, kept).items()}
    return state


def optimizer_state(name: str, kept: Mapping[str, torch.Tensor | None]) -> State:
    """The part of a State that is about one parameter. kept: what its optimizer keeps, by torch's names."""
    return {
        prefix + name: tensor.detach() for key, prefix in STATE_NAMES.items() if (tensor := kept.get(key)) is not None
    }


def model_state(state: State) -> State:
    """The weights and buffers of a State."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(OF_OPTIMIZER)}


def load_state(net: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Give the model and its optimizer a State."""
    net.load_state_dict(model_state(state))
    for name, parameter in net.named_parameters():
        for key in KEPT[type(optimizer)]:
            tensor = state.get(STATE_NAMES[key] + name)
            if tensor is not None:
                of_parameter = torch.empty_like(parameter).copy_(tensor) if tensor.dim() else tensor.clone()
                optimizer.state[parameter][key] = of_parameter


def average_gradients(net: nn.Module, pixels: torch.Tensor, target: torch.Tensor, arithmetic: Arithmetic) -> None:
    """Leave in each parameter's .grad the mean of the shards' gradients, in the type in which they travel.

    pixels: float32 (N, 3, height, width) of all shards. target: int64 (N,).
    """
    layout, autocast = arithmetic.layout, arithmetic.autocast
    num_shards, num_losses = layout.num_shards, 1 if layout.split_size else layout.num_microbatches
    travels_as = TRAVELS_AS[layout.compression] if num_shards > 1 else torch.float32
    gradients: list[list[torch.Tensor]] = [[] for _ in net.parameters()]
    for shard in range(num_shards):
        statistics = [buffer.clone() for buffer in net.buffers()]
        net.zero_grad()
        mine = (tensor.tensor_split(num_shards)[shard].tensor_split(num_losses) for tensor in (pixels, target))
        for part_pixels, part_target in zip(*mine, strict=True):
            with torch.autocast(pixels.device.type, autocast, enabled=autocast is not None):
                # one loss of all scores: the mean of the splits' means would weigh the images of a short one more
                scores = [net(split) for split in part_pixels.split(layout.split_size or len(part_pixels))]
                loss = cross_entropy(torch.cat(scores), part_target)
            arithmetic.scaler.scale(loss).backward()
        for of_shards, parameter in zip(gradients, net.parameters(), strict=True):
            assert parameter.grad is not None
            of_shards.append((parameter.grad / num_losses).to(travels_as))
        if shard > 0:
            for buffer, of_shard_0 in zip(net.buffers(), statistics, strict=True):
                buffer.copy_(of_shard_0)
    for of_shards, parameter in zip(gradients, net.parameters(), strict=True):
        parameter.grad = arithmetic.average(of_shards).to(parameter.dtype)


@torch.no_grad()
def evaluate_reference(
    config: Config, state: State, num_shares: int, precision: str, device: torch.device
) -> dict[str, float]:
    """loss, acc1 and acc5 (per cent) over all `images` of val/, of a State's weights: each image once.

    acc1_tied and acc5_tied (per cent) are of images of which a tie of scores decides. num_shares: parts of a global
    batch that pass through the model one after the other.
    """
    images = labelled_images(Path(config.data) / "val")
    net = build_model(config, num_classes(labelled_images(Path(config.data) / "train"))).to(device)
    net.load_state_dict(model_state(state))
    net.eval()
    autocast, loss, right, tied = AUTOCAST.get(precision), 0.0, {1: 0, 5: 0}, {1: 0, 5: 0}
    firsts = range(0, len(images), config.global_batch)
    for first in tqdm(firsts, desc="reference, evaluation", unit="batch", disable=None, leave=False):
        keys: list[Key] = [(index, None) for index in range(first, min(first + config.global_batch, len(images)))]
        whole = decode(config, images, keys, device)
        for pixels, target in zip(*(tensor.tensor_split(num_shares) for tensor in whole), strict=True):
            if not len(target):
                continue
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                scores = net(pixels)
            loss += cross_entropy(scores.float(), target, reduction="none").double().sum().item()
            for k in right:
                num_right, num_tied = count_top(scores, target, k)
                right[k] += num_right
                tied[k] += num_tied
    percent = {f"acc{k}": 100 * num / len(images) for k, num in right.items()}
    percent_tied = {f"acc{k}_tied": 100 * num / len(images) for k, num in tied.items()}
    return {"images": len(images), "loss": loss / len(images), **percent, **percent_tied}


def count_top(scores: torch.Tensor, target: torch.Tensor, k: int) -> tuple[int, int]:
    """How many images have their class among the k best of `scores`, and of how many a tie decides that.

    scores: (N, classes). target: (N,) class numbers. Of equal scores the first class is the better one; torch.topk
    takes any.
    """
    target_scores = scores.gather(1, target[:, None])
    num_better, num_equal = (scores > target_scores).sum(dim=1), (scores == target_scores).sum(dim=1)
    num_right = (scores.argsort(dim=1, descending=True, stable=True)[:, :k] == target[:, None]).sum().item()
    num_tied = ((num_better < k) & (num_better + num_equal > k)).sum().item()
    return int(num_right), int(num_tied)
