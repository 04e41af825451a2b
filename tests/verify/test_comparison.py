"""The comparison tells small mistakes from rounding; and the arithmetic of the verdict.

A step of the reference with a mistake in it stands for the run, and adds the shards in another order.
"""

import dataclasses

import pytest
import torch

from benchmarks.common.config import Config
from benchmarks.common.strategy import Layout
from scripts.verify.comparison import equivalence_columns, step_by_step, wrong_evaluation
from scripts.verify.differences import compare_bits, compare_with_outcomes, largest_difference
from scripts.verify.reference import (
    OF_OPTIMIZER,
    SavedState,
    Training,
    average_in_float64,
    average_in_order,
    count_top,
    train_reference,
)
from scripts.verify.trained_states import initial_state, perturb

pytestmark = pytest.mark.usefixtures("small_model")
MOMENTUM = "momentum_buffer of "


@pytest.fixture(scope="module")
def before(tiny_data, small_model) -> tuple[Training, SavedState]:
    """A training, and the state of its run after a step, from which the next is compared."""
    config = Config(data=str(tiny_data), arch="resnet18", image_size=48, global_batch=24, steps=3, epochs=2)
    config = dataclasses.replace(config, decoder="pillow")
    training = Training(config, Layout(3), "fp32", "cpu")
    return training, SavedState(1, train_reference(training, initial_state(training), 1, backwards))


def backwards(gradients: list[torch.Tensor]) -> torch.Tensor:
    return average_in_order(gradients[::-1])


