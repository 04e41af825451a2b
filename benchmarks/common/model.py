"""The model, its optimizer and its learning rate: the same for every strategy."""

import math
from typing import Any, TypeVar

import torch
from torch import nn

from benchmarks.common.architectures import ARCHITECTURES
from benchmarks.common.config import Config
from benchmarks.common.loader import MEMORY_FORMATS
from benchmarks.common.model_families import draw_model
from benchmarks.common.stages import flops_and_shapes
from benchmarks.common.compiling import prepare_compiler
from benchmarks.common.errors import UserError


def build_model(config: Config, num_classes: int, device: torch.device) -> nn.Module:
    """A torchvision model with weights drawn from config.seed on the CPU, so that every rank, strategy and device
    starts from the same ones; float32, but its forward pass computes in bf16 where config.precision is that.

    Raises UserError for norm=sync or CUDA graphs on a CPU, and Unavailable as prepare_compiler does.
    """
    if config.norm == "sync" and device.type != "cuda":
        raise UserError("norm sync (SyncBatchNorm) runs on GPUs only; use --norm group, or batch")
    torch.manual_seed(config.seed)
    model = draw_model(config, num_classes)
    if config.norm == "sync":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device=device, memory_format=MEMORY_FORMATS[config.memory_format])  # type: ignore[call-overload]
    model = autocast_forward(config, model)
    if config.cuda_graphs and not (config.compile and device.type == "cuda"):
        raise UserError("cuda_graphs are of compiled kernels on GPUs: it goes with --compile, and not on a CPU")
    if config.compile:
        prepare_compiler(on_gpu=device.type == "cuda")
        # the module itself, so that its tensors keep their names
        model.compile(mode="reduce-overhead" if config.cuda_graphs else None)
    return model


ADAM_BETA2 = 0.999  # torch's default, and that of arXiv:2201.03545

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class InBf16(nn.Module):
    """Mixed into a module's class: autocast around its forward pass. Another class, and no other `forward` on the
    module itself: DataParallel's replicas would call the first GPU's."""

    float32_output = True

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            output = super().forward(images)
        return output.float() if self.float32_output else output


def autocast_forward(config: Config, module: ModuleT, float32_output: bool = True) -> ModuleT:
    """Change `module` so that its forward pass runs in bf16 autocast, where config.precision is bf16; returns it.
    float32_output: the output is cast to float32, as scores are; activations between stages stay bf16."""
    if config.precision == "bf16":
        kind = type(module)
        module.__class__ = type(f"{kind.__name__}InBf16", (InBf16, kind), {"float32_output": float32_output})
    return module


def flops_per_image(config: Config, num_classes: int) -> int:
    """FLOPs of training on one image: convolutions and matrix products, a multiply-add counted as 2, of a forward pass
    and a backward pass of twice as many (arXiv:2204.02311, appendix B)."""
    with torch.device("meta"):
        net = draw_model(config, num_classes)
    return 3 * flops_and_shapes([net], config.image_size)[0][0]


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The architecture's optimizer, of all weights alike; the engine sets the learning rate before every step."""
    optimizer_class, options = optimizer_of(config)
    return optimizer_class(model.parameters(), **options)


def optimizer_of(config: Config) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class of the architecture's optimizer, and its keyword arguments. AdamW's first beta is `momentum`."""
    options = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": config.fused or None}
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        return torch.optim.AdamW, options | {"betas": (config.momentum, ADAM_BETA2)}
    return torch.optim.SGD, options | {"momentum": config.momentum}


def state_of_zeros(config: Config, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the optimizer keeps of a parameter, under its own names, as before the first step."""
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        num_steps = torch.zeros((), device=parameter.device if config.fused else "cpu")
        return {"step": num_steps} | {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    return {"momentum_buffer": torch.zeros_like(parameter)} if config.momentum else {}


def start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Momentum of zeros before the first step, which then computes the same. SGD's fused update starts from memory that
    nobody has written (torch.optim.sgd._fused_sgd), and keeps it where a gradient scaler skips the first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("momentum") else ():
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def learning_rate(config: Config, epoch: float) -> float:
    """Learning rate at a moment of training, `epoch` counting passes as a real number from 0: a linear warm-up, then
    constant, divided by 10 every 30 epochs, or a cosine to 0 (arXiv:1608.03983 without restarts)."""
    peak = peak_learning_rate(config)
    if epoch < config.lr_warmup_epochs:
        return peak * epoch / config.lr_warmup_epochs
    if config.lr_schedule == "steps":
        return peak * 0.1 ** (epoch // 30)
    if config.lr_schedule == "cosine":
        span = max(config.epochs - config.lr_warmup_epochs, 1e-9)
        return peak * (1 + math.cos(math.pi * min(1.0, (epoch - config.lr_warmup_epochs) / span))) / 2
    return peak


def peak_learning_rate(config: Config) -> float:
    """`lr` for this global batch: in proportion with SGD (arXiv:1706.02677), by its square root with AdamW
    (arXiv:2205.10287)."""
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        return config.lr * math.sqrt(config.global_batch / config.lr_batch)
    return config.lr * config.global_batch / config.lr_batch
