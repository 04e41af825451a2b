"""How sure an accuracy is: repeats of one seed tell of one seed, and images are few.

.venv/bin/python -m pytest tests/results/test_accuracy.py
"""

import pytest
from support import recorded

from benchmarks.common.rows import append_rows
from scripts.results.accuracy import describe_top1, top1_accuracy
from scripts.results.proportions import fisher_p_value, wilson_interval
from scripts.results.result_set import load_set


def add_runs(folder, strategy, outcomes, asked=None, **columns):
    """A run for each (images right, validation loss), of rounds that take the seeds in `asked` in turn, if any."""
    folder.mkdir(exist_ok=True)
    for repeat, (num_correct, val_loss) in enumerate(outcomes, 1):
        row = {"run_id": f"{strategy}-{repeat}", "strategy": strategy, "status": "ok", "repeat": repeat}
        row |= {"acc1": 100 * num_correct / 132, "val_loss": val_loss, "val_samples": 132, "image_size": 48} | columns
        append_rows(folder, "runs", [recorded(folder, row, **(asked or {}))])


def test_repeats_of_one_seed_are_one_seed_bit_identical_or_not(tmp_path):
    """Protects n on GPUs, whose repeats of one seed differ in the last bits. Mutant: counts results."""
    add_runs(tmp_path, "single", 3 * [(60, 2.0)])
    assert "n = 1 seed, 3 runs, rounds equal in all recorded digits; " in describe_top1(load_set(tmp_path).groups)
    add_runs(tmp_path, "ddp", [(70, 2.0), (71, 2.1), (72, 2.1)])
    single, ddp = (top1_accuracy(group) for group in load_set(tmp_path).groups)
    assert (single.num_seeds, ddp.num_seeds) == (1, 1) and (single.identical, ddp.identical) == (True, False)
    assert ddp.percent == pytest.approx(100 * 71 / 132) and ddp.low == pytest.approx(100 * wilson_interval(71, 132)[0])
    text = describe_top1(load_set(tmp_path).groups)
    assert "n = 1 seed, 3 runs, rounds differ; " in text and "Wilson" in text and "spread over seeds" not in text
    low, high = (100 * bound for bound in wilson_interval(60, 132))
    assert single.text == f"45.5 [{low:.1f}, {high:.1f}]" and high - low == pytest.approx(16.8, abs=0.2)


def test_the_interval_of_two_seeds_says_that_it_covers_less(tmp_path):
    """Protects who reads 95 %: of two seeds the spread itself is hardly known. Mutant: the words left out."""
    add_runs(tmp_path, "single", [(50, 2.0), (70, 2.1)], {"seeds": [0, 1]})
    assert (
        "the spread over seeds (s²/n + p(1-p)/N); of two seeds that differ much more than images do, it covers less."
        in describe_top1(load_set(tmp_path).groups)
    )


def test_several_seeds_widen_the_interval_and_the_sentence_says_so(tmp_path):
    """Mutant: Wilson's interval of the mean, which seeds far apart leave as it is."""
    three = {"seeds": [0, 1, 2]}
    add_runs(tmp_path, "single", [(50, 2.0), (70, 2.1), (90, 2.2), (50, 2.0)], three)  # the fourth has the first's seed
    add_runs(tmp_path, "ddp", [(60, 2.0), (80, 2.1), (100, 2.2)], three)
    groups = load_set(tmp_path).groups
    single = top1_accuracy(groups[0])
    assert single.percent == pytest.approx(100 * 70 / 132) and single.num_seeds == 3
    low, high = wilson_interval(70, 132)
    assert single.high - single.low > 1.5 * 100 * (high - low)
    text = describe_top1(groups)
    assert "for the images and the spread over seeds" in text and "(Welch, unpaired approximation)" in text
    assert "two seeds" not in text
    assert "n = 3 seeds, 3/4 runs, rounds equal in all recorded digits; " in text
    add_runs(tmp_path, "slurm", [(60, 2.0)])
    text = describe_top1(load_set(tmp_path).groups)
    assert (
        "Wilson's 95 % interval for the images; of several seeds 95 % interval for" in text and "furthest" not in text
    )


def test_the_sentence_says_n_and_whether_the_furthest_differ(tmp_path):
    add_runs(tmp_path, "single", 3 * [(60, 2.0)])
    add_runs(tmp_path, "ddp", 3 * [(71, 2.0)])
    text = describe_top1(load_set(tmp_path).groups)
    assert "n = 1 seed, 3 runs" in text and "ddp and single are furthest apart" in text
    assert f"p = {fisher_p_value((71, 132), (60, 132)):.2g} (Fisher, unpaired approximation)" in text
    assert text.endswith(" as one of 1 pair: no difference seen."), "two results are one pair, and need no cause"
    add_runs(tmp_path, "slurm", 3 * [(64, 2.0)])
    p = min(1, 3 * fisher_p_value((71, 132), (60, 132)))
    assert f", {p:.2g} as one of 3 pairs: no" in describe_top1(load_set(tmp_path).groups), (
        "the furthest was picked: corrected"
    )
    add_runs(tmp_path, "pipeline_parallel", 3 * [(110, 2.0)])
    assert "they differ; that cut batches give BatchNorm fewer images may be why." in describe_top1(
        load_set(tmp_path).groups
    )
    add_runs(tmp_path / "other", "single", [(60, 2.0)])
    add_runs(tmp_path / "other", "ddp", [(71, 2.0)], image_size=224)
    assert "furthest" not in describe_top1(load_set(tmp_path / "other").groups), "other images are not compared"


def test_equal_percentages_of_unequal_models_are_several_results(tmp_path):
    """Protects Bonferroni's factor: ddp and fsdp are right as often, of other images. zero1 is ddp to the last digit.
    Mutant: results counted by the percentage, 1 pair."""
    for strategy, correct, val_loss in (("single", 60, 2.0), ("ddp", 71, 2.1), ("fsdp", 71, 2.2), ("zero1", 71, 2.1)):
        add_runs(tmp_path, strategy, 3 * [(correct, val_loss)])
    assert " as one of 3 pairs: " in describe_top1(load_set(tmp_path).groups)


def test_strategies_of_unequal_batches_are_not_compared(tmp_path):
    """Protects the GPUs' default, 256 images a device: eight ranks train on eight times the images of `single` in as
    many steps, and Fisher's test blamed BatchNorm. Mutant: a comparison whatever the batch."""
    for strategy, batch, correct in (("single", 256, 60), ("ddp", 2048, 110)):
        add_runs(tmp_path, strategy, 3 * [(correct, 2.0)], global_batch=batch, batch_per_device=256)
    text = describe_top1(load_set(tmp_path).groups)
    assert "furthest" not in text and text.endswith("unequal numbers of images, and are not compared.")


@pytest.mark.parametrize("columns", [{"val_samples": ""}, {"val_samples": 0}])
def test_an_unknown_number_of_images_has_no_interval(tmp_path, columns):
    add_runs(tmp_path, "single", [(60, 2.0)], **columns)
    (group,) = load_set(tmp_path).groups
    assert top1_accuracy(group).text == "45.5" and describe_top1([group]) == ""


def test_runs_without_evaluation_have_no_accuracy(tmp_path):
    add_runs(tmp_path, "single", [(60, 2.0)], acc1="")
    assert top1_accuracy(load_set(tmp_path).groups[0]) is None
