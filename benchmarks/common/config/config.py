"""One flat configuration. Defaults are here, YAML files hold differences, flags come last.

    python -m benchmarks.ddp --config configs/smoke.yaml --global-batch 64 --help

Needs no torch, so that launchers and plots can read a configuration in a blink.
"""

import dataclasses
import difflib
import sys
import typing
from typing import Literal

import tyro

from benchmarks.common.config.yaml_file import read_values
from benchmarks.common.system.errors import UserError

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
]


@dataclasses.dataclass(frozen=True)
class Config:
    """What is trained, on what, and how it is timed. The same for every strategy."""

    config: str = ""
    """YAML file with differences from these defaults."""

    data: str = "data/imagenet-mini"
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."""
    loader: Literal["folder", "packed", "synthetic"] = "folder"
    """`folder` reads JPEG files, `packed` what `make pack` made of them; `synthetic` repeats one random batch."""
    decoder: Literal["auto", "nvimgcodec", "torchcodec", "pillow", "nvimgcodec-gpu"] = "auto"
    """What decodes JPEGs; auto: the first of nvimgcodec, torchcodec and pillow that is installed. Pixels differ by 1 of
    255, in one of millions of values by 2. nvimgcodec-gpu: on the rank's GPU, in threads; not run on one yet."""
    pack: Literal["full", "256", "jpeg256"] = "full"
    """What packed files hold: whole images, or shrunk to 256 pixels on the shorter side, as pixels or as JPEGs."""
    augment: bool = True
    """Random crops and flips in training. Off: the centre crop, so that every run sees the same pixels."""
    workers: int | Literal["auto"] = 4
    """Loader workers of each rank; 0 decodes in the training process; auto: beside a GPU the rank's cores but one."""
    prefetch: int = 1
    """On GPUs: batches copied ahead of the step that trains on them, on a stream of their own; 0: the step copies."""
    skip_bad_files: bool = False
    """Count and replace files that cannot be decoded, instead of stopping at the first."""

    arch: Arch = "resnet50"
    """torchvision ResNet."""
    image_size: int = 224
    """Pixels along each side of a training image."""
    norm: Literal["batch", "group", "sync"] = "batch"
    """BatchNorm, GroupNorm of 32 groups, or SyncBatchNorm (GPUs only)."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Arithmetic of convolutions and products; weights stay float32. auto: bf16 on GPUs that have it (compute
    capability 8), fp16 on others where the script scales gradients, else fp32."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Layout of images and weights."""
    compile: bool = False
    """torch.compile of the model; refused where a strategy cuts or shards it."""
    cuda_graphs: bool = False
    """With `compile`, on GPUs: its kernels are replayed as CUDA graphs (torch.compile's mode reduce-overhead)."""
    fused: bool = False
    """The optimizer's whole update in one kernel."""
    cudnn_benchmark: bool = True
    """On GPUs: cuDNN times its algorithms for each shape, and keeps the fastest."""
    cudnn_deterministic: bool = False
    """On GPUs: only those of cuDNN's algorithms that give the same bits every time."""

    global_batch: int = 256
    """Images of one optimizer step, over all ranks. Must divide by the ranks. 0: `batch_per_device` says it."""
    batch_per_device: int = 0
    """Instead of `global_batch`: images of a step on each GPU that the strategy uses; on CPUs, of each rank."""
    epochs: int = 1
    """Passes over the training set, each followed by an exact evaluation."""
    steps: int = 0
    """Optimizer steps of an epoch; 0: as many whole batches as the training set holds."""
    lr: float = 0.1
    """Learning rate for a global batch of `lr_batch`; scales in proportion to `global_batch`."""
    lr_batch: int = 256
    """The global batch that `lr` is meant for (linear scaling, arXiv:1706.02677)."""
    lr_warmup_epochs: float = 0.0
    """Epochs in which the learning rate climbs from 0 in a straight line."""
    lr_schedule: Literal["constant", "steps", "cosine"] = "constant"
    """`steps` divides by 10 every 30 epochs; `cosine` falls to 0 at the last step."""
    momentum: float = 0.9
    """SGD momentum."""
    weight_decay: float = 1e-4
    """SGD weight decay."""
    seed: int = 0
    """Seeds the initial weights, the order of the images and every augmentation."""

    warmup_steps: int = 10
    """First steps of the run, which no timed window includes."""
    windows: int = 10
    """Timed windows to take, from the steps after the warm-up."""
    window_steps: int = 10
    """Optimizer steps in a timed window."""
    account_steps: int = 0
    """Steps after the timed windows in which each phase (data, forward, ...) is timed by hooks."""

    checkpoint_dir: str = ""
    """Folder in which each run writes last.pt and best.pt to its own folder, such as ddp-1; empty: no checkpoints."""
    checkpoint_steps: int = 0
    """Steps between checkpoints within an epoch; 0: at the end of each epoch only."""
    checkpoint_keep: bool = False
    """Keep each last.pt under a name of its own, too, such as epoch0-step100.pt."""
    resume: bool = False
    """Continue from checkpoint_dir/last.pt, in the middle of an epoch if it stopped there."""
    resume_from: Literal["last", "previous", "best"] = "last"
    """Which file --resume reads: `previous` is the one before last."""
    resume_anyway: bool = False
    """With --resume: go on although lr, data or others have changed since the checkpoint. The row says which."""
    timeout_s: float = 60.0
    """Seconds that a rank waits for the others in one collective before the run fails."""
    limit_s: float = 0.0
    """Seconds that a launcher gives a whole run before it ends it; 0: no limit. TIMEOUT= overrides it."""

    bucket_cap_mb: float = 0.0
    """DDP strategies: gradient bucket, MiB; 0: PyTorch's own choice, 1 for the first and 25 for the others."""
    static_graph: bool = False
    """DDP strategies: every step uses the same parameters, so that DDP need not look for those left out."""
    gradient_as_bucket_view: bool = False
    """DDP strategies: gradients lie in the buckets, and are not copied there and back."""
    comm_hook: Literal["bf16", "fp16", "powersgd"] = "bf16"
    """ddp_compressed: what gradients travel as; powersgd, low-rank factors, needs NCCL."""
    powersgd_rank: int = 1
    """ddp_compressed: rank of PowerSGD's factors."""
    shard_ranks: int = 0
    """fsdp: ranks that share one copy of the weights, 0: all; fewer make HSDP, with copies on the others."""
    local_period: int = 4
    """local_sgd: steps between two averages of the weights."""
    local_group: int = 1
    """local_sgd: ranks that average their gradients at every step, as DDP does."""
    compression: Literal["none", "fp16"] = "none"
    """horovod_ddp: what gradients travel as."""
    opt_level: Literal["O0", "O1", "O2", "O3"] = "O1"
    """apex_ddp: Apex amp's optimisation level."""
    cut: int = 0
    """model_parallel, pipeline_parallel, hybrid_parallel: blocks before the cut; 0: balanced by estimated time."""
    split_size: int = 0
    """model_parallel, hybrid_parallel: images of a micro-batch; 0: the whole batch at once."""
    copy_stream: bool = False
    """model_parallel: copy activations on a CUDA stream of its own."""
    microbatches: int = 0
    """pipeline_parallel: micro-batches of a step; 0: the least multiple of the stages from 4 on."""
    pipeline_schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """pipeline_parallel: order of forward and backward micro-batches."""
    rendezvous: Literal["file", "address"] = "file"
    """slurm: ranks meet in a file of the shared folder, or at the first node's address."""


