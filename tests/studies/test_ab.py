"""`./bench ab`: what A and B can be, what is refused before anything starts, and real sessions leave nothing behind."""

import contextlib
import json
import re
import signal
import subprocess
import sys

import pytest
from clones import SHORT, Clone
from support import ROOT

from benchmarks.common.config import FIELDS, read_yaml
from benchmarks.common.errors import UserError
from benchmarks.common.rows import WARM_UP, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.shared import source_version
from scripts.studies.ab import ab, variants


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.fixture
def untrained(clone, recorder):
    """With runs that train nothing and wait while `hold` exists."""
    met = {"MET": '{"torch": "none"}', "PASSED_ON": "bench scripts.runner.record"}
    clone.variables |= recorder.variables | met | {"WAIT_WHILE": clone.folder.parent / "hold"}
    return clone


# --- before anything starts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept_clone(tmp_path_factory):
    return Clone(tmp_path_factory.mktemp("ab"))


@pytest.fixture
def read(kept_clone, monkeypatch, make_request):
    """read(text, **options): the variant that text says, in the clone."""

    def variant(text: str, **options) -> variants.Variant:
        monkeypatch.setattr(source_version, "ROOT", kept_clone.folder)
        source_version.local_changes.cache_clear()
        return variants.parse_variant("B", text, make_request(**options), "single")

    yield variant
    source_version.local_changes.cache_clear()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "B is missing; for example: ./bench ab HEAD~1 tree:"),
        ("nonsense", "B=nonsense is no commit of this repository"),
        ("config:nowhere.yaml", "there is no file 'nowhere.yaml'"),
        ("python:/nowhere/python", "/nowhere/python is no program"),
    ],
)
def test_a_side_that_is_none_is_named(read, text, words):
    with pytest.raises(UserError, match=re.escape(words)):
        read(text)


def test_a_shallow_clone_is_named(kept_clone, read):
    (shallow := kept_clone.folder / ".git/shallow").write_text(kept_clone.git("rev-parse", "HEAD"))
    with pytest.raises(UserError, match="which is shallow: git fetch --unshallow"):
        read("HEAD~50")
    shallow.unlink()


def test_flags_may_have_quoted_blanks(read, tmp_path):
    (folder := tmp_path / "my images").mkdir()
    variant = read(f"flags:--data '{folder}' --lr 0.3")
    assert (variant.config.data, variant.config.lr) == (str(folder), 0.3)


@pytest.mark.parametrize(
    ("path", "old", "new", "flags", "words"),
    [
        ("launchers/single.sh", None, None, "", "has no strategy single"),
        ("benchmarks/common/config.py", " norm: Lit", " gone: Lit", "--norm group", "no option norm"),
    ],
)
def test_what_a_commit_lacks_is_said_before_it_is_measured(kept_clone, read, path, old, new, flags, words):
    file = kept_clone.folder / path
    text = file.read_text()
    file.write_text(text.replace(old, new)) if old else file.unlink()
    bad = kept_clone.commit("bad")
    kept_clone.git("revert", "--no-edit", "HEAD")
    with pytest.raises(UserError, match=f"{words}|{bad[:12]}.*{words}"):
        read(bad, ARGS=flags)
    assert file.read_text() == text and read("HEAD", ARGS=flags).commit


def test_a_commit_gets_every_value_that_it_knows(kept_clone, read, tmp_path):
    """Its own defaults may be others."""
    path = kept_clone.folder / "benchmarks/common/config.py"
    path.write_text(path.read_text().replace("float = 0.9\n", "float = 0.5\n    gone: int = 1\n"))
    variant = read(kept_clone.commit("another default"))
    kept_clone.git("revert", "--no-edit", "HEAD")
    folder = RunFolder(tmp_path / "logs" / "single-1-1")
    folder.path.mkdir(parents=True)
    folder.write_plan(variant.config, {})
    ab.leave_known_fields(folder, variant)
    reported = read_yaml(str(folder.plan))
    assert reported["momentum"] == 0.9 and reported.keys() == FIELDS.keys() - {"config"}


@pytest.mark.launches
def test_plan_says_what_is_compared_and_starts_nothing(clone):
    clone.variables |= {"PLAN": "yes"}
    aa = clone.run(A="HEAD", B="tree:").stdout
    assert "A and B are the same: an A/A run" in aa and "2 rounds, after a warm-up of each" in aa
    (clone.folder / "more.yaml").write_text(SHORT + "norm: group\n")
    both = clone.run(A="python:/usr/bin/env", B=f"config:{clone.folder / 'more.yaml'}").stdout
    assert "they differ in norm (batch against group)" in both and both.splitlines()[0].endswith(" /usr/bin/env")
    done = clone.run(A="HEAD", B="tree:", NNODES=2)
    assert done.returncode == 2 and "leave NNODES out" in done.stderr and done.stderr.count("\n") == 1
    assert not (clone.folder / "results").exists() and clone.left_over() == []


