"""The roof of a GPU that is not at hand: FLOPs and bytes of a traced step, against sums done by hand.

.venv/bin/python -m pytest tests/studies/test_step_costs.py
"""

import pytest
import torch
from torch import nn

from scripts.studies.roofline.analysis import Layer, forecast_rows, roof_images_per_s
from scripts.studies.roofline.step_costs import sum_by_layer, trace_step

N, SIZE, OUT, CLASSES, FLOAT = 4, 8, 16, 10, 4  # images, pixels along a side, channels of the convolution, bytes
PIXELS = N * SIZE * SIZE


def net() -> nn.Module:
    convolution = nn.Conv2d(3, OUT, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(OUT * SIZE * SIZE, CLASSES, bias=False))


@pytest.fixture(scope="module")
def layers() -> dict[str, Layer]:
    return {layer.name: layer for layer in sum_by_layer(trace_step(net, N, SIZE))}


def test_a_convolution_by_hand(layers):
    """Protects FLOPs (2 a multiply-add; the first layer has no gradient of its images) and the bytes of each kernel."""
    images, weight, output = 3 * PIXELS * FLOAT, OUT * 3 * 9 * FLOAT, OUT * PIXELS * FLOAT
    forward, weight_gradient = 2 * OUT * PIXELS * 27, 2 * OUT * PIXELS * 27
    assert layers["0"].flops == forward + weight_gradient
    assert layers["0"].moved_bytes == (images + weight + output) + (output + images + weight + weight)
    # fused, the ReLU takes its input from the convolution's registers, and nobody else reads it
    assert layers["0"].fused_bytes == layers["0"].moved_bytes - output


def test_an_elementwise_layer_by_hand(layers):
    """Protects fusing: forward only the result travels, backward the gradient comes out of the product's kernel."""
    output = OUT * PIXELS * FLOAT
    assert layers["1"].flops == 0
    assert layers["1"].moved_bytes == (output + output) + (output + output + output)
    assert layers["1"].fused_bytes == output + (output + output)


def test_a_matrix_product_by_hand(layers):
    """Protects the products of the last layer: forward, the gradient of its input, and that of its weight."""
    features, weight, scores = OUT * PIXELS * FLOAT, OUT * SIZE * SIZE * CLASSES * FLOAT, N * CLASSES * FLOAT
    assert layers["3"].flops == 3 * 2 * N * CLASSES * OUT * SIZE * SIZE
    forward = features + weight + scores
    backward = (scores + features + weight) + (scores + weight + features)
    assert layers["3"].moved_bytes == forward + backward
    assert layers["3"].fused_bytes == layers["3"].moved_bytes - features  # the ReLU's gradient is made in this kernel


def test_half_the_bytes_in_half_precision():
    """Protects the bf16 column: activations travel as two bytes."""
    whole, half = (sum_by_layer(trace_step(net, N, SIZE, dtype)) for dtype in (None, torch.bfloat16))
    relu = [next(layer for layer in found if layer.name == "1") for found in (whole, half)]
    assert relu[0].moved_bytes == 2 * relu[1].moved_bytes


def test_a_layer_takes_the_longer_of_computing_and_moving():
    """Protects the roof: 1 s of computing, then 2 s of moving, over 30 images."""
    computes, moves = Layer("a", 10**12, 10**9, 10**9), Layer("b", 10**11, 2 * 10**9, 10**9)
    assert roof_images_per_s([computes, moves], 30, tflops=1.0, gb_per_s=1.0, fused=False) == pytest.approx(10)
    assert roof_images_per_s([computes, moves], 30, tflops=1.0, gb_per_s=1.0, fused=True) == pytest.approx(15)


def test_only_what_was_published_is_forecast_from():
    """Protects honesty: another model has a roof and no forecast; a GPU without bf16 has no such row."""
    some = [Layer("a", 10**12, 10**9, 10**9)]
    rows = forecast_rows({"fp32": some, "bf16": some}, "resnet18", 224, 256)
    assert all(row["forecast_low"] is None and row["published"] is None for row in rows)
    assert ("V100 SXM2", "bf16") not in {(row["gpu"], row["precision"]) for row in rows}
    rows = forecast_rows({"fp32": some, "bf16": some}, "resnet50", 224, 256)
    assert all(row["forecast_low"] <= row["forecast_high"] < row["compute_roof"] * 10 for row in rows)
    assert sum(row["published"] is not None for row in rows) == 4