FIELDS = {field.name: field for field in dataclasses.fields(Config)}
FIELD_TYPES = typing.get_type_hints(Config)
BATCH_FIELDS = ("global_batch", "batch_per_device")  # one of them is 0
AT_LEAST = {
    "workers": 0, "prefetch": 0, "image_size": 8, "global_batch": 1, "batch_per_device": 0, "epochs": 1, "steps": 0,
    "lr": 0, "lr_batch": 1, "lr_warmup_epochs": 0, "momentum": 0, "weight_decay": 0, "seed": 0, "warmup_steps": 0,
    "windows": 1, "window_steps": 1, "account_steps": 0, "checkpoint_steps": 0, "timeout_s": 1, "limit_s": 0,
    "bucket_cap_mb": 0, "powersgd_rank": 1, "shard_ranks": 0, "local_period": 1, "local_group": 1, "cut": 0,
    "split_size": 0, "microbatches": 0,
}  # fmt: skip

# What torch, gloo and the system still take: a seed has 64 bits, and 10^9 s are so many nanoseconds.
AT_MOST = dict.fromkeys(AT_LEAST, 10**12) | dict.fromkeys(("lr", "momentum", "weight_decay"), 10**38)
AT_MOST |= {"seed": 2**62, "timeout_s": 10**9}


