"""Real short runs that differ in one field each: the suite writes settings that keep them apart.

.venv/bin/python -m pytest tests/results/test_real_settings.py
"""

import shutil
import subprocess

import pytest
from support import environment, launcher_flags

from scripts.results.identity import differing_fields
from scripts.results.result_set import load_set

SHORT = "--epochs 1 --steps 4 --windows 1 --window-steps 2"
FOLLOWS = {"workers resolved", "cpu_capability"}


@pytest.mark.launches
def test_real_runs_that_differ_in_one_field_are_groups_that_differ_in_it(tmp_path, checkout, tiny_data, tiny_config):
    """47 and 18 images/s were once one mean, and so were two models, and two versions of the code."""
    results, without_caches = tmp_path / "a set", shutil.ignore_patterns("__pycache__")
    here = shutil.copytree(checkout, tmp_path / "own checkout", ignore=without_caches)
    fewer = shutil.copytree(tiny_data, tmp_path / "fewer images")
    next((fewer / "train").rglob("*.JPEG")).unlink()
    for words in ("init -q", "add -A", "-c user.name=a -c user.email=a@b.c commit -qm one"):
        subprocess.run(["git", "-C", here, *words.split()], check=True)

    def run(flags="", data=tiny_data, **variables):
        words = launcher_flags(f"{SHORT} {flags}", {"CONFIG": tiny_config, "DATA": data})
        command = ["bash", here / "launchers" / "single.sh", *words]
        subprocess.run(command, env=environment(RESULTS=results, **variables), check=True, capture_output=True)

    run()
    run()
    run("--norm group")
    run("--workers 1")
    run(data=fewer)
    run(ATEN_CPU_CAPABILITY="default")
    (here / "note.py").write_text("")
    run()
    base, *others = load_set(results).groups
    assert base.status_counts == {"ok": 2} and all(group.status_counts == {"ok": 1} for group in others)
    found = [{*differing_fields([base.identity, group.identity])} - FOLLOWS for group in others]
    assert found == [{"norm"}, {"workers"}, {"fingerprint"}, {"variables"}, {"local_changes"}]
