"""Are these the reference's weights? The difference, the tolerance, and the verdict.

Two ranks on CPUs have to agree to the last bit: their kernels are the reference's, and a sum of two does not
depend on its order. Elsewhere (more shards, GPUs) rounding differs, and training amplifies it: at a usual learning
rate, errors of 2^-24 in the gradients change the weights by 100 % within 20 steps. So there the learning rate is
small (scripts/proof/wanted.py), and the tolerance is measured: a second reference has random errors of 2^-11 in
every gradient, and ten times what they do to the weights is allowed, but at most 50 %. In float32 that is 3 to 13 %
(ResNet-18, three ranks: 24 images of 64 px, 33 of 48 px), where what is left of the amplification is chance: a ReLU
or a maximum falls on the other side. Measured faults, at 24 images: no all-reduce 150 % and more, one shard for two
120 %, no set_epoch 25 %. In bf16 rounding does 20 to 35 % by itself, so that on GPUs, or with more than two ranks, a
forgotten set_epoch is found by the other strategies only.
"""

import dataclasses
import functools
from pathlib import Path

import torch

from benchmarks.common.config import Config
from benchmarks.common.settings import Shape
from scripts.proof.reference import AUTOCAST, PLAIN, train_reference

# fp16's rounding, which is larger than what compression, tf32, or another order of float32 sums does.
NOISE = torch.finfo(torch.float16).eps / 2
SAFETY, LARGEST_TOLERANCE = 10, 0.5
# Who computes it, where and when: the reference does not read these, and is trained once for all their values.
NOT_READ = (
    "checkpoint_dir", "workers", "timeout_s", "limit_s", "rendezvous", "bucket_cap_mb", "compression",
    "opt_level", "cut", "split_size", "copy_stream", "microbatches", "pipeline_schedule",
)  # fmt: skip
Weights = dict[str, torch.Tensor]


def judge(checkpoint: Path, config: Config, met: dict) -> dict:
    """Columns of equivalence.csv. config: what the run was asked. met: what it came to; its Shape is in it.

    checkpoint: what the run saved at its end. Raises UserError where the reference cannot read an image.
    """
    if met["precision"] not in (*PLAIN, *AUTOCAST):
        return {"verdict": "skipped", "reason": f"there is no reference in precision {met['precision']}"}
    shape = Shape(**{field.name: met[field.name] for field in dataclasses.fields(Shape)})
    config = dataclasses.replace(config, **{name: getattr(Config(), name) for name in NOT_READ})
    batch = met.get("global_batch", config.global_batch)  # met where images a device were asked
    config = dataclasses.replace(config, decoder=met["decoder"], global_batch=batch, batch_per_device=0)
    torch.set_num_threads(met["threads_per_rank"])  # other threads, other sums
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    trained = config, shape, met["precision"], met["device"]
    difference, worst = largest_difference(weights, reference(*trained))
    is_exact = shape.exact and met["device"] == "cpu" and shape.num_shards <= 2
    rounding = 0.0 if is_exact else effect_of_rounding(*trained)
    tolerance = min(SAFETY * rounding, LARGEST_TOLERANCE)
    reason = "" if difference <= tolerance else f"not the reference's weights; {worst} differs most"
    if reason and rounding > LARGEST_TOLERANCE:
        reason += f"; rounding alone makes {rounding:.0%} here, so take fewer --steps"
    return {
        "max_relative_difference": difference,
        "bit_identical": difference == 0,
        "tolerance": tolerance,
        "verdict": "failed" if reason else "ok",
        "reason": reason,
    }


@functools.cache
def reference(config: Config, shape: Shape, precision: str, device: str) -> Weights:
    return train_reference(config, shape, precision, torch.device(device))


@functools.cache
def effect_of_rounding(config: Config, shape: Shape, precision: str, device: str) -> float:
    """What errors of NOISE in every gradient do to the reference's weights: the largest relative difference."""
    disturbed = train_reference(config, shape, precision, torch.device(device), noise=NOISE)
    return largest_difference(disturbed, reference(config, shape, precision, device))[0]


def largest_difference(weights: Weights, expected: Weights) -> tuple[float, str]:
    """max |a - b| / max |b| of the tensor where it is largest, and that tensor's name; inf where nothing compares."""
    differences = {}
    for name in weights.keys() | expected.keys():
        differences[name] = float("inf")
        if name in weights and name in expected and weights[name].shape == expected[name].shape:
            a, b = weights[name].double(), expected[name].double()
            relative = ((a - b).abs().max() / b.abs().max()).item()  # 0 / 0 and what holds no number are nan
            if relative == relative or torch.equal(a, b):
                differences[name] = 0.0 if torch.equal(a, b) else relative
    worst = max(differences, key=lambda name: differences[name])
    return differences[worst], worst
