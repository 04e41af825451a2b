"""The configuration of a run: defaults, then the differences of a YAML file, then flags. Needs no torch.

python -m benchmarks.ddp --config configs/smoke.yaml --global-batch 64 --help
"""

import contextlib
import dataclasses
import difflib
import math
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import tyro
import yaml

from benchmarks.common.architectures import OPTIMIZER_FIELDS, Arch, architecture_of, why_refused
from benchmarks.common.errors import UserError

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
PackKind = Literal["full", "256", "jpeg256"]
PACK_KINDS: tuple[PackKind, ...] = typing.get_args(PackKind)
# Batches that loaders keep
PREFETCHED_PER_WORKER = 2  # as in torch's DataLoader
NUM_IN_USE = 2  # the one that training took last, and the one before


@dataclasses.dataclass(frozen=True)
class Config:
    """What is trained, on which images, and how it is timed."""

    config: str = ""
    """YAML file with differences from these defaults."""

    data: str = "data/imagenet-mini"
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."""
    loader: Literal["folder", "packed", "synthetic"] = "folder"
    """`packed`: what `./bench data pack` made; `synthetic`: one random batch again and again."""
    decoder: Literal["auto", "nvimgcodec", "torchcodec", "pillow"] = "auto"
    """What decodes JPEGs; auto: the first of these that is installed."""
    pack: PackKind = "full"
    """What packed files hold: whole images, of 256 pixels on the shorter side, or these as JPEGs."""
    augment: bool = True
    """Random crops and flips in training. Off: the centre crop."""
    workers: int | Literal["auto"] = 4
    """Loader workers for each device; auto: 0 on a CPU, else the rank's cores less 1."""
    prefetch: int = 1
    """On GPUs: batches copied ahead of their step; 0: the step copies."""

    arch: Arch = "resnet50"
    """torchvision model. Where a flag names one of another optimizer than the file's, the file's lr, lr_batch,
    weight_decay and momentum are dropped."""
    image_size: int = 224
    """Pixels along each side of a training image."""
    norm: Literal["batch", "group", "sync"] = "batch"
    """BatchNorm, GroupNorm of 32 groups, or SyncBatchNorm (GPUs only), of ResNets."""
    precision: Precision = "fp32"
    """Of convolutions and products; weights stay float32. auto: bf16 on GPUs of compute capability 8, fp16 on others
    where the script scales gradients, else fp32."""
    memory_format: MemoryFormat = "auto"
    """Of images and weights. auto: channels_last, but contiguous in fp32."""
    compile: bool = False
    """torch.compile of the model, which some strategies refuse."""
    cuda_graphs: bool = False
    """With `compile`, on GPUs: kernels are replayed as CUDA graphs."""
    fused: bool = False
    """The optimizer's whole update in one kernel."""
    cudnn_benchmark: bool = True
    """On GPUs: cuDNN times its algorithms, and keeps the fastest."""
    cudnn_deterministic: bool = False
    """On GPUs: only algorithms that give the same bits every time."""

    global_batch: int = 256
    """Images of an optimizer step over all ranks; 0: `batch_per_device` says it."""
    batch_per_device: int = 0
    """Instead of `global_batch`: images of a step on each GPU, or rank on CPUs."""
    epochs: int = 1
    """Passes over the training set, each followed by an evaluation."""
    steps: int = 0
    """Of an epoch; 0: as many whole batches as the training set holds."""
    lr: float = 0.1
    """For `lr_batch` images a step; scales with the global batch, of AdamW with its square root."""
    lr_batch: int = 256
    """The global batch that `lr` is meant for."""
    lr_warmup_epochs: float = 0.0
    """Epochs in which the learning rate climbs from 0."""
    lr_schedule: Literal["constant", "steps", "cosine"] = "constant"
    """`steps` divides by 10 every 30 epochs; `cosine` falls to 0 at the last step."""
    momentum: float = 0.9
    """SGD's momentum, or AdamW's first beta; its second is 0.999."""
    weight_decay: float = 1e-4
    """Of all weights; AdamW's is decoupled from the gradient."""
    seed: int = 0
    """Of the initial weights, the images' order and augmentation."""

    warmup_steps: int = 10
    """Before the timed windows."""
    windows: int = 10
    """Timed windows."""
    window_steps: int = 10
    """Optimizer steps in a timed window."""
    account_steps: int = 0
    """Steps after the timed windows in which each phase is timed."""

    checkpoint_dir: str = ""
    """In which each run has a folder, such as ddp-1, with last.pt and best.pt; empty: no checkpoints."""
    checkpoint_steps: int = 0
    """Steps between checkpoints; 0: only at the end of each epoch."""
    checkpoint_keep: bool = False
    """Keep each last.pt under another name, too, such as epoch0-step100.pt."""
    resume: bool = False
    """Continue from last.pt, also in mid-epoch."""
    resume_from: Literal["last", "previous", "best"] = "last"
    """What --resume reads: `previous` is the one before last."""
    resume_anyway: bool = False
    """With --resume: although settings have changed. The row says which."""
    timeout_s: float = 60.0
    """Seconds that a rank waits for others."""
    limit_s: float = 0.0
    """Seconds after which a run is ended; 0: no limit."""

    bucket_cap_mb: float = 0.0
    """DDP strategies: MiB of a gradient bucket; 0: 1 of the first, 25 of the others."""
    static_graph: bool = False
    """DDP strategies: DDP looks for no parameters left out."""
    gradient_as_bucket_view: bool = False
    """DDP strategies: gradients lie in the buckets, and are not copied."""
    broadcast_buffers: bool = True
    """DDP strategies: rank 0 sends BatchNorm's statistics before each step."""
    comm_hook: Literal["bf16", "fp16", "powersgd"] = "bf16"
    """ddp_compressed: what gradients travel as; powersgd needs NCCL."""
    powersgd_rank: int = 1
    """ddp_compressed: rank of PowerSGD's factors."""
    shard_ranks: int = 0
    """fsdp: ranks that share a copy of the weights; 0: all ranks. Fewer make HSDP."""
    local_period: int = 4
    """local_sgd: steps between two averages of the weights."""
    local_group: int = 1
    """local_sgd: ranks that average their gradients at every step."""
    compression: Literal["none", "fp16"] = "none"
    """horovod_ddp: what gradients travel as."""
    opt_level: Literal["O0", "O1", "O2", "O3"] = "O1"
    """apex_ddp: Apex amp's optimisation level."""
    cut: int | Literal["auto"] = "auto"
    """model_parallel, pipeline_parallel, hybrid_parallel: blocks before it; auto: balanced by an estimate."""
    split_size: int = 0
    """model_parallel, hybrid_parallel: images of a micro-batch; 0: the whole batch."""
    microbatches: int = 0
    """pipeline_parallel: of a step; 0: the least multiple of the stages from 4 on."""
    pipeline_schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """pipeline_parallel: order of micro-batches."""
    label: Literal["", "again"] = ""
    """again: the same run under a second name (A/A)."""


