"""The comparison tells small mistakes from rounding, on three shards, also where gradients travel in fp16.

The short form of what test_verify.py plants in real runs: here a step of the reference with a mistake in it
stands for the run, and adds the shards in another order.

    .venv/bin/python -m pytest tests/verify/test_teeth.py
"""

import dataclasses

import pytest
import torch

from benchmarks.common.config import Config
from benchmarks.common.strategy import Layout
from scripts.verify.comparison import equivalence_columns, step_by_step
from scripts.verify.reference import MOMENTUM, OF_OPTIMIZER, SavedState, Training, average_in_order, train_reference
from scripts.verify.trained_states import initial_state, perturb

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


def compiled_run(data, wrong_step: int) -> tuple[Training, list[SavedState]]:
    """A training, and the states of five steps of a run whose kernels round otherwise than the reference's, as compiled
    ones do. In one step all gradients are scaled by 1.01."""
    config = Config(data=str(data), arch="resnet18", image_size=32, global_batch=8, steps=3, epochs=2)
    training = Training(dataclasses.replace(config, decoder="pillow"), Layout(2, exact=False), "fp32", "cpu")
    states = [initial_state(training)]
    for number in range(1, 6):
        before, scale = states[-1], 1.01 if number == wrong_step else 1.0
        rough = SavedState(before.step, perturb(before.state, 2.0**-21, seed=1000 + number))
        after = train_reference(training, rough, number, lambda shards, scale=scale: scale * average_in_order(shards))
        for name in rough.state.keys() & after.keys():
            if not name.startswith(OF_OPTIMIZER):  # what was added to the rounded weights, to those that are not
                after[name] = (before.state[name].double() + after[name] - rough.state[name]).to(after[name].dtype)
        states.append(SavedState(number, after))
    return training, states


@pytest.mark.medium
def test_a_fault_in_one_step_of_five_is_found_where_kernels_round_otherwise(tiny_data):
    """Protects proofs of compiled runs, and of all on GPUs, from an intermittent fault, and the four steps without one
    from a false alarm. Mutant: a step that agrees with no reference is taken for a ReLU's input that changed its sign.
    """
    training, states = compiled_run(tiny_data, wrong_step=5)
    good, wrong = (equivalence_columns(training, step_by_step(training, each), "") for each in (states[:5], states[3:]))
    assert good["verdict"] == "ok" and not good["bit_identical"]
    assert wrong["verdict"] == "failed" and "at step 5 differs most" in wrong["reason"]
