"""Which runs are pooled: the rule of scripts/results/identity.py, field by field.

.venv/bin/python -m pytest tests/results/test_identity.py
"""

import pytest

from benchmarks.common.config import Config
from scripts.results.identity import Identity, group_labels
from scripts.results.settings import READERS, requested_settings

REQUESTED = requested_settings(Config(), "ddp", ranks=2, nodes=1, threads_per_rank=1, fingerprint="4-40-23-abc")
RESOLVED = {
    "device": "cpu",
    "precision": "fp32",
    "torch": "2.15",
    "compile_s": 1.0,
    "commit": "abc",
    "local_changes": "",
}
# Whoever adds a name here pools runs that differ in it. Whoever adds a field elsewhere separates them.
POOLED = {
    *("config", "data", "checkpoint_dir", "checkpoint_steps", "checkpoint_keep", "resume", "resume_from"),
    *("resume_anyway", "timeout_s", "limit_s", "compile_s"),
}
NOT_READ = {name for name, strategies in READERS.items() if "ddp" not in strategies}


@pytest.mark.parametrize("name", sorted({*REQUESTED, *RESOLVED, *POOLED, "a field that is new"}))
def test_every_field_of_the_settings_separates_runs_but_for_these(name):
    one = Identity(REQUESTED, RESOLVED)
    others = (Identity(REQUESTED | {name: "other"}, RESOLVED), Identity(REQUESTED, RESOLVED | {name: "other"}))
    assert [other.key != one.key for other in others] == [name not in POOLED | NOT_READ, name not in POOLED]


def test_a_skipped_run_does_not_fill_the_names_of_the_others():
    """As one in bf16 on a CPU that emulates it: the versions, which it has not resolved, are no difference."""
    skipped = Identity(REQUESTED | {"precision": "bf16"}, {})
    ran = Identity(REQUESTED, RESOLVED)
    assert group_labels("ddp", [ran, skipped], [], None) == ["ddp, fp32", "ddp, bf16"]
    assert group_labels("ddp", [ran, skipped], [ran], None) == ["ddp", "ddp, bf16"]