FIELDS = {field.name: field for field in dataclasses.fields(Config)}
FIELD_TYPES = typing.get_type_hints(Config)
# Of all others it is 0.
LEAST = {
    "image_size": 8,
    **dict.fromkeys(("epochs", "lr_batch", "windows", "window_steps", "timeout_s"), 1),
    **dict.fromkeys(("powersgd_rank", "local_period", "local_group", "cut"), 1),
}
IMAGENET_TRAIN_IMAGES = 1_281_167  # ILSVRC 2012; of an epoch of synthetic ones, too
IMAGE_FIELDS = ("fingerprint",)
"""The recorded settings that name the images."""
# Runs that differ in these are still alike, and a training may be resumed with other ones.
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
    "compile_s": "resolved, a time: seconds of the first step",
}


def resolve_precision(requested: Precision, capability: tuple[int, int] | None, mixed: bool = False) -> Precision:
    """capability: CUDA's; None on a CPU. mixed: the script scales gradients; fp32, the default, then means auto. Raises
    UserError."""
    # Not torch.cuda.is_bf16_supported(), which is true of Volta and Turing: they emulate it.
    has_bf16 = capability is None or tuple(capability) >= (8, 0)
    if requested == "auto" or (mixed and requested == "fp32"):
        if mixed:
            return "bf16" if has_bf16 else "fp16"
        return "bf16" if capability and has_bf16 else "fp32"
    if requested == "tf32" and not (capability and has_bf16):
        raise UserError("precision tf32 needs a GPU of compute capability 8 (Ampere) or newer; use fp32")
    if requested == "bf16" and not has_bf16:
        raise UserError(
            "precision bf16 needs a GPU of compute capability 8 (Ampere) or newer; use fp32, or fp16 with ddp_amp"
        )
    if requested == "fp16" and not mixed:
        raise UserError(
            "precision fp16 needs a gradient scaler, which this strategy does not have; use bf16, or ddp_amp"
        )
    if requested == "fp16" and capability is None:
        raise UserError("precision fp16 needs a GPU; use bf16 on a CPU")
    return requested


