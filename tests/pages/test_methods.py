"""A paper's paragraph of methods and its checklist: each sentence is of the set's files.

.venv/bin/python -m pytest tests/pages/test_methods.py
"""

import shutil

import pandas
import pytest
from result_sets import change, write_set

from benchmarks.common.store.results import append_rows
from scripts.pages.methods import checklist, compute, energy, methods
from scripts.pages.paper import paper_tex
from scripts.sets.result_set import load_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("methods") / "a set", num_rounds=5, precision="fp32")


@pytest.fixture(scope="module")
def results(folder):
    return load_set(folder)


@pytest.mark.medium
def test_methods_say_what_was_recorded_and_nothing_else(results, folder, tmp_path):
    """Protects the paragraph: each sentence is of the set's files. Mutant: "interleaved" of a set without places."""
    words = " ".join(methods(results))
    assert (
        "5 runs each" in words
        and "interleaved" in words
        and "(paired by round, Student's t, AR(1) standard errors, Sidak over 1 pair)" in words
        and "commit abc" in words
    )
    assert "All compute in fp32." in words and "times 3 windows of" in words, "as many as were taken, not asked"
    assert "Data: 2 classes, 40 training and 23 validation images." in words and "data loading included" in words
    assert "warmed the machine" in words
    own = shutil.copytree(folder, tmp_path / "own")
    change(own, "runs", lambda frame: frame[frame.status == "ok"].assign(position=""))
    change(own, "settings", lambda frame: frame[:0])
    words = " ".join(methods(load_set(own)))
    assert not any(text in words for text in ("interleaved", "windows of", "warmed the machine"))


def cells(column, cell, **where):
    """Change a column of the runs of a strategy, or of a round of it."""

    def changed(frame):
        mine = (frame[list(where)] == pandas.Series(where)).all(axis=1)
        return frame.assign(**{column: frame[column].mask(mine, cell)})

    return changed


@pytest.mark.parametrize(
    "changed",
    [
        lambda frame: frame[frame.strategy == "single"],
        lambda frame: frame[(frame.strategy == "single") | (frame["repeat"] != "3")],
        cells("position", "1", strategy="ddp"),
        cells("position", "", strategy="ddp", repeat="2"),
        cells("started_at", "2026-11-21T00:30:00+00:00", strategy="ddp", repeat="2"),
        cells("started_at", "2026-11-21T09:00:00+00:00", strategy="ddp", repeat="3"),
    ],
    ids=["one configuration", "a round less", "one place", "no place", "another order", "another session"],
)
def test_runs_that_took_no_turns_are_not_called_interleaved(folder, tmp_path, changed):
    """`make bench-single`, then `make bench-ddp RESULTS=` the same, meet half of the conditions."""
    own = shutil.copytree(folder, tmp_path / "own")
    change(own, "runs", changed)
    assert "interleaved" not in " ".join(methods(load_set(own)))


@pytest.mark.medium
def test_one_run_has_no_interval_in_words_either(tmp_path):
    """Protects from "95 %" beside figures without a bound; ddp has one run, then both have."""
    own = write_set(tmp_path / "own")
    change(own, "runs", lambda frame: frame[(frame.strategy == "single") | (frame["repeat"] < "2")])
    some = load_set(own)
    assert "but for ddp, of which one run has none." in " ".join(methods(some))
    assert dict(checklist(some))["Intervals"] == "95 %, over 5 runs of 3 windows each; none of ddp: one run"
    change(own, "runs", lambda frame: frame[frame["repeat"] < "2"])
    one = load_set(own)
    words, answers = " ".join(methods(one)), dict(checklist(one))
    assert "95 %" not in words + answers["Intervals"] and "; one run has no interval." in words
    assert r"95\,\%" not in (tex := paper_tex(one, {})) and "One run has no interval." in tex


def test_a_proof_with_other_settings_says_so(folder, tmp_path):
    """Protects "at their settings", and a paper from "0 are proved": each proof is shorter than its runs. Mutants:
    whatever begins with yes is counted; a shorter proof is one with other settings."""
    own = shutil.copytree(folder, tmp_path / "own")

    def other(frame):
        shorter = frame.asked.str.replace(r'"windows": ?\d+', '"windows":77', regex=True)
        threads = shorter.str.replace(r'"threads_per_rank": ?\d+', '"threads_per_rank":7', regex=True)
        return frame.assign(asked=shorter.where(frame.strategy != "ddp", threads))

    change(own, "equivalence", other)
    output = dict(checklist(load_set(own)))["Equivalence"]
    assert output.startswith("the weights of 1 of 2 configurations are bit-identical to those of one process that")
    assert output.endswith(": single; bit-identical with other settings: ddp, but for threads")


@pytest.mark.medium
def test_what_was_not_recorded_is_named_so(folder, tmp_path):
    """No cause is given of what only is not there; and an attempt that failed does not make its strategy untimed."""
    own = shutil.copytree(folder, tmp_path / "own")
    row = {"run_id": "x", "strategy": "ddp", "status": "failed", "reason": "no luck", "repeat": 1, "settings": "zz"}
    append_rows(own, "runs", [row])
    (own / "telemetry.csv").unlink()
    change(own, "settings", lambda frame: frame[:0])
    results = load_set(own)
    answers, tex = dict(checklist(results)), paper_tex(results, {})
    assert answers["Seeds"] == "not recorded" and answers["Energy"] == "not measured: no power was recorded"
    assert answers["Data"] == "unrecorded images; fingerprint none"
    assert "Attempts without a time: ddp failed" in tex and "Not timed" not in tex


def test_the_checklist_counts_every_attempt(folder, tmp_path):
    """Protects the hours that a paper states: a sum, and no elapsed time. By hand: 11 attempts of 10 s and one of 60 s;
    ddp has 2 cores. Mutant: "h of wall clock"."""
    own = shutil.copytree(folder, tmp_path / "own")
    append_rows(own, "runs", [{"run_id": "x", "strategy": "ddp", "status": "failed", "repeat": 1, "wall_s": 60}])
    assert compute(own).startswith(f"12 attempts, failures and warm-ups included, add up to {170 / 3600:.3g} h")
    assert f"{(6 * 10 + 5 * 20) / 3600:.3g} core-hours" in compute(own)
    answers = dict(checklist(load_set(own)))
    assert answers["Seeds"].startswith("0, one for all runs") and "1 failed" in answers["Runs"]
    assert (
        answers["Equivalence"].startswith("the weights of 2 of 2 configurations are bit-identical")
        and "commit abc, without local changes" in answers["Code"]
    )
    assert answers["Data"].endswith("validation images; fingerprint 2-40-23-abc") and answers["Energy"].startswith(
        "not measured"
    )


def test_energy_is_the_samples_of_power_over_time(folder, tmp_path):
    """By hand: two GPUs at 100 W and 200 W for 3,600 s are 0.3 kWh."""
    own = shutil.copytree(folder, tmp_path / "own")
    samples = [
        {"run_id": "ddp-1-000000", "t_s": seconds, "device": f"gpu{n}", "power_w": 100 * (n + 1)}
        for n in (0, 1)
        for seconds in (0, 1800, 3600)
    ]
    append_rows(own, "telemetry", samples)
    assert energy(load_set(own)).startswith("0.3 kWh, of gpu0, gpu1 over 1 run of this set alone")
