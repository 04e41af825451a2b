"""The configuration of a run, in one flat class: defaults, then the differences of a YAML file, then flags.

    python -m benchmarks.ddp --config configs/smoke.yaml --global-batch 64 --help

Needs no torch, so that launchers and plots read a configuration fast.
"""

import contextlib
import dataclasses
import difflib
import sys
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from benchmarks.common.architectures import OPTIMIZER_FIELDS, architecture_of, why_refused
from benchmarks.common.errors import UserError


def read_values(path: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the file, by name.

    types: the type of each name that the file may have. A union is of a type and some choices.
    Raises UserError for a file that cannot be read, an unknown name (with the nearest one) and a value of another type.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that no calendar has
        raise UserError(f"{path} is not plain YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `name: value` lines, but holds a {type(values).__name__}")
    return {str(name): _checked(path, str(name), value, types) for name, value in values.items()}


def suggest_field(name: str, fields: Iterable[str]) -> str:
    """What to do about a misspelt field, for a message: the nearest name, or where the names are listed."""
    near = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else "./bench flags lists the fields"


def _checked(path: str, name: str, value: Any, types: Mapping[str, Any]) -> Any:
    if name not in types:
        raise UserError(f"{path}: unknown key {name!r}; {suggest_field(name, types)}")
    expected = types[name]
    choices: tuple[str, ...] = ()
    if typing.get_origin(expected) is typing.Union:
        expected, literal = typing.get_args(expected)
        choices = typing.get_args(literal)
    elif typing.get_origin(expected) is Literal:
        choices = typing.get_args(expected)
        if value not in choices:
            near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"{path}: {name} is {value!r}; {hint}It takes {', '.join(choices)}")
    if value in choices:
        return value
    if expected is float and type(value) in (int, str):  # YAML 1.1 reads 1e-4 as text
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    if type(value) is not expected:
        kinds = ", or ".join([f"of type {expected.__name__}", *choices])
        raise UserError(f"{path}: {name} is {value!r}, but must be {kinds}")
    return value


Arch = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "convnext_tiny",
    "vit_b_16",
]


@dataclasses.dataclass(frozen=True)
class Range:
    """The least and the largest value of a number. The largest is what torch, gloo and the system still take."""

    minimum: float
    maximum: float = 10**12


Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
PackKind = Literal["full", "256", "jpeg256"]
PACK_KINDS: tuple[PackKind, ...] = typing.get_args(PackKind)
# Batches that loaders keep, as data/batch_readers.py makes them; the memory check counts them without torch.
PREFETCHED_PER_WORKER = 2  # as in torch's DataLoader
NUM_IN_USE = 2  # the one that training took last, and the one before