def load_config(args: list[str] | None = None, description: str | None = None, **allowed: tuple) -> Config:
    """Defaults, then the file that `--config` names, then flags, each overriding the one before.

    args: command line without the program's name (default sys.argv[1:]). allowed: for a field, the values
    that the calling strategy can honour, e.g. norm=("batch", "group").
    Raises UserError for a file's mistakes and values out of range; exits 2 with tyro's message for a flag's.
    """
    args = sys.argv[1:] if args is None else args
    path = _flag(args, "config")
    base = Config(**_one_batch(read_yaml(path), path)) if path else Config()
    flags = {name: _flag(args, name) for name in BATCH_FIELDS}
    given = _one_batch({name: text for name, text in flags.items() if text not in ("", "0")}, "the command line")
    base = dataclasses.replace(base, **{name: value for name, value in given.items() if not value})
    config = tyro.cli(Config, args=args, default=base, description=description)
    for name, minimum in AT_LEAST.items():
        value = getattr(config, name)
        instead = name == "global_batch" and value == 0 and config.batch_per_device
        if not (value == "auto" or minimum <= value < float("inf") or instead):
            raise UserError(f"{name} is {value}, but must be at least {minimum}")
        if value != "auto" and value > AT_MOST[name]:
            raise UserError(f"{name} is {value:g}, but must be at most {AT_MOST[name]}")
    for name, values in allowed.items():
        if getattr(config, name) not in values:
            raise UserError(
                f"this strategy cannot honour {name}={getattr(config, name)}; it takes {' or '.join(map(str, values))}"
            )
    return config


def read_yaml(path: str) -> dict:
    """The differences a YAML file holds, checked against Config's names and types. Raises UserError."""
    return read_values(path, {name: wanted for name, wanted in FIELD_TYPES.items() if name != "config"})


def resolve_global_batch(config: Config, num_devices: int) -> Config:
    """`config` with the global batch that num_devices make, where batch_per_device is what was asked."""
    if not config.batch_per_device:
        return config
    return dataclasses.replace(config, global_batch=config.batch_per_device * num_devices)


def find_field(text: str) -> str:
    """The configuration field that `text` names, with - or _. Raises UserError with the nearest name."""
    key = text.strip().lstrip("-").replace("-", "_")
    if key in FIELDS:
        return key
    near = difflib.get_close_matches(key, FIELDS, n=1, cutoff=0.5)
    raise UserError(f"no option {text!r}; {f'did you mean {near[0]}?' if near else '`make flags` lists them'}")


def _one_batch(values: dict, place: str) -> dict:
    """`values` with the batch that is not among them as 0, so that it gives way. Raises UserError where both are."""
    given = [name for name in BATCH_FIELDS if values.get(name)]
    if len(given) > 1:
        raise UserError(f"{place} has both {' and '.join(given)}; leave one out")
    return dict.fromkeys(BATCH_FIELDS, 0) | values if given else values


def _flag(args: list[str], name: str) -> str:
    """The last value of a flag in `args`, for those that have to be known before the others are parsed."""
    value, flags = "", (f"--{name}", f"--{name.replace('_', '-')}")
    for position, arg in enumerate(args):
        flag, given, text = arg.partition("=")
        if flag in flags:
            value = text if given else "".join(args[position + 1 : position + 2])
    return value