# --- the session, with runs that train nothing --------------------------------------------------------------------


@pytest.mark.launches
def test_rounds_in_blocks_leave_rows_and_no_worktree(untrained):
    (untrained.folder / "new.py").write_text("")
    done = untrained.run(A="HEAD", B="tree:", RESULTS="results/x", REPEATS=4)
    assert done.returncode == 0
    rounds = [line for line in done.stdout.splitlines() if line.startswith("round ")]
    assert [line[:18] for line in rounds] == [f"round {n}: B/A 1.000" for n in range(1, 5)]
    results = untrained.folder / "results" / "x"
    rows = {name: read_table(results / name, "runs") for name in "AB"}
    assert all([*rows[name].status] == [WARM_UP, *["ok"] * 4] for name in "AB")
    assert {*rows["A"].dirty} == {"no"} and {*rows["B"].dirty} == {"yes"}  # each had its own code
    found = json.loads((results / "ab.json").read_text())
    first = ["A" if place == 1 else "B" for place in rows["A"].position[1:]]
    assert first in ([*"ABAB"], [*"BABA"]) and first[0] == found["rounds"]["first"]  # ABBA, or BAAB
    assert found["rounds"]["images_per_s"]["B"] == [1.0] * 4 and untrained.left_over() == []
    again = untrained.run(A="HEAD", B="tree:", RESULTS="results/x")
    assert again.returncode == 2 and "holds a comparison already" in again.stderr


@pytest.mark.launches
def test_a_budget_ends_it_and_few_rounds_decide_nothing(untrained):
    done = untrained.run(A="flags:", B="flags:", REPEATS=20, BUDGET="0.1s", FAIL_OVER="5%")
    assert done.returncode == 3 and "no round was done" in done.stdout


@pytest.mark.launches
def test_a_side_that_fails_is_named_with_its_log(untrained):
    (untrained.folder / "launchers/single.sh").write_text("#!/bin/bash\nexit 3\n")
    bad = untrained.commit("does not start")
    done = untrained.run(A="HEAD~1", B=bad)
    assert done.returncode == 4 and untrained.left_over() == []
    assert f"failed: B, {bad}: warm-up: failed: its launcher ended with code 3" in done.stderr
    assert "; its log: " in done.stderr.splitlines()[-1]


@pytest.mark.launches
def test_a_tree_that_changes_meanwhile_has_no_verdict(untrained):
    (hold := untrained.folder.parent / "hold").touch()
    process = untrained.start(A="flags:", B="flags:", REPEATS=20)
    untrained.until_one_runs(process)
    (untrained.folder / "new.py").write_text("")
    hold.unlink()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 4 and "its files changed meanwhile" in err


@pytest.mark.launches
def test_a_signal_leaves_no_process_and_no_worktree(untrained):
    (hold := untrained.folder.parent / "hold").touch()
    process = untrained.start(A="HEAD", B="flags:", REPEATS=20)
    untrained.until_one_runs(process)
    assert len(untrained.left_over()) == 2
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    hold.unlink()
    assert process.returncode == 128 + signal.SIGTERM
    (results,) = (untrained.folder / "results").iterdir()
    rows = [read_table(results / name, "runs") for name in "AB"]
    assert sorted(status for each in rows for status in each.status) == ["interrupted", WARM_UP, WARM_UP]
    assert untrained.left_over() == []


# --- what is said at the end --------------------------------------------------------------------------------------


def test_the_exit_code_is_that_of_the_whole_interval(tmp_path, capsys):
    def code(b: list[float], limit: float | None) -> int:
        return ab.report(ab.Speeds("A", {"A": [100.0] * len(b), "B": b}), tmp_path, limit)

    slow = [90.0, 92.0, 90.0, 92.0, 90.0, 92.0]
    assert [code(slow, limit) for limit in (None, 0.01, 0.5)] == [0, 1, 0]
    assert code([94.0, 96.0] * 3, 0.05) == 3 and code(slow[:4], 0.01) == 3
    output = capsys.readouterr()
    assert "B is slower; B/A 0.910 [" in output.out and "rounds needed to find 2 %" in output.out
    assert output.err.splitlines()[-1].startswith("not decided: whether B is slower by more than 1 %")


@pytest.mark.launches
def test_a_planted_delay_is_found(clone, tmp_path):
    """0.2 s in each step of B: long, so that other work on the machine does not hide it."""
    wrapper = tmp_path / "slow python"
    wrapper.write_text(
        f'#!/bin/bash\nexport PYTHONPATH="{ROOT}/tests/faults" FAULT=slow SLOW_S=0.2\nexec "{sys.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    done = clone.run(A="HEAD", B=f"python:{wrapper}", RESULTS="results/late", REPEATS=5, FAIL_OVER="10%")
    late = json.loads((clone.folder / "results/late/ab.json").read_text())["b_over_a"]
    assert done.returncode == 1 and late["verdict"] == "slower" and late["value"] < 0.7
