"""What the report's column `same update?` may say: of the settings that were proved, and of no others.

.venv/bin/python -m pytest tests/results/test_proofs.py
"""

import json

import pytest
from test_result_set import MET, add, asked

from benchmarks.common.rows import append_rows
from scripts.results.proofs import proof_text, short_proof
from scripts.results.result_set import load_set

SHAPE = MET | {"num_shards": 1, "num_stages": 2, "num_microbatches": 1, "host": "a", "cpu_capability": "AVX512"}
LENGTH = {"epochs": 2, "steps": 10, "warmup_steps": 0, "windows": 1, "window_steps": 9}
OK = {"verdict": "ok", "bit_identical": True, "max_relative_difference": 0.0, "tolerance": 0.0}
IDENTICAL = "yes: bit-identical"


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
        (LENGTH | {"threads_per_rank": 2}, {"threads_per_rank": 2}, f"{IDENTICAL}; of other threads"),
        (LENGTH | {"split_size": 4}, {"num_microbatches": 8}, "no proof of these settings: split_size"),
        (LENGTH | {"lr": 77.0}, {}, "no proof of these settings: lr"),
        (LENGTH, {"num_microbatches": 77}, "no proof of these settings: num_microbatches"),
        (LENGTH, {"host": "b"}, IDENTICAL),
        (LENGTH, {"cpu_capability": "AVX2"}, "no proof of these settings: cpu_capability"),
        (LENGTH, {"local_changes": "c0ffee"}, f"{IDENTICAL}; of other local changes"),
        (LENGTH, {"commit": "def"}, f"{IDENTICAL}; of other commit"),
    ],
)
def test_a_proof_is_of_its_own_settings(tmp_path, proof, met, text):
    assert cell(tmp_path, proof, met) == text


FAILED = {"verdict": "failed", "bit_identical": False, "max_relative_difference": 0.5, "reason": "fc.weight"}
DIED = {"verdict": "failed", "bit_identical": None, "max_relative_difference": None, "met": "", "reason": "died"}
WITHIN = {"bit_identical": False, "max_relative_difference": 1.2e-7, "tolerance": 1e-6}


@pytest.mark.parametrize(
    ("proof", "row", "text", "words"),
    [
        (LENGTH | {"threads_per_rank": 7}, {}, IDENTICAL, "identical, of other threads"),
        (LENGTH, WITHIN, "yes: within 1.2e-07 (tolerance 1.0e-06)", "nearly"),
        (LENGTH, FAILED, "NO: relative difference 5.0e-01", "NO"),
        (LENGTH, FAILED | {"verdict": "not proved", "reason": "rounding"}, "not proved: rounding", "not proved"),
        (LENGTH, DIED, "failed: died", "failed"),
        ({"norm": "group"}, DIED, "no proof of these settings: norm", "no proof"),
    ],
)
def test_how_equal_the_update_is_in_full_and_in_the_first_table(proof, row, text, words, tmp_path):
    found = cell(tmp_path, proof, **row)
    assert found.startswith(text) and short_proof(found) == words


def test_the_last_proof_that_covers_the_runs_counts(tmp_path):
    assert cell(tmp_path, LENGTH).startswith("yes")
    assert cell(tmp_path, {"norm": "group"}).startswith("yes"), "a proof of other settings does not take this one away"
    assert cell(tmp_path, LENGTH, verdict="failed", max_relative_difference=0.5).startswith("NO")
