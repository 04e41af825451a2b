"""When the backward pass has each gradient, of how many bytes: what buckets, and so a prediction, are made of.

    python -m scripts.studies.predict.gradient_times --out gradients.csv --arch resnet50 --image-size 224

One device by itself; hooks note the moment at which each parameter's gradient is whole, as a share of the backward
pass. Every other flag is a configuration field; a set's own are taken with --results. Without either: CONFIG, ARGS.
"""

import dataclasses
import math
import sys
from pathlib import Path

import torch
import tyro
from torch.nn.functional import cross_entropy

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.dist.devices import synchronize
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.model.stages import cut_stages, trace
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.gpus import usable_gpus
from benchmarks.common.train.clock import Clock
from scripts.runner.make_variables import read_variables
from scripts.runner.measured_figures import add_rows
from scripts.runner.preflight import why_published
from scripts.sets.result_set import BASELINE, load_set
from scripts.studies.predict.machine_models import baseline_of
from scripts.studies.predict.timeline import Gradient

WARM_STEPS, STEPS = 2, 5


@dataclasses.dataclass(frozen=True)
class Options:
    out: Path | None = None
    """CSV file to write; default: gradients.csv in --results."""
    results: Path | None = None
    """A result set, whose baseline says the model, the images and the batch."""
    num_classes: int = 0
    """Of the last layer; 0: as many as the data have, or ImageNet's 1,000 without."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """forward_s, backward_s: of one step, means of STEPS."""

    gradients: tuple[Gradient, ...]
    forward_s: float
    backward_s: float


def main(options: Options, config: Config) -> None:
    if options.out is None and options.results is None:
        raise UserError("where to? give --out results/gradients.csv, or --results results/latest")
    out = options.out or options.results / "gradients.csv"
    if not options.out and (why := why_published(options.results)):
        raise UserError(f"{why}; --out names another file")
    device = torch.device("cuda" if usable_gpus() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(machine.threads_per_rank(machine.num_ranks()))
    train = Path(config.data) / "train"
    num_classes = options.num_classes or (sum(each.is_dir() for each in train.iterdir()) if train.is_dir() else 1000)
    found = profile(config, num_classes, device)
    shape = {name: getattr(config, name) for name in ("arch", "image_size", "global_batch")}
    shape |= {"num_classes": num_classes, "forward_s": found.forward_s, "backward_s": found.backward_s}
    rows = [shape | dataclasses.asdict(gradient) for gradient in found.gradients]
    add_rows(out, rows, replace=True)
    print(f"written: {out} ({len(rows)} gradients, backward {1000 * found.backward_s:.1f} ms)")


def profile(config: Config, num_classes: int, device: torch.device) -> Profile:
    """The gradients of config.arch in the order in which the backward pass has them, on one random batch."""
    net = build_model(config, num_classes, device)
    optimizer, clock = build_optimizer(config, net), Clock(device)
    images = torch.randn(config.global_batch, 3, config.image_size, config.image_size, device=device)
    target = torch.arange(config.global_batch, device=device) % num_classes
    moments: dict[str, object] = {}
    for name, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: moments.__setitem__(name, clock.now()))
    steps = []
    for number in range(WARM_STEPS + STEPS):
        optimizer.zero_grad()
        began = clock.now()
        loss = cross_entropy(net(images), target)
        turned = clock.now()
        loss.backward()
        ended = clock.now()
        optimizer.step()
        synchronize(device)
        if number >= WARM_STEPS:
            ready = {name: clock.between_ms(turned, moment) for name, moment in moments.items()}
            steps.append((clock.between_ms(began, turned), clock.between_ms(turned, ended), ready))
    forward_ms, backward_ms = (sum(step[part] for step in steps) / STEPS for part in (0, 1))
    shares = {name: sum(ready[name] / ms for _, ms, ready in steps) / STEPS for name in moments}
    in_block, out_bytes = _blocks(config, net, num_classes)
    sizes = {name: parameter.numel() * parameter.element_size() for name, parameter in net.named_parameters()}
    gradients = tuple(
        Gradient(name, in_block(name), sizes[name], min(1.0, shares[name]), out_bytes[in_block(name)])
        for name in sorted(shares, key=shares.__getitem__)
    )
    return Profile(gradients, forward_ms / 1000, backward_ms / 1000)


def _blocks(config: Config, net: torch.nn.Module, num_classes: int):
    """Which block a parameter is in, by its name; and bytes of one image's activations after each block, in float32.
    As stages are cut: the stem goes with the first block, the classifier with the last."""
    layers = ("layer1", "layer2", "layer3", "layer4")
    names = [f"{layer}.{number}" for layer in layers for number in range(len(getattr(net, layer)))]
    stages = cut_stages(dataclasses.replace(config, cut=0), net, len(names))
    after = [4 * math.prod(shape) for _, shape in trace(stages, config.image_size)]

    def in_block(name: str) -> str:
        prefix = ".".join(name.split(".")[:2])
        return prefix if prefix in names else names[-1] if name.startswith("fc") else names[0]

    return in_block, dict(zip(names, after, strict=True))


def config_of(results: Path) -> Config:
    """What a set's baseline trained. Raises UserError where it has none."""
    group = baseline_of(load_set(results))
    if group is None:
        raise UserError(f"{results} has no timed run of {BASELINE}; run: make bench-{BASELINE} RESULTS={results}")
    wanted = ("arch", "image_size", "global_batch", "norm", "memory_format")
    return Config(**{name: value for name in wanted if (value := group.settings.get(name)) is not None})


if __name__ == "__main__":
    try:
        options, flags = tyro.cli(Options, description=__doc__, return_unknown_args=True)
        of_the_set = options.results is not None and not flags
        main(options, config_of(options.results) if of_the_set else load_config(flags or read_variables().flags))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
