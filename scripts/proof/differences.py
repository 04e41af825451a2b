"""How far apart two states are, tensor by tensor, and how far they may be.

from scripts.proof.differences import compare, compare_nearest, same_bits
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable

import torch

from scripts.proof.reference import MOMENTUM, State
from scripts.proof.trained_states import Kept

TYPICAL, SINGLE = 1.5, 10  # times the measured rounding: the median over tensors, and any of them
FINEST = 2.0**-20  # sixteen roundings of float32: below it nothing is told apart, and nothing has to be
# Steps between two states in which nothing was shared: rounding may spread, and only what is grossly wrong is found;
# where it spreads further, as bf16's does in two steps, nothing is.
SPREAD = 0.1


@dataclasses.dataclass(frozen=True)
class Finding:
    """One comparison: of what, the relative difference, and what rounding was measured to make of it."""

    difference: float
    tolerance: float
    rounding: float = 0.0
    what: str = ""

    @property
    def excess(self) -> float:
        return self.difference / self.tolerance if self.tolerance else float("inf") if self.difference else 0.0


def same_bits(state: State, expected: State) -> Finding:
    difference, worst = largest_difference(state, expected)
    return Finding(difference, 0.0, what=worst)


def largest_difference(state: State, expected: State) -> tuple[float, str]:
    """max |a - b| / max |b| of the tensor where it is largest, and that tensor's name; inf where nothing compares."""
    found = distances(state, expected, lambda a, b: ((a - b).abs().max() / b.abs().max()).item())
    worst = max(found, key=lambda name: found[name])
    return found[worst], worst


def distances(state: State, expected: State, relative: Callable) -> dict[str, float]:
    """relative(a, b) of every tensor, as float64; 0 where they are equal, inf where nothing compares."""
    found = {}
    for name in sorted(state.keys() | expected.keys()):
        found[name] = float("inf")
        if name in state and name in expected and state[name].shape == expected[name].shape:
            a, b = state[name].double(), expected[name].double()
            distance = 0.0 if torch.equal(a, b) else relative(a, b)  # of what holds no number: nan
            found[name] = distance if distance == distance else float("inf")
    return found


def compare(before: Kept, num_steps: int, when: str, run: State, exact: State, plain: State) -> list[Finding]:
    """Of the steps since the state `before`, how far a run is from the exact reference beside how far the plain one
    is: the median over the tensors' momentum (their moves, without momentum), and the tensor that is worst.

    run, exact, plain: what `displacement` makes of their states.
    """
    return _beside(before, num_steps, when, run, exact, distances(plain, exact, norm_of_difference))


def compare_nearest(before: Kept, num_steps: int, when: str, run: State, outcomes: list[State]) -> list[Finding]:
    """compare() with that of the reference's outcomes to which the run is nearest. Rounding is what the two that are
    most alike differ by; where the run agrees with none, what a pair of them usually does.

    A ReLU's input of 1e-7 is on the other side of 0 for other kernels, and its gradient is there or not: of the 8192
    values of a layer that is 1/sqrt(8192) of the gradient's norm, 1 %, in all layers before it. The outcomes, which
    other rounding made, are on both sides. Where one of them is on the run's, there it has to agree; where several
    values are that near to 0, none may be.
    """
    apart = [distances(*pair, norm_of_difference) for pair in itertools.combinations(outcomes, 2)]
    apart.sort(key=lambda found: max(found.values()))
    for rounded in (apart[0], apart[len(apart) // 2]):
        found = [_beside(before, num_steps, when, run, outcome, rounded) for outcome in outcomes]
        nearest = min(found, key=lambda findings: max(finding.excess for finding in findings))
        if all(finding.excess <= 1 for finding in nearest):
            break
    return nearest


def _beside(
    before: Kept, num_steps: int, when: str, run: State, reference: State, rounded: dict[str, float]
) -> list[Finding]:
    """The two findings of compare(). rounded: what rounding makes, by tensor."""
    off = distances(run, reference, norm_of_difference)
    typical = [name for name in off if name.startswith(MOMENTUM)] or list(off)
    usual = max(FINEST, statistics.median(rounded[name] for name in typical))
    known = num_steps > 1 and usual < SPREAD
    shown = 0.0 if known else usual
    median = statistics.median(off[name] for name in typical)
    findings = []
    for name, difference in off.items():
        rounding = max(usual, rounded[name], placed(name, before.state, reference))
        findings.append(Finding(difference, SINGLE * (SPREAD if known else rounding), shown, f"{name} at {when}"))
    return [
        Finding(median, SPREAD if known else TYPICAL * usual, shown, f"the median of the tensors at {when}"),
        max(findings, key=lambda finding: finding.excess),
    ]


def displacement(state: State, before: State) -> State:
    """Momentum as it is; of the rest, how far it has moved since the state before, in float64."""
    return {
        name: tensor if name.startswith(MOMENTUM) else tensor.double() - before[name].double()
        for name, tensor in state.items()
        if name.startswith(MOMENTUM) or name in before
    }


def placed(name: str, before: State, moved: State) -> float:
    """How finely float32 can place a weight, relative to how far it moves."""
    if name.startswith(MOMENTUM) or name not in before or name not in moved:
        return 0.0
    return (2.0**-24 * before[name].double().norm() / moved[name].norm().clamp_min(1e-300)).item()


def norm_of_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()