@dataclasses.dataclass(frozen=True)
class Config:
    """What is trained, on which images, and how it is timed. All strategies have the same fields.

    A number has a Range.
    """

    config: str = ""
    """YAML file with differences from these defaults."""

    data: str = "data/imagenet-mini"
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."""
    loader: Literal["folder", "packed", "synthetic"] = "folder"
    """`folder` reads JPEG files, `packed` what `./bench data pack` made; `synthetic` repeats a random batch."""
    decoder: Literal["auto", "nvimgcodec", "torchcodec", "pillow"] = "auto"
    """What decodes JPEGs; auto: the first of nvimgcodec, torchcodec and pillow that is installed. Pixels differ by 1 of
    255, in one of millions of values by 2."""
    pack: PackKind = "full"
    """What packed files hold. full: whole images; 256: shrunk to 256 pixels on the shorter side; jpeg256: the same as
    JPEGs."""
    augment: bool = True
    """Random crops and flips in training. Off: the centre crop, so that every run sees the same pixels."""
    workers: Annotated[int | Literal["auto"], Range(0)] = 4
    """Loader workers for each device, of the rank that reads its images; 0 decodes in the training process; auto: with
    a GPU the rank's cores minus one, on a CPU 0."""
    prefetch: Annotated[int, Range(0)] = 1
    """On GPUs: batches copied ahead of the step that trains on them, on a stream of their own; 0: the step copies."""
    skip_bad_files: bool = False
    """Go on after files that cannot be decoded, and count them; in training the next image takes the place. Off: the
    first one ends the run."""

    arch: Arch = "resnet50"
    """torchvision model: a ResNet, which SGD trains, or ConvNeXt or a vision transformer, which AdamW trains. Where a
    flag and the file name models of different optimizers, the file's lr, lr_batch, weight_decay and momentum are
    dropped."""
    image_size: Annotated[int, Range(8)] = 224
    """Pixels along each side of a training image."""
    norm: Literal["batch", "group", "sync"] = "batch"
    """BatchNorm, GroupNorm of 32 groups, or SyncBatchNorm (GPUs only). Models with LayerNorm keep it, and take the
    default only."""
    precision: Precision = "fp32"
    """Arithmetic of convolutions and products; weights stay float32. auto: bf16 on GPUs that have it (compute
    capability 8), fp16 on others where the script scales gradients, else fp32."""
    memory_format: MemoryFormat = "auto"
    """Layout of images and weights. auto: channels_last, but contiguous in fp32."""
    compile: bool = False
    """torch.compile of the model. Strategies that cut or shard it, `dataparallel` and `apex_ddp` refuse it."""
    cuda_graphs: bool = False
    """With `compile`, on GPUs: its kernels are replayed as CUDA graphs (torch.compile's mode reduce-overhead)."""
    fused: bool = False
    """The optimizer's whole update in one kernel."""
    cudnn_benchmark: bool = True
    """On GPUs: cuDNN times its algorithms for each shape, and keeps the fastest."""
    cudnn_deterministic: bool = False
    """On GPUs: only those of cuDNN's algorithms that give the same bits every time."""

    global_batch: Annotated[int, Range(1)] = 256
    """Images of one optimizer step, over all ranks. Must be a multiple of the ranks. 0: `batch_per_device` says it."""
    batch_per_device: Annotated[int, Range(0)] = 0
    """Instead of `global_batch`: images of a step on each GPU that the strategy uses; on CPUs, of each rank."""
    epochs: Annotated[int, Range(1)] = 1
    """Passes over the training set, each followed by an exact evaluation."""
    steps: Annotated[int, Range(0)] = 0
    """Optimizer steps of an epoch; 0: as many whole batches as the training set holds."""
    lr: Annotated[float, Range(0, 10**38)] = 0.1
    """Learning rate for a global batch of `lr_batch`; scales in proportion to `global_batch`, with AdamW to its square
    root. Models that AdamW trains have defaults of their own for lr, lr_batch and weight_decay (architectures.py)."""
    lr_batch: Annotated[int, Range(1)] = 256
    """The global batch that `lr` is meant for (arXiv:1706.02677 of SGD, arXiv:2205.10287 of AdamW)."""
    lr_warmup_epochs: Annotated[float, Range(0)] = 0.0
    """Epochs in which the learning rate climbs from 0 in a straight line."""
    lr_schedule: Literal["constant", "steps", "cosine"] = "constant"
    """`steps` divides by 10 every 30 epochs; `cosine` falls to 0 at the last step."""
    momentum: Annotated[float, Range(0, 10**38)] = 0.9
    """SGD's momentum, or AdamW's first beta; its second is 0.999."""
    weight_decay: Annotated[float, Range(0, 10**38)] = 1e-4
    """Weight decay of all weights: SGD adds it to the gradient, AdamW takes lr times it off the weight."""
    seed: Annotated[int, Range(0, 2**62)] = 0
    """Seeds the initial weights, the order of the images and every augmentation."""

    warmup_steps: Annotated[int, Range(0)] = 10
    """First steps of the run, which no timed window includes. The files in configs/ have other numbers: 5 in
    smoke.yaml, 50 in imagenet-bench.yaml."""
    windows: Annotated[int, Range(1)] = 10
    """Timed windows to take, from the steps after the warm-up."""
    window_steps: Annotated[int, Range(1)] = 10
    """Optimizer steps in a timed window."""
    account_steps: Annotated[int, Range(0)] = 0
    """Steps after the timed windows in which each phase (data, forward, ...) is timed by hooks."""

    checkpoint_dir: str = ""
    """Each run writes last.pt and best.pt to a folder of its own in this one, such as ddp-1; empty: no checkpoints."""
    checkpoint_steps: Annotated[int, Range(0)] = 0
    """Steps between checkpoints within an epoch; 0: at the end of each epoch only."""
    checkpoint_keep: bool = False
    """Keep each last.pt under a name of its own, too, such as epoch0-step100.pt."""
    resume: bool = False
    """Continue from checkpoint_dir/last.pt, in the middle of an epoch if it stopped there."""
    resume_from: Literal["last", "previous", "best"] = "last"
    """Which file --resume reads: `previous` is the one before last."""
    resume_anyway: bool = False
    """With --resume: go on although lr, data or others have changed since the checkpoint. The row says which."""
    timeout_s: Annotated[float, Range(1, 10**9)] = 60.0
    """Seconds that a rank waits for the others in one collective before the run fails."""
    limit_s: Annotated[float, Range(0)] = 0.0
    """Seconds after which a whole run is ended, by its supervisor; 0: no limit. TIMEOUT= overrides it."""

    bucket_cap_mb: Annotated[float, Range(0)] = 0.0
    """DDP strategies: gradient bucket, MiB; 0: PyTorch's own choice, 1 for the first and 25 for the others."""
    static_graph: bool = False
    """DDP strategies: every step uses the same parameters, so that DDP need not look for those left out."""
    gradient_as_bucket_view: bool = False
    """DDP strategies: gradients lie in the buckets, and are not copied there and back."""
    broadcast_buffers: bool = True
    """DDP strategies: each forward pass starts with rank 0's BatchNorm statistics. Off saves that broadcast: evaluation
    and checkpoints have rank 0's all the same."""
    comm_hook: Literal["bf16", "fp16", "powersgd"] = "bf16"
    """ddp_compressed: what gradients travel as; powersgd, low-rank factors, needs NCCL."""
    powersgd_rank: Annotated[int, Range(1)] = 1
    """ddp_compressed: rank of PowerSGD's factors."""
    shard_ranks: Annotated[int, Range(0)] = 0
    """fsdp: ranks that share one copy of the weights; 0: all ranks. Fewer than all make HSDP: each group of so many
    ranks has a copy."""
    local_period: Annotated[int, Range(1)] = 4
    """local_sgd: steps between two averages of the weights."""
    local_group: Annotated[int, Range(1)] = 1
    """local_sgd: ranks that average their gradients at every step, as DDP does."""
    compression: Literal["none", "fp16"] = "none"
    """horovod_ddp: what gradients travel as."""
    opt_level: Literal["O0", "O1", "O2", "O3"] = "O1"
    """apex_ddp: Apex amp's optimisation level."""
    cut: Annotated[int | Literal["auto"], Range(1)] = "auto"
    """model_parallel, pipeline_parallel, hybrid_parallel: blocks before the cut; auto: balanced by an estimate."""
    split_size: Annotated[int, Range(0)] = 0
    """model_parallel, hybrid_parallel: images of a micro-batch; 0: the whole batch at once."""
    copy_stream: bool = False
    """model_parallel: copy activations on a CUDA stream of its own."""
    microbatches: Annotated[int, Range(0)] = 0
    """pipeline_parallel: micro-batches of a step; 0: the smallest multiple of the number of stages that is at least
    4."""
    pipeline_schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """pipeline_parallel: order of forward and backward micro-batches."""
    rendezvous: Literal["file", "address"] = "file"
    """slurm: rendezvous through a file in the shared folder, or at the first node's address."""
    label: Literal["", "again"] = ""
    """again: the same run under a second name, for an A/A comparison. The name changes nothing in the run. No run of
    this name is a baseline."""


