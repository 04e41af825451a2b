"""The training that every strategy has to reproduce: one process that takes the shards one after the other.

    python -m scripts.proof.verify        # compares every strategy with it

It deals the images, cuts the shards and averages the gradients itself, so that a fault of the code under test is
not repeated here. Only the initial weights and the learning rate are the suite's own.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from benchmarks.common.config.config import Config
from benchmarks.common.config.settings import Shape
from benchmarks.common.model.model import build_model, learning_rate
from scripts.proof.reference_images import decode, labelled_images, num_classes, training_batch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "apex-O1": torch.float16}
PLAIN = ("fp32", "tf32", "apex-O0")  # no autocast; what else a run may compute in has no reference
TRAVELS_AS = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MOMENTUM = "momentum of "

State = dict[str, torch.Tensor]
"""A state_dict, and the momentum of each parameter under MOMENTUM and its name."""
Exchange = Callable[[list[torch.Tensor]], torch.Tensor]
"""Makes of the shards' gradients, in the type in which they travel, their mean."""


def one_by_one(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Added in the order of the shards, then divided, in the type in which they travel.

    DDP divides first: for two shards that is the same to the last bit, since halving is exact.
    """
    total = torch.zeros_like(gradients[0])
    for gradient in gradients:
        total += gradient
    return total / len(gradients)


def without_rounding(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Added and divided in float64: what a sum in any order is a rounding of."""
    return sum(gradient.double() for gradient in gradients) / len(gradients)


def train_reference(
    config: Config,
    shape: Shape,
    precision: str,
    device: torch.device,
    *,
    start: State | None = None,
    steps: range | None = None,
    scale: float = 2.0**16,
    exchange: Exchange = one_by_one,
    starts: Sequence[State] = (),
) -> State:
    """The State after `steps` of config.epochs x config.steps optimizer steps (default: all) in this process.

    precision: what the run computed in, of PLAIN or AUTOCAST. start: where to go on from (default: config's initial
    weights); starts: the same of each shard, where they train apart. scale: of the loss, to begin with, where the
    precision has one. exchange: makes of the shards' gradients their mean. Running statistics are those of shard 0, as
    on rank 0. Uses torch's current number of threads. Raises UserError where an image cannot be read.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True  # as wanted.at_proof has them
    net = build_model(config, num_classes(labelled_images(Path(config.data) / "train")), device).train()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    if start:
        load_state(net, optimizer, start)
    autocast = AUTOCAST.get(precision)
    scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=autocast == torch.float16)
    steps = range(config.epochs * config.steps) if steps is None else steps
    if shape.period:
        return train_apart(config, shape, net, optimizer, autocast, device, steps, exchange, starts)
    for at in tqdm(steps, desc="reference", unit="step", disable=None, leave=False):
        epoch, step = divmod(at, config.steps)
        pixels, target = training_batch(config, epoch, step, device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, epoch + step / config.steps)
        average_gradients(net, pixels, target, shape, autocast, scaler, exchange)
        scaler.step(optimizer)
        scaler.update()
    return read_state(net, optimizer)


def train_apart(
    config: Config, shape: Shape, net: nn.Module, optimizer, autocast, device, steps: range, exchange, starts
) -> State:
    """The same, of groups of shards that each train a copy of their own, and get the mean of the weights after every
    shape.period steps; the State has that mean, and the statistics and momentum of shard 0."""
    copies = [(net, optimizer)]
    for _ in range(1, shape.num_shards // shape.group):
        other = copy.deepcopy(net)
        copies.append((other, torch.optim.SGD(other.parameters(), **optimizer.defaults)))
    for own, state in zip(copies, starts[:: shape.group], strict=bool(starts)):
        load_state(*own, state)
    of_group = dataclasses.replace(shape, num_shards=shape.group)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    for at in tqdm(steps, desc="reference", unit="step", disable=None, leave=False):
        epoch, step = divmod(at, config.steps)
        batch = training_batch(config, epoch, step, device)
        for place, (own, updating) in enumerate(copies):
            updating.param_groups[0]["lr"] = learning_rate(config, epoch + step / config.steps)
            mine = (tensor.tensor_split(len(copies))[place] for tensor in batch)
            average_gradients(own, *mine, of_group, autocast, scaler, exchange)
            updating.step()
        if (at + 1) % shape.period == 0 or at + 1 == steps.stop:
            with torch.no_grad():
                for of_copies in zip(*(own.parameters() for own, _ in copies), strict=True):
                    mean = exchange([*of_copies])
                    for parameter in of_copies:
                        parameter.copy_(mean)
    return read_state(net, optimizer)


def read_state(net: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Copies on the CPU of what training goes on from."""
    state = {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()}
    for name, parameter in net.named_parameters():
        buffer = optimizer.state[parameter].get("momentum_buffer") if parameter in optimizer.state else None
        if buffer is not None:
            state[MOMENTUM + name] = buffer.detach().cpu().clone()
    return state


def load_state(net: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Go on from a State."""
    net.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith(MOMENTUM)})
    for name, parameter in net.named_parameters():
        if MOMENTUM + name in state:
            buffer = torch.empty_like(parameter).copy_(state[MOMENTUM + name])
            optimizer.state[parameter]["momentum_buffer"] = buffer


def average_gradients(
    net: nn.Module, pixels, target, shape: Shape, autocast, scaler: torch.amp.GradScaler, exchange: Exchange
) -> None:
    """Leave in each parameter's .grad what `exchange` makes of the shards' gradients, as they travel."""
    num_shards, num_losses = shape.num_shards, 1 if shape.split_size else shape.num_microbatches
    travels_as = TRAVELS_AS[shape.compression] if num_shards > 1 else torch.float32
    gradients: list[list[torch.Tensor]] = [[] for _ in net.parameters()]
    for shard in range(num_shards):
        statistics = [buffer.clone() for buffer in net.buffers()]
        net.zero_grad()
        mine = (tensor.tensor_split(num_shards)[shard].tensor_split(num_losses) for tensor in (pixels, target))
        for part_pixels, part_target in zip(*mine, strict=True):
            with torch.autocast(pixels.device.type, autocast, enabled=autocast is not None):
                # one loss of all scores: the mean of the splits' means would weigh the images of a short one more
                scores = [net(split) for split in part_pixels.split(shape.split_size or len(part_pixels))]
                loss = cross_entropy(torch.cat(scores), part_target)
            scaler.scale(loss).backward()
        for of_shards, parameter in zip(gradients, net.parameters(), strict=True):
            of_shards.append((parameter.grad / num_losses).to(travels_as))
        if shard > 0:
            for buffer, of_shard_0 in zip(net.buffers(), statistics, strict=True):
                buffer.copy_(of_shard_0)
    for of_shards, parameter in zip(gradients, net.parameters(), strict=True):
        parameter.grad = exchange(of_shards).to(parameter.dtype)


@torch.no_grad()
def evaluate_reference(
    config: Config, state: State, num_shares: int, precision: str, device: torch.device
) -> dict[str, float]:
    """loss, acc1 and acc5 (per cent) over all `images` of val/, of a State's weights: each image once.

    num_shares: equal parts of a global batch that pass through the model one after the other.
    """
    images = labelled_images(Path(config.data) / "val")
    net = build_model(config, num_classes(labelled_images(Path(config.data) / "train")), device)
    net.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith(MOMENTUM)})
    net.eval()
    autocast, loss, right = AUTOCAST.get(precision), 0.0, [0, 0]
    firsts = range(0, len(images), config.global_batch)
    for first in tqdm(firsts, desc="reference, evaluation", unit="batch", disable=None, leave=False):
        keys = [(index, None) for index in range(first, min(first + config.global_batch, len(images)))]
        whole = decode(config, images, keys, device)
        for pixels, target in zip(*(tensor.tensor_split(num_shares) for tensor in whole), strict=True):
            if not len(target):
                continue
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                scores = net(pixels)
            loss += cross_entropy(scores.float(), target, reduction="none").double().sum().item()
            best = scores.argsort(dim=1, descending=True, stable=True) == target[:, None]
            right = [right[0] + best[:, :1].sum().item(), right[1] + best[:, :5].sum().item()]
    return {
        "images": len(images),
        "loss": loss / len(images),
        "acc1": 100 * right[0] / len(images),
        "acc5": 100 * right[1] / len(images),
    }
