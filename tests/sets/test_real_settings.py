"""Real short runs that differ in one field each: the suite writes settings that keep them apart.

.venv/bin/python -m pytest tests/sets/test_real_settings.py
"""

import shutil

import pytest
from support import run_strategy

from scripts.sets.identity import differing_fields
from scripts.sets.result_set import load_set

SHORT = "--epochs 1 --steps 4 --windows 1 --window-steps 2"
FLAGS = {
    "norm": "--norm group",
    "weight_decay": "--weight-decay 0.01",
    "augment": "--no-augment",
    "workers": "--workers 1",
    "seed": "--seed 3",
    "fingerprint": "",
}


@pytest.mark.slow
def test_real_runs_that_differ_in_one_field_are_groups_that_differ_in_it(tmp_path, tiny_data, tiny_config):
    """The first wrong number, from launcher to table: two equal runs are one group, each other run is its own."""
    results, fewer = tmp_path / "a set", tmp_path / "fewer images"
    shutil.copytree(tiny_data, fewer)
    next((fewer / "train").rglob("*.JPEG")).unlink()
    for repeat in (1, 2):
        run_strategy("single", results, SHORT, DATA=tiny_data, CONFIG=tiny_config, REPEAT=repeat)
    for name, flags in FLAGS.items():
        data = fewer if name == "fingerprint" else tiny_data
        run_strategy("single", results, f"{SHORT} {flags}", DATA=data, CONFIG=tiny_config)
    base, *others = load_set(results).groups
    assert base.counts == {"ok": 2} and all(group.counts == {"ok": 1} for group in others)
    assert [differing_fields([base.identity, group.identity]) for group in others] == [[name] for name in FLAGS]