def smallest_zero(gradient: torch.Tensor) -> torch.Tensor:
    """The smallest 1 % of a gradient set to zero."""
    size = gradient.float().abs()
    return (
        gradient * (size > size.flatten().kthvalue(gradient.numel() // 100).values) if size.numel() > 99 else gradient
    )


def step(training: Training, kept: SavedState, average=backwards) -> dict:
    return train_reference(training, kept, kept.step + 1, average)


def test_an_optimizer_of_other_tensors_is_no_traceback():
    """A script that left a layer out of its optimizer: its checkpoint numbers the rest anew."""
    state = {f"{MOMENTUM}an optimizer of 61 tensors, number 0": torch.zeros(1)}
    found = compared(Training(Config(), Layout(3), "fp32", "cpu"), SavedState(0, {}), state)
    assert found["verdict"] == "failed" and "an optimizer of 61 tensors" in found["reason"]


def compared(training: Training, kept: SavedState, state: dict) -> dict:
    return equivalence_columns(training, step_by_step(training, [kept, SavedState(kept.step + 1, state)]), "")


def test_another_order_of_the_sums_is_no_mistake(before):
    """Else the mistakes could be found by anything."""
    found = compared(*before, step(*before))
    assert found["verdict"] == "ok" and not found["bit_identical"]
    assert 0 < found["max_relative_difference"] < found["tolerance"]


def test_a_small_mistake_is_distinguished_from_rounding(before):
    wrong = step(*before, average=lambda shards: backwards([*map(smallest_zero, shards)]))
    found = compared(*before, wrong)
    assert found["verdict"] == "failed" and found["max_relative_difference"] > found["tolerance"]


def compiled_run(data, wrong_step: int) -> tuple[Training, list[SavedState]]:
    """A training, and the states of three steps of a run whose kernels round otherwise than the reference's, as
    compiled ones do. In one step all gradients are scaled by 1.01."""
    config = Config(data=str(data), arch="resnet18", image_size=32, global_batch=8, steps=3, epochs=2)
    training = Training(dataclasses.replace(config, decoder="pillow"), Layout(2, exact=False), "fp32", "cpu")
    states = [initial_state(training)]
    for number in range(1, 4):
        before, scale = states[-1], 1.01 if number == wrong_step else 1.0
        rough = SavedState(before.step, perturb(before.state, 2.0**-21, seed=1000 + number))
        after = train_reference(training, rough, number, lambda shards, scale=scale: scale * average_in_order(shards))
        for name in rough.state.keys() & after.keys():
            if not name.startswith(OF_OPTIMIZER):  # what was added to the rounded weights, to those that are not
                after[name] = (before.state[name].double() + after[name] - rough.state[name]).to(after[name].dtype)
        states.append(SavedState(number, after))
    return training, states


def test_a_fault_in_one_step_is_found_where_kernels_round_otherwise(tiny_data):
    training, states = compiled_run(tiny_data, wrong_step=3)
    good, wrong = (equivalence_columns(training, step_by_step(training, each), "") for each in (states[:3], states[2:]))
    assert good["verdict"] == "ok" and not good["bit_identical"]
    assert wrong["verdict"] == "failed" and "at step 3 differs most" in wrong["reason"]


# --- the arithmetic of the verdict ----------------------------------------------------------------------------------


def test_a_difference_is_relative_and_never_lost():
    expected = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([10.0]), "zero": torch.zeros(2)}
    same = {name: tensor.clone() for name, tensor in expected.items()}
    assert largest_difference(same, expected)[0] == 0
    assert largest_difference(same | {"a": torch.tensor([1.0, -3.0])}, expected) == (0.25, "a")
    assert largest_difference(same | {"b": torch.tensor([float("nan")])}, expected) == (float("inf"), "b")
    assert largest_difference(same | {"zero": torch.tensor([0.0, 1e-30])}, expected) == (float("inf"), "zero")
    assert largest_difference(same | {"a": torch.ones(1)}, expected) == (float("inf"), "a")
    assert largest_difference(same | {"c": torch.ones(1)}, expected) == (float("inf"), "c")


def test_bits_that_differ_are_a_failed_proof():
    state = {name: torch.ones(4) for name in ("conv1.weight", "bn1.running_mean", f"{MOMENTUM}fc.bias")}
    training = Training(Config(), Layout(2), "fp32", "cpu")
    for name in state:
        changed = state | {name: state[name] * (1 + 2.0**-23)}
        found = [equivalence_columns(training, [compare_bits(each, state)], "") for each in (state, changed)]
        assert training.exact and [each["verdict"] for each in found] == ["ok", "failed"]
        assert [each["bit_identical"] for each in found] == [True, False] and f"; {name} differs" in found[1]["reason"]


def test_a_step_is_a_mean_of_the_outcomes_that_rounding_makes():
    """Such as one ReLU on the other side of 0, by which the layers before it are off by 1 %."""
    draw = torch.Generator().manual_seed(0)
    names = [MOMENTUM + layer for layer in "abcd"]
    exact, one, other, third, wrong = ({name: torch.randn(64, 64, generator=draw) for name in names} for _ in range(5))
    before = SavedState(0, {})

    def state(flips: str = "", mistake: float = 0.0) -> dict[str, torch.Tensor]:
        of_flips = [{"1": one, "2": other, "3": third}[flip] for flip in flips]
        noise = {name: 1e-6 * torch.randn(64, 64, generator=draw) for name in names}
        return {
            name: exact[name] + noise[name] + mistake * wrong[name] + sum(0.014 * flip[name] for flip in of_flips)
            for name in names
        }

    def verdict_of(run: dict[str, torch.Tensor], *flips: str) -> str:
        findings = compare_with_outcomes(before, run, [exact, *map(state, flips)])
        return equivalence_columns(Training(Config(), Layout(), "fp32", "cuda"), findings, "")["verdict"]

    seen = "", "1", "12", "2", "", "1", ""
    assert verdict_of(state(), "", "") == verdict_of(state("1"), *seen) == verdict_of(state("12"), *seen) == "ok"
    assert verdict_of(state("12"), "1", "2", "1", "2", "") == "ok"  # their sum was not among the outcomes
    assert verdict_of(state("3"), *seen) == verdict_of(state("13"), *seen) == "failed"  # no rounding makes it
    assert verdict_of(state("1"), "1") == "not proved"  # one of each: nobody knows what rounding is
    for mistake in (1e-5, 7e-4, 1e-2):
        assert verdict_of(state("12", mistake), *seen) == verdict_of(state("", mistake), *seen) == "failed"


def test_an_evaluation_is_compared_to_the_image():
    expected = {"images": 50_000, "loss": 2.0, "acc1": 70.0, "acc5": 90.0, "acc1_tied": 0.0, "acc5_tied": 0.0}
    assert wrong_evaluation(expected, expected, expected) == ""
    for name, value in {"images": 50_001, "loss": 2.0001, "acc1": 70.002, "acc5": float("nan")}.items():
        assert f"the evaluation's {name} is" in wrong_evaluation(expected | {name: value}, expected, expected)
    assert wrong_evaluation(expected | {"acc1": 70.002}, expected, expected | {"acc1": 70.004}) == ""
    tied = expected | {"acc5_tied": 0.002}  # of one image
    assert wrong_evaluation(expected | {"acc5": 90.002}, tied, tied) == ""
    assert "acc5 is 90.004" in wrong_evaluation(expected | {"acc5": 90.004}, tied, tied)


def test_a_tie_of_scores_is_found_where_it_decides():
    """In half precision scores are often equal."""
    scores = torch.tensor([[4.0, 3, 3, 2, 1, 0], [5, 5, 0, 0, 0, 0], [6, 5, 4, 3, 2, 2], [1, 1, 1, 1, 1, 1]])
    target = torch.tensor([1, 1, 4, 0])
    assert count_top(scores, target, 1) == (1, 2)  # a tie decides of the second and the fourth
    assert count_top(scores, target, 5) == (4, 2)  # of the third and the fourth
    assert count_top(scores, torch.tensor([5, 2, 0, 5]), 5) == (2, 2)


def test_a_step_from_a_kept_state_is_the_step_of_the_whole_training(tiny_data):
    config = Config(
        data=str(tiny_data),
        arch="resnet18",
        image_size=32,
        global_batch=6,
        steps=2,
        epochs=2,
        workers=0,
        decoder="pillow",
    )
    training = Training(config, Layout(3), "fp32", "cpu")
    whole, first = (train_reference(training, last=last) for last in (3, 2))
    third = train_reference(training, SavedState(2, first), 3)
    assert largest_difference(third, whole)[0] == 0
    again = train_reference(training, SavedState(2, first), 3, average_in_float64)
    assert 0 < largest_difference(again, whole)[0] < 1e-4