FIELDS = {field.name: field for field in dataclasses.fields(Config)}
FIELD_TYPES = typing.get_type_hints(Config)
RANGES: dict[str, Range] = {
    name: value_range
    for name, hint in typing.get_type_hints(Config, include_extras=True).items()
    for value_range in getattr(hint, "__metadata__", ())
}
BATCH_FIELDS = ("global_batch", "batch_per_device")  # one of them is 0
IMAGENET_TRAIN_IMAGES = 1_281_167  # ILSVRC 2012; of an epoch of synthetic ones, too
IMAGE_FIELDS = ("fingerprint",)
"""The recorded settings that name the images: their names and some sizes."""
# Runs that differ in these settings are still alike, and a training may be resumed with other ones. All others count.
NOT_COMPARED = {
    "config": "a name; the values in the file count one by one",
    "data": "a path; the fingerprint of what lies there counts",
    "checkpoint_dir": "a place",
    "checkpoint_steps": "no timed window includes a checkpoint",
    "checkpoint_keep": "the same",
    "resume": "the run goes on where it was, with the same arithmetic",
    "resume_from": "the same",
    "resume_anyway": "the row's reason says which settings have changed",
    "timeout_s": "patience",
    "limit_s": "patience",
    "compile_s": "resolved, a time: seconds before the first step",
    "rendezvous": "how ranks find each other before the first step",
}


