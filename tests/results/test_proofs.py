"""What the report's column `same update?` may say: of the settings that were proved, and of no others.

.venv/bin/python -m pytest tests/results/test_proofs.py
"""

import json

import pytest
from test_result_set import MET, add, asked

from benchmarks.common.rows import append_rows
from scripts.results.proofs import proof_text
from scripts.results.result_set import load_set

SHAPE = MET | {"num_shards": 1, "num_stages": 2, "num_microbatches": 1, "host": "a", "cpu_capability": "AVX512"}
LENGTH = {"epochs": 2, "steps": 10, "warmup_steps": 0, "windows": 1, "window_steps": 9}
OK = {"verdict": "ok", "bit_identical": True, "max_relative_difference": 0.0, "tolerance": 0.0}
IDENTICAL = "identical"


def cell(folder, proof=None, met=None, **row):
    """The cell of runs of model_parallel beside one proof. proof, met: fields in which it differs from the runs."""
    if proof is not None:
        halves = {"asked": json.dumps(asked("model_parallel", **proof)), "met": json.dumps(SHAPE | (met or {}))}
        append_rows(folder, "equivalence", [{"run_id": "v", "strategy": "model_parallel"} | OK | halves | row])
    add(folder, asked("model_parallel"), SHAPE)
    results = load_set(folder)
    (group,) = results.groups
    return proof_text(group, results.table("equivalence"))


@pytest.mark.parametrize(
    ("proof", "met", "text"),
    [
        (LENGTH, {}, IDENTICAL),
        (LENGTH | {"threads_per_rank": 2}, {"threads_per_rank": 2}, f"{IDENTICAL}, of other threads"),
        (LENGTH | {"split_size": 4}, {"num_microbatches": 8}, "no proof: of other split_size"),
        (LENGTH | {"lr": 77.0}, {}, "no proof: of other lr"),
        (LENGTH, {"num_microbatches": 77}, "no proof: of other num_microbatches"),
        (LENGTH, {"host": "b"}, IDENTICAL),
        (LENGTH, {"cpu_capability": "AVX2"}, "no proof: of other cpu_capability"),
        (LENGTH, {"local_changes": "c0ffee"}, f"{IDENTICAL}, of other local changes"),
        (LENGTH, {"commit": "def"}, f"{IDENTICAL}, of other commit"),
    ],
)
def test_a_proof_is_of_its_own_settings(tmp_path, proof, met, text):
    assert cell(tmp_path, proof, met) == text


FAILED = {"verdict": "failed", "bit_identical": False, "max_relative_difference": 0.5, "reason": "fc.weight"}
DIED = {"verdict": "failed", "bit_identical": None, "max_relative_difference": None, "met": "", "reason": "died"}
WITHIN = {"bit_identical": False, "max_relative_difference": 1.2e-7, "tolerance": 1e-6}


@pytest.mark.parametrize(
    ("proof", "row", "text"),
    [
        (LENGTH | {"threads_per_rank": 7}, WITHIN, "nearly, of other threads: relative difference 1.2e-07 (tol"),
        (LENGTH, FAILED, "NO: relative difference 5.0e-01"),
        (LENGTH, FAILED | {"verdict": "not proved", "reason": "rounding"}, "not proved: rounding"),
        (LENGTH, DIED, "failed: died"),
        ({"norm": "group"}, DIED, "no proof: of other norm"),
    ],
)
def test_how_equal_the_update_is(proof, row, text, tmp_path):
    assert cell(tmp_path, proof, **row).startswith(text)


def test_the_last_proof_that_covers_the_runs_counts(tmp_path):
    assert cell(tmp_path, LENGTH) == IDENTICAL
    assert cell(tmp_path, {"norm": "group"}) == IDENTICAL, "a proof of other settings does not take this one away"
    assert cell(tmp_path, LENGTH, verdict="failed", max_relative_difference=0.5).startswith("NO")
