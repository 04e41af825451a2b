"""Which runs are pooled: the rule of scripts/results/identity.py, field by field.

.venv/bin/python -m pytest tests/results/test_identity.py
"""

import pytest

from benchmarks.common.config import Config
from scripts.results.identity import Identity, comparable, group_labels, same_work
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
    """Protects numbers from being pooled silently, and runs of one setting from falling apart into groups."""
    one = Identity(REQUESTED, RESOLVED)
    others = (Identity(REQUESTED | {name: "other"}, RESOLVED), Identity(REQUESTED, RESOLVED | {name: "other"}))
    assert [other.key != one.key for other in others] == [name not in POOLED | NOT_READ, name not in POOLED]


def test_seeds_that_rounds_take_in_turn_are_pooled_and_the_list_is_not():
    """Protects SEEDS=3: its rounds have a seed each and are one group; another list is another group."""
    one, other = (Identity(REQUESTED | {"seeds": [0, 1], "seed": seed}, RESOLVED) for seed in (0, 1))
    assert one.key == other.key != Identity(REQUESTED | {"seeds": [0, 2], "seed": 0}, RESOLVED).key


def test_a_skipped_run_does_not_fill_the_names_of_the_others():
    """Protects the names of a set's groups where a baseline is skipped, as in bf16 on a CPU that emulates it: the
    versions, which it has not resolved, are no difference."""
    skipped = Identity(REQUESTED | {"precision": "bf16"}, {})
    assert group_labels("ddp", [Identity(REQUESTED, RESOLVED), skipped], [], None) == ["ddp, fp32", "ddp, bf16"]
    assert group_labels("ddp", [Identity(REQUESTED, RESOLVED), skipped], [Identity(REQUESTED, RESOLVED)], None) == [
        "ddp",
        "ddp, bf16",
    ]


def test_a_memory_format_that_follows_from_the_precision_is_no_setting_of_its_own():
    """Protects `x single` of ddp_amp, which computes in bf16 where fp32 is requested, and so in channels_last; and the
    baseline's name, which has the precision alone. A requested format is compared. Mutants: without `memory_format` in
    STRATEGY_FIELDS; without it in `chosen`; with the format in the label."""

    def run(strategy: str, precision: str, resolved: str, memory_format: str = "auto") -> Identity:
        met = "contiguous" if (memory_format, resolved) == ("auto", "fp32") else "channels_last"
        met = met if memory_format == "auto" else memory_format
        requested = REQUESTED | {"strategy": strategy, "precision": precision, "memory_format": memory_format}
        return Identity(requested, RESOLVED | {"precision": resolved, "memory_format": met})

    plain, bf16, amp = run("single", "fp32", "fp32"), run("single", "bf16", "bf16"), run("ddp_amp", "fp32", "bf16")
    assert comparable(plain, amp) and same_work(bf16, amp)
    assert not comparable(bf16, run("single", "bf16", "bf16", "contiguous"))
    assert not same_work(bf16, run("ddp_amp", "fp32", "bf16", "contiguous"))
    assert group_labels("single", [plain, bf16], [plain], None) == ["single", "single, bf16"]
