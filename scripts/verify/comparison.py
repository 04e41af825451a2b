"""Compares a run with the reference: the differences, the tolerances, and the verdict. docs/proof.md has the method.

The tolerance is measured, after FlashAttention's rule (github.com/Dao-AILab/flash-attention, tests/test_flash_attn.py).
"""

import functools
import itertools
import math
from typing import Any

from scripts.verify.differences import (
    KERNEL_FACTOR,
    MEDIAN_FACTOR,
    SMALLEST_TOLERANCE,
    Finding,
    compare,
    compare_bits,
    compare_with_outcomes,
    displacement,
)
from scripts.verify.reference import (
    OF_OPTIMIZER,
    SavedState,
    State,
    Training,
    average_in_float64,
    average_in_order,
    evaluate_reference,
    train_reference,
)
from scripts.verify.trained_states import perturb

# Above, the smallest mistake that tests plant could hide; where kernels round otherwise, half of gradients x 1.01.
LARGEST_TOLERANCE, LARGEST_KERNEL_TOLERANCE = 7e-4, 5e-3
# Of other kernels; of fp32's, Winograd's convolutions round several times as much as a sum (arXiv:1509.09308, table 4).
ROUNDING = dict.fromkeys(("fp32", "apex-O0"), 2.0**-20) | {"bf16": 2.0**-8}
HALF_PRECISION_ROUNDING = 2.0**-11  # of fp16 and tf32
NUM_PERTURBED = 1, 4, 8, 16, 48  # perturbed references: more of them where fewer do not decide a step
FURTHER = 2  # how much larger the errors of all but the first are: some show each flip that the run can have
EVALUATED = ("images", "loss", "acc1", "acc5")

Evaluation = dict[str, float]


def compare_with_reference(
    training: Training, states: list[SavedState], evaluated: Evaluation, num_shares: int
) -> dict[str, Any]:
    """Columns of equivalence.csv. states: in order. num_shares: parts in which a batch was evaluated."""
    if training.exact:
        findings = [compare_bits(states[-1].state, reference(training))]
        evaluation = evaluate_cached_reference(training, num_shares)
    else:
        findings = step_by_step(training, states)
        evaluation = evaluate(training, states[-1].state, num_shares)
    return equivalence_columns(training, findings, wrong_evaluation(evaluated, *evaluation))


def equivalence_columns(training: Training, findings: list[Finding], evaluation: str) -> dict[str, Any]:
    """The finding that is largest over its own tolerance decides, then `evaluation`: what is wrong with it."""
    worst = max(findings, key=lambda finding: finding.excess)
    outcome, reason = "ok", ""
    if worst.excess > 1:
        outcome, reason = "failed", f"not the reference's update; {worst.what} differs most"
    elif evaluation:
        outcome, reason = "failed", evaluation
    elif is_blurred(training, blurred := max(findings, key=lambda finding: finding.rounding)):
        outcome = "not proved"
        reason = (
            f"{blurred.what}: rounding makes {blurred.rounding:.1e}, from which {blurred.difference:.1e} cannot be told"
        )
    return {
        "max_relative_difference": worst.difference,
        "bit_identical": training.exact and worst.difference == 0,
        "rounding": worst.rounding,
        "tolerance": worst.tolerance,
        "verdict": outcome,
        "reason": reason,
    }


def is_blurred(training: Training, finding: Finding) -> bool:
    if has_other_kernels(training):
        return KERNEL_FACTOR * finding.rounding > LARGEST_KERNEL_TOLERANCE
    return MEDIAN_FACTOR * finding.rounding > LARGEST_TOLERANCE


def has_other_kernels(training: Training) -> bool:
    return training.device != "cpu" or not training.layout.exact


@functools.cache
def reference(training: Training) -> State:
    return train_reference(training)


def step_by_step(training: Training, states: list[SavedState]) -> list[Finding]:
    """Up to the first that is wrong; infinite where the optimizer holds other tensors than the model has."""
    for state in (saved.state for saved in states):
        kept = [name for name in state if name.startswith(OF_OPTIMIZER)]
        if strange := [name for name in kept if name.partition(" of ")[2] not in state]:
            return [Finding(math.inf, SMALLEST_TOLERANCE, what=strange[0])]
    findings: list[Finding] = []
    for before, after in itertools.pairwise(states):
        findings += compare_step(training, before, after)
        if any(finding.excess > 1 for finding in findings):
            break
    return findings


def compare_step(training: Training, before: SavedState, after: SavedState) -> list[Finding]:
    momentum = training.config.momentum
    plain, exact = (
        displacement(train_reference(training, before, after.step, average), before.state, momentum)
        for average in (average_in_order, average_in_float64)
    )
    run = displacement(after.state, before.state, momentum)
    measured, outcomes = compare(before, run, exact, plain), [exact]
    for num_draws in NUM_PERTURBED if has_other_kernels(training) else ():
        if is_decided(training, measured):
            break
        seeds = range(len(outcomes), num_draws + 1)
        outcomes += [perturbed_reference(training, before, after.step, seed) for seed in seeds]
        measured = compare_with_outcomes(before, run, outcomes)
    return measured


def is_decided(training: Training, measured: list[Finding]) -> bool:
    """Further perturbed references would change nothing."""
    hides = (
        any(is_blurred(training, finding) for finding in measured) and rounding_of(training) < LARGEST_KERNEL_TOLERANCE
    )
    agrees = not hides and all(finding.excess <= 1 for finding in measured)
    return agrees or any(math.isinf(finding.difference) for finding in measured)


def rounding_of(training: Training) -> float:
    return ROUNDING.get(training.precision, HALF_PRECISION_ROUNDING)


def perturbed_reference(training: Training, before: SavedState, last: int, seed: int) -> State:
    rounding = rounding_of(training) * (1 if seed == 1 else FURTHER)
    of_ranks = tuple(perturb(state, rounding, seed) for state in before.ranks)
    rough = SavedState(before.step, perturb(before.state, rounding, seed), before.scale, of_ranks)
    return displacement(train_reference(training, rough, last), rough.state, training.config.momentum)


def evaluate(training: Training, state: State, num_shares: int) -> tuple[Evaluation, Evaluation]:
    """In as many parts as the run's, and in whole batches."""
    return evaluate_reference(training, state, num_shares), evaluate_reference(training, state, 1)


@functools.cache
def evaluate_cached_reference(training: Training, num_shares: int) -> tuple[Evaluation, Evaluation]:
    return evaluate(training, reference(training), num_shares)


def wrong_evaluation(evaluated: Evaluation, expected: Evaluation, whole: Evaluation) -> str:
    """The images to the last one, the rest but for rounding."""
    tolerance = {name: MEDIAN_FACTOR * abs(expected[name] - whole[name]) for name in EVALUATED}
    tolerance["loss"] += SMALLEST_TOLERANCE * abs(expected["loss"])
    for name in ("acc1", "acc5"):
        tolerance[name] += 50 / expected["images"] + expected[f"{name}_tied"]  # half an image, and those with a tie
    for name in EVALUATED:
        if not abs(evaluated[name] - expected[name]) <= tolerance[name]:
            return f"the evaluation's {name} is {evaluated[name]:.6g}, the reference's {expected[name]:.6g}"
    return ""
