"""The training that every strategy has to reproduce: one process that takes the shards one after the other. Initial
weights, learning rate and decoders are the suite's, all else is its own."""

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
KEPT = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")
"""By torch's SGD and AdamW, of a parameter. A State has it as "exp_avg of conv1.weight"."""
OF_OPTIMIZER = tuple(f"{key} of " for key in KEPT)
ADAM_BETA2 = 0.999
INITIAL_SCALE = 2.0**16  # of the loss in fp16, as of torch and Apex

State = dict[str, torch.Tensor]
"""A state_dict, and what the optimizer keeps."""
Average = Callable[[list[torch.Tensor]], torch.Tensor]
"""In the type in which gradients travel."""


def average_in_order(gradients: list[torch.Tensor]) -> torch.Tensor:
    """DDP divides first, which for two shards is the same to the last bit."""
    total = torch.zeros_like(gradients[0])
    for gradient in gradients:
        total += gradient
    return total / len(gradients)


def average_in_float64(gradients: list[torch.Tensor]) -> torch.Tensor:
    total = gradients[0].double()
    for gradient in gradients[1:]:
        total = total + gradient.double()
    return total / len(gradients)


@dataclasses.dataclass(frozen=True)
class Training:
    """As far as the reference reads it."""

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
    """step: steps before it. scale: of the loss. ranks: of replicas, each rank's own."""

    step: int
    state: State
    scale: float = INITIAL_SCALE
    ranks: tuple[State, ...] = ()


def train_reference(
    training: Training, before: SavedState | None = None, last: int | None = None, average: Average = average_in_order
) -> State:
    """After step `last` (default: the training's last one), from `before` (default: the initial weights). Running
    statistics are those of shard 0. With layout.period (local SGD) each group of shards trains a replica, and all get
    the mean of their weights after every `period` steps."""
    config, layout, device = training.config, training.layout, torch.device(training.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True  # as cases.proof_config has them
    net = build_model(config, num_classes(config)).to(device).train()
    before = before or SavedState(0, read_state(net, plain_optimizer(config, net)))
    num_replicas = layout.num_shards // layout.group if layout.period else 1
    starts = before.ranks[:: layout.group] or [before.state] * num_replicas
    nets = [net, *(copy.deepcopy(net) for _ in starts[1:])]
    replicas = [(each, plain_optimizer(config, each)) for each in nets]
    for (replica, optimizer), state in zip(replicas, starts, strict=True):
        load_state(replica, optimizer, state)
    autocast = AUTOCAST.get(training.precision)
    scaled = autocast == torch.float16 and not layout.period
    scaler = torch.amp.GradScaler(device.type, init_scale=before.scale, enabled=scaled)
    of_replica = dataclasses.replace(layout, num_shards=layout.num_shards // num_replicas)
    steps = range(before.step, training.num_steps if last is None else last)
    for at in tqdm(steps, desc="reference", unit="step", disable=None, leave=False):
        epoch, step = divmod(at, config.steps)
        parts = [part.tensor_split(num_replicas) for part in training_batch(config, epoch, step, device)]
        for (replica, optimizer), pixels, target in zip(replicas, *parts, strict=True):
            optimizer.param_groups[0]["lr"] = learning_rate(config, epoch + step / config.steps)
            set_gradients(replica, pixels, target, of_replica, autocast, scaler, average)
            scaler.step(optimizer)
            scaler.update()
        if layout.period and ((at + 1) % layout.period == 0 or at + 1 == steps.stop):
            average_weights([replica for replica, _ in replicas], average)
    return read_state(*replicas[0])


def plain_optimizer(config: Config, net: nn.Module) -> torch.optim.Optimizer:
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        betas = (config.momentum, ADAM_BETA2)
        return torch.optim.AdamW(net.parameters(), lr=config.lr, betas=betas, weight_decay=config.weight_decay)
    return torch.optim.SGD(net.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


@torch.no_grad()
def average_weights(replicas: Sequence[nn.Module], average: Average) -> None:
    for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = average([*parameters])
        for parameter in parameters:
            parameter.copy_(mean)


def read_state(net: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    state = {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()}
    for name, parameter in net.named_parameters():
        kept = optimizer.state.get(parameter, {})
        state |= {key: tensor.cpu().clone() for key, tensor in optimizer_state(name, kept).items()}
    return state


def optimizer_state(name: str, kept: Mapping[str, torch.Tensor | None]) -> State:
    return {f"{key} of {name}": tensor.detach() for key in KEPT if (tensor := kept.get(key)) is not None}


def model_state(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if not name.startswith(OF_OPTIMIZER)}


def load_state(net: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    net.load_state_dict(model_state(state))
    for name, parameter in net.named_parameters():
        for key in KEPT:
            tensor = state.get(f"{key} of {name}")
            if tensor is not None:
                of_parameter = torch.empty_like(parameter).copy_(tensor) if tensor.dim() else tensor.clone()
                optimizer.state[parameter][key] = of_parameter


def set_gradients(
    net: nn.Module,
    pixels: torch.Tensor,
    target: torch.Tensor,
    layout: Layout,
    autocast: torch.dtype | None,
    scaler: torch.amp.GradScaler,
    average: Average,
) -> None:
    """To the average of all shards. pixels: float32 (N, 3, height, width). target: int64 (N,)."""
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
            scaler.scale(loss).backward()
        for of_shards, parameter in zip(gradients, net.parameters(), strict=True):
            assert parameter.grad is not None
            of_shards.append((parameter.grad / num_losses).to(travels_as))
        if shard > 0:
            for buffer, of_shard_0 in zip(net.buffers(), statistics, strict=True):
                buffer.copy_(of_shard_0)
    for of_shards, parameter in zip(gradients, net.parameters(), strict=True):
        parameter.grad = average(of_shards).to(parameter.dtype)


@torch.no_grad()
def evaluate_reference(training: Training, state: State, num_shares: int) -> dict[str, float]:
    """Images, loss, acc1 and acc5 (per cent); acc1_tied, acc5_tied (per cent): where a tie of scores decides.
    num_shares: parts of a global batch."""
    config, device = training.config, torch.device(training.device)
    images = labelled_images(Path(config.data) / "val")
    net = build_model(config, num_classes(config)).to(device)
    net.load_state_dict(model_state(state))
    net.eval()
    autocast, loss, right, tied = AUTOCAST.get(training.precision), 0.0, {1: 0, 5: 0}, {1: 0, 5: 0}
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
    found = {"images": len(images), "loss": loss / len(images)}
    for k in right:
        found |= {f"acc{k}": 100 * right[k] / len(images), f"acc{k}_tied": 100 * tied[k] / len(images)}
    return found


def count_top(scores: torch.Tensor, target: torch.Tensor, k: int) -> tuple[int, int]:
    """Of how many images the class is among the k best of `scores` (N, classes), and of how many a tie decides that:
    torch.topk takes any of equal ones."""
    target_scores = scores.gather(1, target[:, None])
    num_better, num_equal = (scores > target_scores).sum(dim=1), (scores == target_scores).sum(dim=1)
    num_right = (scores.argsort(dim=1, descending=True, stable=True)[:, :k] == target[:, None]).sum().item()
    num_tied = ((num_better < k) & (num_better + num_equal > k)).sum().item()
    return int(num_right), int(num_tied)