def resolve_precision(requested: Precision, capability: tuple[int, int] | None, mixed: bool = False) -> Precision:
    """The precision in which a run computes: fp32, tf32, bf16 or fp16. Raises UserError where the device or the script
    cannot.

    capability: CUDA's compute capability of the GPU, the least one of several; None on a CPU. mixed: the script scales
    gradients, as fp16 needs it; where the default, fp32, is requested, it takes what auto stands for.
    """
    # Not torch.cuda.is_bf16_supported(), which is true of Volta and Turing: they emulate it.
    has_bf16 = capability is None or tuple(capability) >= (8, 0)
    if requested == "auto" or (mixed and requested == "fp32"):
        if mixed:
            return "bf16" if has_bf16 else "fp16"
        return "bf16" if capability and has_bf16 else "fp32"
    if requested == "tf32" and not (capability and has_bf16):
        raise UserError("precision tf32 needs a GPU of compute capability 8 (Ampere) or newer; use fp32")
    if requested == "bf16" and capability and not has_bf16:
        raise UserError(
            f"precision bf16 needs a GPU of compute capability 8 (Ampere) or newer, and one of {_dotted(capability)} "
            "emulates it; use fp32, or fp16 with ddp_amp"
        )
    if requested == "fp16" and not mixed:
        raise UserError(
            "precision fp16 needs a gradient scaler, which this strategy's script does not have; use bf16, or ddp_amp"
        )
    if requested == "fp16" and capability is None:
        raise UserError("precision fp16 needs a GPU; use bf16 on a CPU")
    return requested


