"""The comparison tells small mistakes from rounding, on three shards, also where gradients travel in fp16.

The short form of what tests/proof/test_verify.py plants in real runs: here a step of the reference with a mistake in it
stands for the run, and adds the shards in another order.

    .venv/bin/python -m pytest tests/proof/test_teeth.py
"""

import dataclasses

import pytest
import torch

from benchmarks.common.config import Config
from benchmarks.common.strategy import Layout
from scripts.proof.comparison import equivalence_columns, is_blurred, step_by_step
from scripts.proof.differences import GROSS_DIFFERENCE, MEDIAN_FACTOR, Finding, Interval, compare
from scripts.proof.reference import MOMENTUM, SavedState, Training, average_in_order, train_reference
from scripts.proof.trained_states import initial_state

LAYER = "layer2.0.conv1.weight"


@pytest.fixture(scope="module", params=["none", pytest.param("fp16", marks=pytest.mark.slow)])
def before(request, tiny_data) -> tuple[Training, SavedState]:
    """A training, and the state of its run after a step, from which the next is compared."""
    config = Config(data=str(tiny_data), arch="resnet18", image_size=48, global_batch=24, steps=3, epochs=2)
    config = dataclasses.replace(config, decoder="pillow")
    training = Training(config, Layout(3, compression=request.param), "fp32", "cpu")
    return training, SavedState(1, train_reference(training, initial_state(training), 1, backwards))


def backwards(gradients: list[torch.Tensor]) -> torch.Tensor:
    return average_in_order(gradients[::-1])


def smallest_zero(gradient: torch.Tensor) -> torch.Tensor:
    """The smallest 1 % of a gradient set to zero."""
    size = gradient.float().abs()
    return (
        gradient * (size > size.flatten().kthvalue(gradient.numel() // 100).values) if size.numel() > 99 else gradient
    )


def step(training: Training, kept: SavedState, average=backwards, **config) -> dict:
    changed = dataclasses.replace(training, config=dataclasses.replace(training.config, **config))
    return train_reference(changed, kept, kept.step + 1, average)


def without_layer(training: Training, kept: SavedState) -> dict:
    return step(training, kept) | {LAYER: kept.state[LAYER], MOMENTUM + LAYER: kept.state[MOMENTUM + LAYER]}


MISTAKES = {
    "no weight decay": lambda *start: step(*start, weight_decay=0.0),
    "no last step": lambda training, kept: kept.state,
    "one layer out of the optimizer": without_layer,
    "gradients x 1.03": lambda *start: step(*start, average=lambda shards: 1.03 * backwards(shards)),
    "the smallest 1 % of each gradient zero": lambda *start: step(
        *start, average=lambda shards: backwards([*map(smallest_zero, shards)])
    ),
    "convolutions' gradients of rank 0 only": lambda *start: step(
        *start, average=lambda shards: shards[0] if shards[0].dim() == 4 else backwards(shards)
    ),
}


def test_an_optimizer_of_other_tensors_is_no_traceback(before):
    """Protects the verdict on a script that left a layer out of its optimizer: its checkpoint numbers the rest anew."""
    training, kept = before
    state = {name: tensor for name, tensor in kept.state.items() if not name.startswith(MOMENTUM)}
    state[f"{MOMENTUM}an optimizer of 61 tensors, number 0"] = torch.zeros(1)
    found = compared(training, kept, state)
    assert found["verdict"] == "failed" and "an optimizer of 61 tensors" in found["reason"]


def compared(training: Training, kept: SavedState, state: dict) -> dict:
    return equivalence_columns(training, step_by_step(training, [kept, SavedState(kept.step + 1, state)]), "")


@pytest.mark.medium
def test_another_order_of_the_sums_is_no_mistake(before):
    """Protects the tolerance from being too tight: without this, the mistakes could be found by anything."""
    found = compared(*before, step(*before))
    assert found["verdict"] == "ok" and not found["bit_identical"]
    assert 0 < found["max_relative_difference"] < found["tolerance"]


SMALLEST = "the smallest 1 % of each gradient zero"


@pytest.mark.parametrize(
    "mistake", [name if name == SMALLEST else pytest.param(name, marks=pytest.mark.slow) for name in MISTAKES]
)
def test_a_mistake_is_distinguished_from_rounding(before, mistake):
    found = compared(*before, MISTAKES[mistake](*before))
    assert found["verdict"] == "failed" and found["max_relative_difference"] > found["tolerance"]
    assert found["rounding"] * MEDIAN_FACTOR < GROSS_DIFFERENCE


def median_of_two_steps(run_is_off: float, rounding: float) -> Finding:
    """What the comparison makes of momentum after two steps in which nothing was shared."""
    names = [f"{MOMENTUM}{number}" for number in range(3)]
    start, exact, run, plain = (dict.fromkeys(names, torch.ones(8) * (1 + off)) for off in (0, 0, run_is_off, rounding))
    return compare(Interval(SavedState(1, start), 3), run, exact, plain)[0]


def test_a_window_in_which_rounding_spreads_proves_nothing():
    """Protects strategies whose kernels round bf16 otherwise, such as compiled ones: two steps make 50 % of it. Mutant:
    the window held to GROSS_DIFFERENCE whatever rounding makes there, and a good run is called wrong."""
    fine, gross, hidden = (median_of_two_steps(*off) for off in ((0.05, 0.01), (0.5, 0.01), (0.5, 0.4)))
    assert fine.excess < 1 and not is_blurred(fine)
    assert gross.excess > 1 and gross.tolerance == GROSS_DIFFERENCE
    assert hidden.excess < 1 and is_blurred(hidden)