def resolve_memory_format(requested: MemoryFormat, precision: Precision) -> MemoryFormat:
    """Tensor cores take channels_last without a transpose."""
    if requested != "auto":
        return requested
    return "channels_last" if precision in ("tf32", "bf16", "fp16") else "contiguous"


def resolve_global_batch(config: Config, num_devices: int) -> Config:
    if not config.batch_per_device:
        return config
    return dataclasses.replace(config, global_batch=config.batch_per_device * num_devices)


def load_config(args: list[str] | None = None, description: str | None = None, **allowed: tuple[object, ...]) -> Config:
    """Defaults, the architecture's, the file of `--config`, then flags. allowed: values that the strategy supports.
    Raises UserError; exits with 2 for a mistake in a flag."""
    args = sys.argv[1:] if args is None else args
    for flag in args:
        if flag.startswith("--") and flag != "--help":
            find_field(flag.partition("=")[0].removeprefix("--no-"))
    path = _flag(args, "config")
    base = _with_defaults(read_yaml(path) if path else {}, _flag(args, "arch"))
    if base.get("batch_per_device"):
        base.setdefault("global_batch", 0)
    for name, other in (("global_batch", "batch_per_device"), ("batch_per_device", "global_batch")):
        if _flag(args, name) not in ("", "0"):
            base[other] = 0  # a flag overrides the file's batch, whichever it was
    # tyro names prog for more help
    config = tyro.cli(Config, prog="./bench flags", args=args, default=Config(**base), description=description)
    _check_numbers(config)
    if why := why_refused(config.arch, config.norm, config.image_size):
        raise UserError(why)
    for name, values in allowed.items():
        if getattr(config, name) not in values:
            supported = " or ".join(map(str, values))
            raise UserError(f"this strategy cannot honour {name}={getattr(config, name)}; it takes {supported}")
    return config


def read_yaml(path: str) -> dict[str, Any]:
    """Of a run.yaml, the fields below `config:`. Raises UserError."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that no calendar has
        raise UserError(f"{path} is not plain YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `name: value` lines, but holds a {type(values).__name__}")
    if isinstance(values.get("config"), dict):
        values = values["config"]
    return {str(name): check_value(path, str(name), value) for name, value in values.items()}


def check_value(where: str, name: str, value: Any) -> Any:
    """Raises UserError for another type; `where` is for its message."""
    known = FIELDS.keys() - {"config"}
    if name not in known:
        raise UserError(f"{where}: unknown key {name!r}; {suggest_field(name, known)}")
    # such as int | Literal["auto"]
    kinds = typing.get_args(FIELD_TYPES[name]) or (FIELD_TYPES[name],)
    takes = [text for kind in kinds for text in typing.get_args(kind) or (kind,)]
    if float in takes and type(value) in (int, str):  # YAML 1.1 reads 1e-4 as text
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    if value in takes or type(value) in takes:
        return value
    near = difflib.get_close_matches(str(value), [kind for kind in takes if isinstance(kind, str)], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    words = ", ".join(getattr(kind, "__name__", kind) for kind in takes)
    raise UserError(f"{where}: {name} is {value!r}; {hint}it takes {words}")


def suggest_field(name: str, fields: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    return f"did you mean `{near[0]}`?" if near else "./bench flags lists the fields"


def find_field(text: str) -> str:
    """With - or _. Raises UserError with the nearest name."""
    name = text.strip().lstrip("-").replace("-", "_")
    if name in FIELDS:
        return name
    raise UserError(f"there is no option {text!r}; {suggest_field(name, FIELDS)}")


def _with_defaults(in_file: dict[str, Any], arch_flag: str) -> dict[str, Any]:
    arch_in_file = in_file.get("arch", "")
    trained = architecture_of(arch_flag or arch_in_file or Config.arch)
    if arch_in_file and architecture_of(arch_in_file).optimizer != trained.optimizer:
        in_file = {name: value for name, value in in_file.items() if name not in OPTIMIZER_FIELDS}
    return {**trained.defaults, **in_file}


def _check_numbers(config: Config) -> None:
    for name, value in vars(config).items():
        least = LEAST.get(name, 0)
        if not isinstance(value, str) and not least <= value < math.inf:
            raise UserError(f"{name} is {value}, but must be at least {least}")
    if bool(config.global_batch) == bool(config.batch_per_device):
        raise UserError("a run has either global_batch or batch_per_device; set one, and leave the other out")


def _flag(args: list[str], name: str) -> str:
    value, spellings = "", (f"--{name}", f"--{name.replace('_', '-')}")
    for position, arg in enumerate(args):
        flag, equals, text = arg.partition("=")
        if flag in spellings:
            value = text if equals else "".join(args[position + 1 : position + 2])
    return value
