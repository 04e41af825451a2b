"""What the report's column `same update?` may say: of the settings that were proved, and of no others.

.venv/bin/python -m pytest tests/results/test_proofs.py
"""

import json

import pytest
from test_result_set import MET, add, asked

from benchmarks.common.rows import append_rows
from scripts.results.proofs import proof_text, short_proof
from scripts.results.result_set import load_set

SHAPE = MET | {"num_shards": 1, "num_stages": 2, "num_microbatches": 1, "exact": True, "cut": 4}


LENGTH = {"epochs": 2, "steps": 10, "warmup_steps": 0, "windows": 1, "window_steps": 9}


OK = {"verdict": "ok", "bit_identical": True, "max_relative_difference": 0.0, "tolerance": 0.0}


def cell(folder, proof=None, met=None, runs=None, runs_met=SHAPE, **row):
    """The cell of runs of model_parallel beside one proof; proof and runs: fields that differ from the defaults."""
    add(folder, asked("model_parallel", **(runs or {})), runs_met)
    if proof is not None:
        row = OK | {"asked": json.dumps(asked("model_parallel", **proof)), "met": json.dumps(SHAPE | (met or {}))} | row
        append_rows(folder, "equivalence", [{"run_id": "v", "strategy": "model_parallel", **row}])
    results = load_set(folder)
    (group,) = results.groups
    return proof_text(group, results.table("equivalence"))


def test_a_proof_with_another_split_size_is_no_proof(tmp_path):
    """The third wrong number: "yes: bit-identical" of split sizes 2 to 16 beside a proof with split_size 0."""
    runs = {"runs": {"split_size": 4}, "runs_met": SHAPE | {"num_microbatches": 8}}
    assert cell(tmp_path / "a", proof=LENGTH, **runs) == "no proof of these settings: split_size"
    same = {"proof": LENGTH | {"split_size": 4}, "met": {"num_microbatches": 8}}
    assert cell(tmp_path / "b", **same, **runs) == "yes: bit-identical"


def test_what_may_differ_is_named(tmp_path):
    proof = LENGTH | {"threads_per_rank": 2}
    text = "yes: bit-identical; of other threads"
    assert cell(tmp_path / "a", proof=proof, met={"threads_per_rank": 2}) == text
    assert cell(tmp_path / "b", proof={}) == "yes: bit-identical"
    within = {"bit_identical": False, "max_relative_difference": 1.2e-7, "tolerance": 1e-6}
    assert cell(tmp_path / "c", proof={}, **within) == "yes: within 1.2e-07 (tolerance 1.0e-06)"


@pytest.mark.parametrize("name", ["lr", "workers", "ranks", "momentum", "new"])
def test_whatever_else_was_asked_must_be_the_same(tmp_path, name):
    assert cell(tmp_path, proof=LENGTH | {name: 77}) == f"no proof of these settings: {name}"


@pytest.mark.parametrize("name", ["precision", "num_microbatches"])
def test_every_resolved_setting_must_be_the_same(tmp_path, name):
    text = cell(tmp_path, proof=LENGTH, met={name: 77})
    assert text in (f"no proof of these settings: {name}", f"no proof of these settings: {name} resolved")


MACHINE = {"host": "a", "kernel": "6.1", "num_cores": 2, "cpu_capability": "AVX512", "variables": "none"}


@pytest.mark.parametrize("name", MACHINE)
def test_a_proof_covers_another_host_but_no_other_kernels(tmp_path, name):
    """Protects a proof that was made on another node: what computes is the same there."""
    covered = "yes: bit-identical"
    said = cell(tmp_path / "new", proof=LENGTH, met=MACHINE | {name: "other"}, runs_met=SHAPE | MACHINE)
    assert said == (covered if name in ("host", "kernel", "num_cores") else f"no proof of these settings: {name}")


@pytest.mark.parametrize(("of_proof", "of_runs"), [("c0ffee", "c0ffee"), ("c0ffee", "abc"), ("", "abc"), (None, "")])
def test_a_proof_of_other_local_changes_says_so(tmp_path, of_proof, of_runs):
    """Protects from a proof of other code: the commit of both may be the same. Older rows have no hash of what
    was not committed, which counts as none."""
    halves = [{} if changes is None else {"local_changes": changes} for changes in (of_proof, of_runs)]
    text = cell(tmp_path, proof={}, met=halves[0], runs_met=SHAPE | halves[1])
    differs = "; of other local changes" if (of_proof or "") != (of_runs or "") else ""
    assert text == f"yes: bit-identical{differs}"


def test_a_failed_or_skipped_proof_is_matched_by_the_requested_settings(tmp_path):
    failed = {"verdict": "failed", "bit_identical": False, "max_relative_difference": 0.5, "reason": "fc.weight"}
    assert cell(tmp_path / "a", proof=LENGTH, **failed).startswith("NO: relative difference 5.0e-01")
    hidden = {"verdict": "not proved", "reason": "rounding makes 5.0e-04, from which 4.0e-04 cannot be told"}
    assert cell(tmp_path / "e", proof=LENGTH, **failed | hidden) == f"not proved: {hidden['reason']}"
    never = {"verdict": "failed", "bit_identical": None, "max_relative_difference": None, "met": "", "reason": "died"}
    assert cell(tmp_path / "b", proof=LENGTH, **never) == "failed: died"
    assert cell(tmp_path / "c", proof=LENGTH, **never | {"verdict": "skipped"}) == "skipped: died"
    assert cell(tmp_path / "d", proof={"norm": "group"}, **never) == "no proof of these settings: norm"


WITHIN = {"bit_identical": False, "max_relative_difference": 1e-7, "tolerance": 1e-6}


@pytest.mark.parametrize(
    ("proof", "row", "words"),
    [
        ({}, {}, "identical"),
        ({}, WITHIN, "nearly"),
        ({"threads_per_rank": 7}, {}, "identical, of other threads"),
        ({"norm": "group"}, {}, "no proof"),
        ({}, {"verdict": "not proved", "bit_identical": False, "reason": "rounding: 5.0e-04"}, "not proved"),
    ],
)
def test_the_first_table_says_how_equal_the_update_is(proof, row, words, tmp_path):
    """Protects a reader from a "yes" of a proof of another number of threads."""
    assert short_proof(cell(tmp_path, proof=LENGTH | proof, **row)) == words


def test_the_last_proof_that_covers_the_runs_counts(tmp_path):
    assert cell(tmp_path, proof=LENGTH).startswith("yes")
    later = OK | {"asked": json.dumps(asked("model_parallel", norm="group")), "met": json.dumps(SHAPE)}
    append_rows(tmp_path, "equivalence", [{"run_id": "w", "strategy": "model_parallel", **later}])
    assert cell(tmp_path).startswith("yes"), "a proof of other settings does not take this one away"
    assert cell(tmp_path, proof=LENGTH, verdict="failed", max_relative_difference=0.5).startswith("NO")
