"""FLOPs and bytes of a traced step, against sums done by hand.

.venv/bin/python -m pytest tests/studies/test_step_costs.py
"""

import torch
from torch import nn

from scripts.studies.roofline.step_costs import trace_step

N, SIZE, OUT, CLASSES, FLOAT = 4, 8, 16, 10, 4  # images, pixels along a side, channels of the convolution, bytes
PIXELS = N * SIZE * SIZE


def net() -> nn.Module:
    convolution = nn.Conv2d(3, OUT, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(OUT * SIZE * SIZE, CLASSES, bias=False))


def sums(name: str, autocast: torch.dtype | None = None) -> tuple[int, int]:
    """(FLOPs, bytes) of all operations with this in their name."""
    found = [operation for operation in trace_step(net, N, SIZE, autocast) if name in operation.name]
    return sum(each.flops for each in found), sum(each.moved_bytes for each in found)


def test_a_convolution_by_hand():
    """FLOPs (2 a multiply-add; the first layer has no gradient of its images) and the bytes of each kernel."""
    images, weight, output = 3 * PIXELS * FLOAT, OUT * 3 * 9 * FLOAT, OUT * PIXELS * FLOAT
    forward, weight_gradient = 2 * OUT * PIXELS * 27, 2 * OUT * PIXELS * 27
    assert sums("convolution") == (
        forward + weight_gradient,
        (images + weight + output) + (output + images + 2 * weight),
    )


def test_an_elementwise_layer_by_hand():
    """Forward it reads and writes, backward it reads two and writes one; in bf16 half as many bytes."""
    output = OUT * PIXELS * FLOAT
    assert sums("relu")[1] + sums("threshold")[1] == 5 * output
    assert 2 * sums("relu", torch.bfloat16)[1] == sums("relu")[1]


def test_a_matrix_product_by_hand():
    """Forward, the gradient of its input, and that of its weight."""
    features, weight, scores = OUT * PIXELS * FLOAT, OUT * SIZE * SIZE * CLASSES * FLOAT, N * CLASSES * FLOAT
    assert sums("aten::mm") == (3 * 2 * N * CLASSES * OUT * SIZE * SIZE, 3 * (features + weight + scores))
