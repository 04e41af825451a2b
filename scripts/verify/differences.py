"""How far apart two states are, tensor by tensor, and how far they may be."""

import dataclasses
import math
import statistics
from collections.abc import Callable

import torch

from scripts.verify.reference import ADAM_BETA2, OF_OPTIMIZER, SavedState, State

# Tolerances, as multiples of the measured rounding: for the median over tensors, and for each single tensor.
MEDIAN_FACTOR, SINGLE_TENSOR_FACTOR = 1.5, 10
KERNEL_FACTOR = 3  # in place of the first, where the rounding of other kernels is estimated by few outcomes
SMALLEST_TOLERANCE = 2.0**-20  # sixteen roundings of float32
GRADIENTS = ("momentum_buffer of ", "exp_avg of ")  # how names of a State begin that a step adds the gradient to

Relative = Callable[[torch.Tensor, torch.Tensor], float]


@dataclasses.dataclass(frozen=True)
class Finding:
    """rounding: as measured."""

    difference: float
    tolerance: float
    rounding: float = 0.0
    what: str = ""

    @property
    def excess(self) -> float:
        return self.difference / self.tolerance if self.tolerance else float("inf") if self.difference else 0.0


def compare_bits(state: State, expected: State) -> Finding:
    difference, worst = largest_difference(state, expected)
    return Finding(difference, 0.0, what=worst)


def largest_difference(state: State, expected: State) -> tuple[float, str]:
    """max |a - b| / max |b| of the tensor where it is largest, and its name."""
    found = distances(state, expected, lambda a, b: ((a - b).abs().max() / b.abs().max()).item())
    worst = max(found, key=lambda name: found[name])
    return found[worst], worst


def distances(state: State, expected: State, relative: Relative) -> dict[str, float]:
    """inf where they cannot be compared."""
    found = {}
    for name in sorted(state.keys() | expected.keys()):
        found[name] = float("inf")
        if name in state and name in expected and state[name].shape == expected[name].shape:
            a, b = state[name].double(), expected[name].double()
            distance = 0.0 if torch.equal(a, b) else relative(a, b)
            found[name] = float("inf") if math.isnan(distance) else distance
    return found


def compare(before: SavedState, run: State, exact: State, plain: State) -> list[Finding]:
    """How far a run's step is from the exact reference's, beside how far the plain one's is: in the median over the
    gradients, or else the weights' displacements, and in the worst tensor. run, exact, plain: of `displacement`."""
    return _findings(before, run, exact, distances(plain, exact, norm_of_difference), MEDIAN_FACTOR)


def compare_with_outcomes(before: SavedState, run: State, outcomes: list[State]) -> list[Finding]:
    """compare() with the weighted mean of the reference's outcomes that is nearest to the run: a ReLU's input of 1e-7
    can be on the other side of 0, which changes gradients by 1 %. The rounding is what a mean of the other outcomes
    leaves of each, in the median."""
    products = {name: _relative_products([state[name] for state in (*outcomes, run)]) for name in run}
    last, left = len(outcomes), []
    for number in range(last):
        error = _nearest_mean(products, number, [other for other in range(last) if other != number])
        error[number] -= 1
        left.append({name: (error @ of @ error).clamp_min(0).sqrt().item() for name, of in products.items()})
    rounding = {name: statistics.median(of_outcome[name] for of_outcome in left) for name in run}
    weights = _nearest_mean(products, last, list(range(last))).tolist()[:last]
    mean = {}
    for name in run:
        parts = [weight * state[name].double() for weight, state in zip(weights, outcomes, strict=True)]
        mean[name] = torch.stack(parts).sum(dim=0)
    return _findings(before, run, mean, rounding, KERNEL_FACTOR)


def _relative_products(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Of differences from the first, over the largest norm's square: float64 (N, N)."""
    rows = torch.stack([tensor.double().flatten() for tensor in tensors])
    largest = rows.square().sum(dim=1).max().clamp_min(1e-300)
    differences = rows - rows[0]
    return differences @ differences.T / largest


def _nearest_mean(products: dict[str, torch.Tensor], target: int, others: list[int]) -> torch.Tensor:
    """Weights of sum 1: float64 (N,)."""
    total = torch.stack([*products.values()]).sum(dim=0)
    unit = torch.eye(len(total), dtype=total.dtype)
    first, *rest = others
    directions, wanted = unit[rest] - unit[first], unit[target] - unit[first]
    towards = torch.linalg.lstsq(directions @ total @ directions.T, directions @ total @ wanted).solution
    return unit[first] + towards @ directions


def _findings(
    before: SavedState, run: State, reference: State, rounding_of: dict[str, float], factor: float
) -> list[Finding]:
    differences = distances(run, reference, norm_of_difference)
    typical = [name for name in differences if name.startswith(GRADIENTS)] or list(differences)
    median_rounding = max(SMALLEST_TOLERANCE, statistics.median(rounding_of[name] for name in typical))
    when = f"step {before.step + 1}"
    of_tensors = []
    for name, difference in differences.items():
        rounding = max(median_rounding, rounding_of[name], placement_rounding(name, before.state, reference))
        of_tensors.append(Finding(difference, SINGLE_TENSOR_FACTOR * rounding, median_rounding, f"{name} at {when}"))
    median = statistics.median(differences[name] for name in typical)
    return [
        Finding(median, factor * median_rounding, median_rounding, f"the median of the tensors at {when}"),
        max(of_tensors, key=lambda finding: finding.excess),
    ]


def displacement(state: State, before: State, momentum: float) -> State:
    """What a step added; of momentum the gradient. momentum: or AdamW's first beta."""
    added = {}
    for name, tensor in state.items():
        kept = momentum if name.startswith(GRADIENTS) else ADAM_BETA2 if name.startswith("exp_avg_sq of ") else 1
        if name in before:
            added[name] = torch.sub(tensor, before[name], alpha=kept)
        elif name.startswith(OF_OPTIMIZER):  # before the first step
            added[name] = tensor
    return added


def placement_rounding(name: str, before: State, added: State) -> float:
    """Of float32, relative to what the step added."""
    if name not in before or name not in added:
        return 0.0
    return (2.0**-24 * before[name].double().norm() / added[name].double().norm().clamp_min(1e-300)).item()


def norm_of_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()
