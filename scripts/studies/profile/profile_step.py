"""Where a training step's time goes on the device: its MFU, its top kernels, and each kind of layer beside its roof.

    ./bench study profile -- --precision bf16 --memory-format channels_last
    ./bench study profile --strategy ddp --trace results/trace

Some steps on one batch under torch.profiler, after as many that warm up and as many that are timed, on the strategy's
ranks, of which rank 0 prints. The roof of a kind of layer is what its operations at least take (step_costs.py).
"""

import collections
import dataclasses
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch._C._autograd import DeviceType

from benchmarks.common import machine
from benchmarks.common.architectures import architecture_of
from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import Unavailable, UserError
from benchmarks.common.rank import NotStarted, device_name, synchronize
from scripts.results.device_use import peak_tflops
from scripts.results.formatting import text_table
from scripts.runner.default_batch import with_fitting_batch
from scripts.runner.device_peak import measure_peak
from scripts.runner.request import read_request
from scripts.shared import strategy_list
from scripts.shared.forward_signals import forward_signals
from scripts.shared.programs import run_main_and_exit
from scripts.shared.repository import ROOT
from scripts.studies.allreduce.launch_ranks import horovodrun_command, rank_environment, torchrun_command
from scripts.studies.options import ProfileOptions
from scripts.studies.profile.step_costs import DTYPES, GB_PER_S, Operation, trace_step
from scripts.studies.profile.traces import STEP_NAME, name_rank, open_trace_folder, trace_path

# The first that an operation's name holds; both of a trace and of a profile.
KINDS = (
    ("optimizer", r"_foreach|_fused_sgd|_fused_adam|optimizer"),
    ("exchange", r"nccl|gloo|c10d|param_comms|all_?reduce|broadcast|reduce_scatter|all_gather"),
    ("batch norm", r"batch_norm"),
    ("convolution", r"conv"),
    ("pooling", r"pool|aten::mean|adaptive"),
    ("matrix product", r"addmm|aten::mm|matmul|linear"),
    ("loss", r"softmax|nll_loss|cross_entropy"),
    ("elementwise", r"relu|clamp|threshold|aten::(add|mul|sub|div|zero|fill|copy|_to_copy|sum|clone)|triton"),
)


@dataclasses.dataclass(frozen=True)
class MeasuredProfile:
    """images: of a step, on this rank. config: with resolved values. step_s: without the profiler. whole_model: whether
    this rank's one device trains all layers."""

    profile: torch.profiler.profile
    device: torch.device
    images: int
    config: Config
    step_s: float
    whole_model: bool


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), "other")


def measure(options: ProfileOptions, config: Config) -> MeasuredProfile | None:
    """None on ranks that do not report. Raises NotStarted where the strategy needs a launcher, and UserError where it
    cannot run here."""
    script = strategy_list.load_script(strategy_list.parse_strategy(options.strategy))
    if options.trace:
        open_trace_folder(Path(options.trace))
    try:
        strategy = script.build(config)
    except Unavailable as error:
        raise UserError(str(error)) from None
    train, step, device = strategy.train, strategy.step, strategy.rank.device
    train.set_epoch(0)
    batch = next(iter(train))
    for _ in range(options.steps):
        step(*batch)
    synchronize(device)
    began_s = time.perf_counter()
    for _ in range(options.steps):
        step(*batch)
    synchronize(device)
    step_s = (time.perf_counter() - began_s) / options.steps
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    profile = torch.profiler.profile(activities=kinds, acc_events=True)
    name_rank(profile, strategy.rank)
    with profile:
        for number in range(options.steps):
            with torch.profiler.record_function(f"{STEP_NAME}#{number}"):
                step(*batch)
        synchronize(device)
    if dist.is_initialized():
        dist.destroy_process_group()
    if options.trace:
        profile.export_chrome_trace(str(trace_path(Path(options.trace), strategy.rank.rank)))
    if not strategy.rank.reports:
        return None
    whole_model = strategy.layout.num_stages == 1 and len(strategy.rank.devices) == 1
    return MeasuredProfile(profile, device, len(batch[0]), strategy.config, step_s, whole_model)


