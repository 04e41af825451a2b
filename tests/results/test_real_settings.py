"""Real short runs that differ in one field each: the suite writes settings that keep them apart.

.venv/bin/python -m pytest tests/results/test_real_settings.py
"""

import shutil
import subprocess

import pytest
from support import environment, launcher_flags, run_strategy

from benchmarks.common.rows import read_table
from scripts.results.identity import differing_fields
from scripts.results.result_set import load_set
from scripts.results.settings import SOURCE_FIELDS

SHORT = "--epochs 1 --steps 4 --windows 1 --window-steps 2"
FLAGS = {
    "norm": "--norm group",
    "weight_decay": "--weight-decay 0.01",
    "augment": "--no-augment",
    "workers": "--workers 1",
    "seed": "--seed 3",
    "fingerprint": "",
}


def differing_settings(one, other):
    """Whoever works on the checkout meanwhile changes its source."""
    return [name for name in differing_fields([one.identity, other.identity]) if name not in SOURCE_FIELDS]


@pytest.mark.launches
def test_real_runs_that_differ_in_one_field_are_groups_that_differ_in_it(tmp_path, tiny_data, tiny_config):
    """The first wrong number, from launcher to table: two equal runs are one group, each other run is its own."""
    results, fewer = tmp_path / "a set", tmp_path / "fewer images"
    shutil.copytree(tiny_data, fewer)
    next((fewer / "train").rglob("*.JPEG")).unlink()
    for _ in range(2):
        run_strategy("single", results, SHORT, DATA=tiny_data, CONFIG=tiny_config)
    for name, flags in FLAGS.items():
        data = fewer if name == "fingerprint" else tiny_data
        run_strategy("single", results, f"{SHORT} {flags}", DATA=data, CONFIG=tiny_config)
    base, *others = load_set(results).groups
    assert base.status_counts == {"ok": 2} and all(group.status_counts == {"ok": 1} for group in others)
    assert [differing_settings(base, group) for group in others] == [
        {"workers": ["workers", "workers resolved"]}.get(name, [name]) for name in FLAGS
    ]


@pytest.mark.launches
@pytest.mark.real_interpreter  # variables that torch reads when it is loaded
def test_a_run_with_other_kernels_is_a_group_of_its_own(tmp_path, tiny_data, tiny_config):
    """The pooled pair: 47 and 18 images/s under one mean. Mutant: the record has no variables."""
    results, variables = tmp_path / "a set", {"DATA": tiny_data, "CONFIG": tiny_config}
    run_strategy("single", results, SHORT, **variables)
    run_strategy("single", results, SHORT, **variables, ATEN_CPU_CAPABILITY="default")
    one, other = load_set(results).groups
    assert [group.status_counts for group in (one, other)] == [{"ok": 1}] * 2
    assert differing_settings(one, other) == ["cpu_capability", "variables"]


@pytest.mark.launches
def test_runs_of_two_commits_and_of_local_changes_are_three_groups(tmp_path, checkout, tiny_data, tiny_config):
    """The pooled pair: two commits, one of them dirty. Mutant: SOURCE_FIELDS separate nothing."""
    here, results = shutil.copytree(checkout, tmp_path / "own checkout"), tmp_path / "a set"

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", here, *who, *words], check=True, capture_output=True)

    def run():
        words = launcher_flags(SHORT, {"CONFIG": tiny_config, "DATA": tiny_data})
        command = [here / "launchers" / "single.sh", *words]
        subprocess.run(command, env=environment(RESULTS=results), check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    run()
    (here / "note.py").write_text("")
    run()
    git("add", "-A")
    git("commit", "-qm", "two")
    run()
    assert [*read_table(results, "runs").status] == ["ok"] * 3
    groups = load_set(results).groups
    assert [group.status_counts for group in groups] == [{"ok": 1}] * 3
    assert {*differing_fields([group.identity for group in groups])} == {"commit", "local_changes"}