def resolve_memory_format(requested: MemoryFormat, precision: Precision) -> MemoryFormat:
    """The memory format in which a run computes: contiguous or channels_last, which tensor cores take without a
    transpose. precision: the resolved one."""
    if requested != "auto":
        return requested
    return "channels_last" if precision in ("tf32", "bf16", "fp16") else "contiguous"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def load_config(args: list[str] | None = None, description: str | None = None, **allowed: tuple[object, ...]) -> Config:
    """Defaults, those of the architecture, then the file that `--config` names, then flags. Each overrides the one
    before.

    args: the command line without the program's name (default sys.argv[1:]). allowed: for a field, the values that the
    calling strategy supports, such as norm=("batch", "group"). Raises UserError for a mistake in the file, and for a
    value that is out of range or that the architecture or the strategy does not take. Exits with 2 and tyro's message
    for a mistake in a flag.
    """
    args = sys.argv[1:] if args is None else args
    path = _flag(args, "config")
    in_file = _one_batch(read_yaml(path), path) if path else {}
    base = Config(**_with_defaults(in_file, _flag(args, "arch")))
    batch_flags = {name: _flag(args, name) for name in BATCH_FIELDS}
    set_flags = {name: text for name, text in batch_flags.items() if text not in ("", "0")}
    replaced: dict[str, Any] = {
        name: 0 for name, value in _one_batch(set_flags, "the command line").items() if not value
    }
    base = dataclasses.replace(base, **replaced)
    # tyro names prog for more help
    config = tyro.cli(Config, prog="./bench flags", args=args, default=base, description=description)
    _check_ranges(config)
    if why := why_refused(config.arch, config.norm, config.image_size):
        raise UserError(why)
    for name, values in allowed.items():
        if getattr(config, name) not in values:
            supported = " or ".join(map(str, values))
            raise UserError(f"this strategy cannot honour {name}={getattr(config, name)}; it takes {supported}")
    return config


def _with_defaults(in_file: dict[str, Any], arch_flag: str) -> dict[str, Any]:
    """What a file says, over the defaults of the architecture that is trained. What it says of another optimizer does
    not count."""
    arch_in_file = in_file.get("arch", "")
    trained = architecture_of(arch_flag or arch_in_file or Config.arch)
    if arch_in_file and architecture_of(arch_in_file).optimizer != trained.optimizer:
        in_file = {name: value for name, value in in_file.items() if name not in OPTIMIZER_FIELDS}
    return {**trained.defaults, **in_file}


def _check_ranges(config: Config) -> None:
    for name, allowed in RANGES.items():
        value = getattr(config, name)
        if isinstance(value, str) or (name == "global_batch" and value == 0 and config.batch_per_device):
            continue
        if not allowed.minimum <= value < float("inf"):
            raise UserError(f"{name} is {value}, but must be at least {allowed.minimum}")
        if value > allowed.maximum:
            raise UserError(f"{name} is {value:g}, but must be at most {allowed.maximum}")


def read_yaml(path: str) -> dict[str, Any]:
    """The fields that a YAML file sets. Raises UserError for an unknown name or a value of a wrong type."""
    return read_values(path, {name: kind for name, kind in FIELD_TYPES.items() if name != "config"})


def resolve_global_batch(config: Config, num_devices: int) -> Config:
    """`config` with the global batch of num_devices devices, where batch_per_device was requested instead."""
    if not config.batch_per_device:
        return config
    return dataclasses.replace(config, global_batch=config.batch_per_device * num_devices)


def find_field(text: str) -> str:
    """The configuration field that `text` names, with - or _. Raises UserError with the nearest name."""
    name = text.strip().lstrip("-").replace("-", "_")
    if name in FIELDS:
        return name
    raise UserError(f"no option {text!r}; {suggest_field(name, FIELDS)}")


def _one_batch(values: dict[str, Any], source: str) -> dict[str, Any]:
    """`values`, with 0 for the batch field that they do not set. Raises UserError where they set both. source: for the
    message."""
    set_fields = [name for name in BATCH_FIELDS if values.get(name)]
    if len(set_fields) > 1:
        raise UserError(f"{source} has both {' and '.join(set_fields)}; leave one out")
    return dict.fromkeys(BATCH_FIELDS, 0) | values if set_fields else values


def _flag(args: list[str], name: str) -> str:
    """The last value of a flag in `args`, for flags that must be known before the others are parsed."""
    value, spellings = "", (f"--{name}", f"--{name.replace('_', '-')}")
    for position, arg in enumerate(args):
        flag, equals, text = arg.partition("=")
        if flag in spellings:
            value = text if equals else "".join(args[position + 1 : position + 2])
    return value
