"""`./bench study cuts`: a ratio of pairs, the largest stage's share, and a row that says of what it is.

.venv/bin/python -m pytest tests/studies/test_cuts.py
"""

import csv

import pytest

from benchmarks.common.system.errors import UserError
from scripts.studies.cuts.measure import CutsOptions, Measured, describe, largest_share, main, result_row


def test_the_largest_share_is_that_of_the_slower_stage():
    times = [1.0, 1.0, 2.0, 4.0]
    assert [largest_share(times, cut) for cut in (1, 2, 3)] == [7 / 8, 6 / 8, 4 / 8]


def test_a_row_is_of_pairs_and_names_the_best_cut():
    """Protects the direction of the ratio, which is of throughputs, and the pairs. Mutants: seconds over seconds of the
    wrong one; an interval of unpaired windows, which these two would have from 0.4 on."""
    window_s = {"auto": [1.0, 2.0, 4.0], "estimate": [1.5, 3.0, 6.0]}
    measured = Measured(window_s, {"auto": [3, 3, 2], "estimate": [2, 2, 2]}, [1.0, 1.0, 2.0, 4.0])
    row = result_row(CutsOptions(), 48, "estimate", measured)
    assert (row["ratio"], row["ci_low"], row["ci_high"]) == pytest.approx((1.5, 1.5, 1.5))
    assert (row["auto_cuts"], row["other_cut"], row["best_cut"], row["num_pairs"]) == ("3 3 2", 2, 3, 3)
    assert (row["auto_largest_share"], row["other_largest_share"], row["best_largest_share"]) == (0.5, 0.75, 0.5)
    assert row["auto_images_per_s"] == 4 * row["global_batch"] / 2
    assert "1.500 [1.500, 1.500] (95 % over 3 pairs, assumed independent)" in describe(row)
    assert "has 50 % of the time, that of the other 75 %" in describe(row)


def test_too_few_pairs_are_refused():
    with pytest.raises(UserError, match="needs 3 pairs or more"):
        main(CutsOptions(builds=1, pairs_per_build=2))


@pytest.mark.parametrize(("options", "named"), [(((-1,),), "image_size"), (((48,), ("-5",)), "cut")])
def test_impossible_configurations_are_refused_before_a_worker_starts(options, named, tiny_data, monkeypatch):
    """Protects the minutes that the sizes before a mistake take. Mutant: each is looked at when its turn comes."""
    monkeypatch.setenv("DATA", str(tiny_data))
    monkeypatch.setattr("scripts.studies.cuts.measure.WorkerPool", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(UserError, match=named):
        main(CutsOptions(*options))


@pytest.mark.slow
def test_two_real_pipelines_take_turns(tiny_data, tiny_config, tmp_path, monkeypatch):
    """Protects the command from beginning to end, with two ranks each; another cut than the measured one is slower or
    faster here, which nothing asserts."""
    monkeypatch.setenv("DATA", str(tiny_data))
    output = tmp_path / "cuts.csv"
    options = CutsOptions((32,), ("estimate", "1"), builds=2, pairs_per_build=2, warmup_steps=1, window_steps=1)
    assert main(CutsOptions(**vars(options) | {"config": str(tiny_config), "output": output})) == 0
    rows = [*csv.DictReader(output.open())]
    assert [(row["against"], row["num_pairs"]) for row in rows] == [("estimate", "4"), ("1", "4")]
    assert rows[1]["other_cut"] == "1" and all(float(row["ci_low"]) <= float(row["ratio"]) for row in rows)
    assert all(float(row["best_largest_share"]) <= float(row["auto_largest_share"]) for row in rows)
