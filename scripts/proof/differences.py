"""How far apart two states are, tensor by tensor, and how far they may be."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable

import torch

from scripts.proof.reference import MOMENTUM, OF_OPTIMIZER, SavedState, State

# Tolerances, as multiples of the measured rounding: for the median over tensors, and for each single tensor.
MEDIAN_FACTOR, SINGLE_TENSOR_FACTOR = 1.5, 10
SMALLEST_TOLERANCE = 2.0**-20  # sixteen roundings of float32
# Tolerance between two states that are several steps apart, where rounding may have grown.
GROSS_DIFFERENCE = 0.1

Relative = Callable[[torch.Tensor, torch.Tensor], float]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One comparison: the relative difference of `what`, its tolerance, and the measured rounding."""

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
    """max |a - b| / max |b| of the tensor where it is largest, and that tensor's name; inf where nothing compares."""
    found = distances(state, expected, lambda a, b: ((a - b).abs().max() / b.abs().max()).item())
    worst = max(found, key=lambda name: found[name])
    return found[worst], worst


def distances(state: State, expected: State, relative: Relative) -> dict[str, float]:
    """relative(a, b) of every tensor, as float64: 0 where they are equal, inf where they cannot be compared."""
    found = {}
    for name in sorted(state.keys() | expected.keys()):
        found[name] = float("inf")
        if name in state and name in expected and state[name].shape == expected[name].shape:
            a, b = state[name].double(), expected[name].double()
            distance = 0.0 if torch.equal(a, b) else relative(a, b)
            found[name] = float("inf") if math.isnan(distance) else distance
    return found


@dataclasses.dataclass(frozen=True)
class Interval:
    """The steps between two states of a run."""

    before: SavedState
    last_step: int

    @property
    def num_steps(self) -> int:
        return self.last_step - self.before.step


def compare(interval: Interval, run: State, exact: State, plain: State) -> list[Finding]:
    """How far a run is from the exact reference, beside how far the plain reference is from it.

    Two findings: the median over the tensors' momentum (without momentum, over the weights' displacements), and the
    tensor that is worst. run, exact, plain: what `displacement` returns for their states.
    """
    return _findings(interval, run, exact, distances(plain, exact, norm_of_difference))


def compare_with_nearest(interval: Interval, run: State, outcomes: list[State]) -> list[Finding]:
    """compare() with that of the reference's outcomes that is nearest to the run.

    The rounding is the difference of the two outcomes that are most alike; where the run agrees with none, the median
    difference of all pairs. With other kernels a ReLU's input of 1e-7 can be on the other side of 0, which changes the
    gradients before it by 1 % or so. The outcomes are on both sides, and the run has to agree with one of them.
    """
    apart = [distances(first, second, norm_of_difference) for first, second in itertools.combinations(outcomes, 2)]
    apart.sort(key=lambda of_tensors: max(of_tensors.values()))
    for rounding in (apart[0], apart[len(apart) // 2]):
        of_outcomes = [_findings(interval, run, outcome, rounding) for outcome in outcomes]
        nearest = min(of_outcomes, key=lambda findings: max(finding.excess for finding in findings))
        if all(finding.excess <= 1 for finding in nearest):
            break
    return nearest


def _findings(interval: Interval, run: State, reference: State, rounding_of: dict[str, float]) -> list[Finding]:
    differences = distances(run, reference, norm_of_difference)
    typical = [name for name in differences if name.startswith(MOMENTUM)] or list(differences)
    median_rounding = max(SMALLEST_TOLERANCE, statistics.median(rounding_of[name] for name in typical))
    gross = interval.num_steps > 1 and median_rounding < GROSS_DIFFERENCE
    shown_rounding = 0.0 if gross else median_rounding
    when = f"step {interval.last_step}"
    of_tensors = []
    for name, difference in differences.items():
        rounding = max(median_rounding, rounding_of[name], placement_rounding(name, interval.before.state, reference))
        tolerance = SINGLE_TENSOR_FACTOR * (GROSS_DIFFERENCE if gross else rounding)
        of_tensors.append(Finding(difference, tolerance, shown_rounding, f"{name} at {when}"))
    median = statistics.median(differences[name] for name in typical)
    tolerance = GROSS_DIFFERENCE if gross else MEDIAN_FACTOR * median_rounding
    return [
        Finding(median, tolerance, shown_rounding, f"the median of the tensors at {when}"),
        max(of_tensors, key=lambda finding: finding.excess),
    ]


def displacement(state: State, before: State) -> State:
    """What the optimizer keeps, and the displacement of all other tensors since the state `before`, in float64."""
    return {
        name: tensor if name.startswith(OF_OPTIMIZER) else tensor.double() - before[name].double()
        for name, tensor in state.items()
        if name.startswith(OF_OPTIMIZER) or name in before
    }


def placement_rounding(name: str, before: State, moved: State) -> float:
    """The rounding of a weight in float32, relative to its displacement `moved`."""
    if name.startswith(OF_OPTIMIZER) or name not in before or name not in moved:
        return 0.0
    return (2.0**-24 * before[name].double().norm() / moved[name].norm().clamp_min(1e-300)).item()


def norm_of_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()