def split_events(events: Iterable, on_gpu: bool) -> tuple[list, list]:
    """(operations, kernels); on a CPU both are all events. An annotation, such as Optimizer.step, has the time of the
    kernels in it."""
    if not on_gpu:
        return [*events], [*events]
    events = [event for event in events if not event.is_user_annotation]
    operations, kernels = (
        [event for event in events if event.device_type == kind] for kind in (DeviceType.CPU, DeviceType.CUDA)
    )
    return operations, kernels


def device_ms(event: Any, on_gpu: bool) -> float:
    return (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1000


def by_kind(events: Iterable, steps: int, on_gpu: bool) -> dict[str, tuple[float, float]]:
    """(milliseconds, calls) a step of each kind. events: of profile.key_averages(), operations only."""
    found: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for event in events:
        if spent := device_ms(event, on_gpu):
            sums = found[kind_of(event.key)]
            sums[0] += spent / steps
            sums[1] += event.count / steps
    return {kind: (ms, calls) for kind, (ms, calls) in found.items()}


def roof_ms(operations: Sequence[Operation], tflops: float, gb_per_s: float) -> dict[str, float]:
    """Of each kind, at least: of each operation the longer of computing and moving."""
    found: dict[str, float] = collections.defaultdict(float)
    for operation in operations:
        kind = "optimizer" if operation.in_optimizer else kind_of(operation.name)
        found[kind] += 1000 * max(operation.flops / (tflops * 1e12), operation.moved_bytes / (gb_per_s * 1e9))
    return dict(found)


def operations_of_step(config: Config, images: int) -> list[Operation]:
    """Of a whole model; [] where AdamW trains it, whose update trace_step does not have."""
    if architecture_of(config.arch).optimizer != "SGD":
        return []
    net = functools.partial(torchvision.models.get_model, config.arch)
    return trace_step(net, images, config.image_size, DTYPES[config.precision])


def roof_here(operations: Sequence[Operation], config: Config, name: str) -> dict[str, float]:
    """{} where the peaks of this device are not known."""
    gb_per_s = next((rate for pattern, rate in GB_PER_S.items() if re.fullmatch(pattern, name)), None)
    tflops, _ = peak_tflops(name, config.precision, 0.0, {})
    return {} if gb_per_s is None or tflops is None else roof_ms(operations, tflops, gb_per_s)


def describe_use(operations: Sequence[Operation], measured: MeasuredProfile, roof: dict[str, float]) -> str:
    step_ms, name = 1000 * measured.step_s, device_name(measured.device)
    text = f"a step takes {step_ms:.1f} ms without the profiler"
    if not operations:
        return text
    peak, peak_from = peak_tflops(name, measured.config.precision, torch.get_num_threads(), {})
    if peak is None:
        peaks = {"measured_peak": measure_peak()}
        peak, peak_from = peak_tflops(name, measured.config.precision, torch.get_num_threads(), peaks)
    if peak is not None:
        tflops = sum(each.flops for each in operations) / measured.step_s / 1e12
        text += f"; MFU {100 * tflops / peak:.0f} % ({tflops:.3g} of {peak:.3g} TFLOP/s: {peak_from})"
    if roof:
        text += f"; its roof is {sum(roof.values()):.1f} ms, {100 * sum(roof.values()) / step_ms:.0f} % of it"
    return text


def table(spent: dict[str, tuple[float, float]], roof: dict[str, float]) -> list[tuple[str, ...]]:
    """A line a kind, the longest first, below their header. What has no known roof has an empty one."""
    lines: list[tuple[str, ...]] = [("kind of layer", "ms/step", "share", "roof ms", "x roof", "calls")]
    total_ms = sum(ms for ms, _ in spent.values())
    for kind, (ms, calls) in sorted(spent.items(), key=lambda item: -item[1][0]):
        least = roof.get(kind)
        beside_roof = (f"{least:.3f}", f"{ms / least:.2f}") if least else ("", "")
        lines.append((kind, f"{ms:.3f}", f"{100 * ms / total_ms:.1f} %", *beside_roof, f"{calls:.0f}"))
    return lines


def main(options: ProfileOptions, config: Config) -> int:
    if options.steps < 1:
        raise UserError(f"--steps is {options.steps}, but must be 1 or more")
    measured = measure(options, config)
    if measured is None:
        return 0
    on_gpu, config = measured.device.type == "cuda", measured.config
    name = device_name(measured.device)
    events = [event for event in measured.profile.key_averages() if not str(event.key).startswith(STEP_NAME)]
    operations, kernels = split_events(events, on_gpu)
    expected = operations_of_step(config, measured.images) if measured.whole_model else []
    roof = roof_here(expected, config, name)
    spent = by_kind(operations, options.steps, on_gpu)
    about = (options.strategy, config.arch, f"{config.image_size} px", f"{measured.images} images", config.precision)
    print(", ".join([*about, name]))
    print(f"\ntop {options.top} {'kernels' if on_gpu else 'operations'}, ms a step")
    for event in sorted(kernels, key=lambda event: -device_ms(event, on_gpu))[: options.top]:
        print(f"{device_ms(event, on_gpu) / options.steps:>9.3f}  {event.key[:100]}")
    print("\n" + text_table(table(spent, roof), left_aligned=(0,)))
    if known := [kind for kind in spent if roof.get(kind)]:
        print(f"the largest gap to the roof is in {max(known, key=lambda kind: spent[kind][0] - roof[kind])}")
    print(describe_use(expected, measured, roof))
    if options.trace:
        print(f"traces, one a rank, for ui.perfetto.dev or Holistic Trace Analysis: {options.trace}")
    return 0


def run_command_line() -> int:
    """Of a rank: options as JSON, and flags of a configuration."""
    options, *flags = sys.argv[1:]
    return profile_flags(ProfileOptions(**json.loads(options)), flags)


def profile_on_ranks(options: ProfileOptions, flags: Sequence[str]) -> int:
    """In this process, or in ranks that torchrun or horovodrun starts where the strategy needs them."""
    if options.nproc:
        os.environ["NPROC"] = str(options.nproc)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # dataparallel: NCCL would listen on the network
    if not {"--config"} & {flag.split("=")[0] for flag in flags}:
        flags = with_fitting_batch(read_request(options, with_loader(flags))).flags
    try:
        return profile_flags(options, flags)
    except NotStarted as error:
        if error.launcher not in ("torchrun", "horovodrun"):
            raise
        return start_ranks(error.launcher, options, flags)


def start_ranks(launcher: str, options: ProfileOptions, flags: Sequence[str]) -> int:
    """The launcher's exit code, or 128 + a signal."""
    num_ranks = machine.num_ranks()
    with tempfile.TemporaryDirectory(prefix="profile-") as folder, forward_signals() as child_runner:
        start, variables = torchrun_command(num_ranks, folder)
        if launcher == "horovodrun":
            start, variables = [*horovodrun_command(num_ranks), sys.executable], {}
        words = json.dumps(dataclasses.asdict(options), default=os.path.abspath)  # paths: the ranks run elsewhere
        command = [*start, "-m", "scripts.studies.profile.profile_step", words, *flags]
        env = rank_environment(machine.threads_per_rank(num_ranks)) | variables
        code = child_runner.run(command, cwd=ROOT, env=env)
    if child_runner.signum:
        return 128 + child_runner.signum
    return code if code >= 0 else 128 - code


def with_loader(flags: Sequence[str]) -> list[str]:
    return [*flags] if "--loader" in {flag.split("=")[0] for flag in flags} else ["--loader", "synthetic", *flags]


def profile_flags(options: ProfileOptions, flags: Sequence[str]) -> int:
    """Images are synthetic unless --loader says otherwise. Raises UserError where a step does not fit."""
    os.environ.setdefault("THREADS_PER_RANK", str(machine.threads_per_rank(machine.num_ranks())))
    config = load_config(with_loader(flags))
    try:
        return main(options, config)
    except torch.OutOfMemoryError as error:
        raise UserError(f"a step does not fit; use a smaller --global-batch after --: {error}") from None


if __name__ == "__main__":
    run_main_and_exit(run_command_line)
