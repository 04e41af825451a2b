"""The precision in which a device computes, for a requested one: one rule, for runs and for the plan. Needs no torch.

resolve_precision("auto", (9, 0))        # bf16 on an H100; None in place of the compute capability is a CPU
"""

from benchmarks.common.config import Precision
from benchmarks.common.errors import UserError


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


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
