"""When the backward pass has each gradient, and how many bytes it has: what DDP's buckets, and a prediction, depend on.

    python -m scripts.studies.predict.gradient_times --out gradients.csv --arch resnet50 --image-size 224

One device trains by itself. Hooks record the moment at which each parameter's gradient is complete, as a fraction of
the backward pass. With --results the configuration is that of the set's baseline. Every other flag is a configuration
field. Without either, Make's variables CONFIG and ARGS count.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.dist.devices import synchronize
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.model.model_families import residual_blocks
from benchmarks.common.model.stages import blocks_of, flops_and_shapes
from benchmarks.common.system import machine
from benchmarks.common.system.commands import bench_command
from benchmarks.common.system.compiling import refuse_shared_compile_caches
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.gpus import usable_gpus
from benchmarks.common.system.malloc import keep_freed_memory
from benchmarks.common.system.programs import run_main_and_exit
from benchmarks.common.train.clock import Clock
from scripts.options.study_options import GradientTimesOptions
from scripts.runner.make_variables import read_variables
from scripts.runner.preflight import why_not_writable
from scripts.sets.result_set import load_set
from scripts.strategies.strategy_list import BASELINE
from scripts.studies.measured_csv import add_rows
from scripts.studies.predict.measured_machine import baseline_of
from scripts.studies.predict.timeline import Gradient

WARMUP_STEPS, STEPS = 2, 5


@dataclasses.dataclass(frozen=True)
class Profile:
    """The backward pass of one step. Times are means of STEPS steps."""

    gradients: tuple[Gradient, ...]
    forward_s: float
    backward_s: float


@dataclasses.dataclass(frozen=True)
class TimedStep:
    forward_ms: float
    backward_ms: float
    ready_ms: dict[str, float]
    """From the start of the backward pass until the gradient of each parameter is complete."""


def main(options: GradientTimesOptions, config: Config) -> None:
    refuse_shared_compile_caches()
    out = output_file(options)
    device = torch.device("cuda" if usable_gpus() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(machine.threads_per_rank(machine.num_ranks()))
        keep_freed_memory()
    train = Path(config.data) / "train"
    num_classes = options.num_classes or (sum(path.is_dir() for path in train.iterdir()) if train.is_dir() else 1000)
    measured = profile(config, num_classes, device)
    shared = {
        "arch": config.arch,
        "image_size": config.image_size,
        "global_batch": config.global_batch,
        "num_classes": num_classes,
        "forward_s": measured.forward_s,
        "backward_s": measured.backward_s,
    }
    rows = [shared | dataclasses.asdict(gradient) for gradient in measured.gradients]
    add_rows(out, rows, replace=True)
    print(f"written: {out} ({len(rows)} gradients, backward {1000 * measured.backward_s:.1f} ms)")


def output_file(options: GradientTimesOptions) -> Path:
    """Raises UserError where no file is named, or the set is published."""
    if options.out is not None:
        return options.out
    if options.results is None:
        raise UserError("no file to write is named; give --out results/gradients.csv, or --results results/latest")
    if why := why_not_writable(options.results):
        raise UserError(f"{why}; --out names another file")
    return options.results / "gradients.csv"


def profile(config: Config, num_classes: int, device: torch.device) -> Profile:
    """The gradients of config.arch in the order in which the backward pass has them, from steps on one random batch."""
    net = build_model(config, num_classes, device)
    steps = time_steps(config, net, num_classes, device)
    ready = {name: sum(step.ready_ms[name] / step.backward_ms for step in steps) / STEPS for name in steps[0].ready_ms}
    # as where stages are cut, the stem is in the first block, and the classifier in the last
    blocks = dict(zip(residual_blocks(net), blocks_of(net), strict=True))
    block_of = {parameter: name for name, block in blocks.items() for parameter in block.parameters()}
    out_bytes = activation_bytes(config, blocks)
    parameters, gradients = dict(net.named_parameters()), []
    for name in sorted(ready, key=ready.__getitem__):
        block, num_bytes = block_of[parameters[name]], parameters[name].numel() * parameters[name].element_size()
        gradients.append(Gradient(name, block, num_bytes, min(1.0, ready[name]), out_bytes[block]))
    forward_ms = sum(step.forward_ms for step in steps) / STEPS
    backward_ms = sum(step.backward_ms for step in steps) / STEPS
    return Profile(tuple(gradients), forward_ms / 1000, backward_ms / 1000)


def time_steps(config: Config, net: nn.Module, num_classes: int, device: torch.device) -> list[TimedStep]:
    """STEPS timed steps of the model, after WARMUP_STEPS."""
    optimizer, clock = build_optimizer(config, net), Clock(device)
    images = torch.randn(config.global_batch, 3, config.image_size, config.image_size, device=device)
    target = torch.arange(config.global_batch, device=device) % num_classes
    ready_at: dict[str, Any] = {}
    for name, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready_at.__setitem__(name, clock.now()))
    steps = []
    for number in range(WARMUP_STEPS + STEPS):
        optimizer.zero_grad()
        began_at = clock.now()
        loss = cross_entropy(net(images), target)
        forward_ended_at = clock.now()
        loss.backward()
        backward_ended_at = clock.now()
        optimizer.step()
        synchronize(device)
        if number >= WARMUP_STEPS:
            forward_ms = clock.between_ms(began_at, forward_ended_at)
            backward_ms = clock.between_ms(forward_ended_at, backward_ended_at)
            ready_ms = {name: clock.between_ms(forward_ended_at, moment) for name, moment in ready_at.items()}
            steps.append(TimedStep(forward_ms, backward_ms, ready_ms))
    return steps


def activation_bytes(config: Config, blocks: Mapping[str, nn.Module]) -> dict[str, int]:
    """Bytes of one image's activations after each block, in float32."""
    num_bytes = [4 * math.prod(shape) for _, shape in flops_and_shapes([*blocks.values()], config.image_size)]
    return dict(zip(blocks, num_bytes, strict=True))


def baseline_config(results: Path) -> Config:
    """The configuration that a set's baseline trained. Raises UserError where the set has no baseline."""
    group = baseline_of(load_set(results))
    if group is None:
        bench = bench_command("run", BASELINE, results=results)
        raise UserError(f"{results} has no timed run of {BASELINE}; run: {bench}")
    names = ("arch", "image_size", "global_batch", "norm", "memory_format")
    fields: dict[str, Any] = {name: group.settings[name] for name in names if group.settings.get(name) is not None}
    return Config(**fields)


def run_command_line() -> None:
    """`main` with the command line, which has the flags of a configuration, too."""
    options, flags = tyro.cli(GradientTimesOptions, description=__doc__, return_unknown_args=True)
    measure_set(options, flags)


def measure_set(options: GradientTimesOptions, flags: Sequence[str] = ()) -> None:
    """`main` with the configuration of these flags, else of the set's baseline, else of Make's variables."""
    if options.results is not None and not flags:
        config = baseline_config(options.results)
    else:
        config = load_config([*flags] or read_variables().flags)
    main(options, config)


if __name__ == "__main__":
    run_main_and_exit(run_command_line)
