"""`./bench ab`: what A and B can be, what is refused before anything starts, and real sessions leave nothing behind.

    .venv/bin/python -m pytest tests/studies/test_ab.py
    .venv/bin/python -m pytest tests/studies/test_ab.py -m slow -s      # A/A, and a planted delay: 20 minutes, alone

Here launchers and attempts of two checkouts are real, and what they run trains nothing; the slow ones train.
"""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from clones import SHORT, Clone
from support import ROOT, environment

from benchmarks.common.config import FIELDS, read_yaml
from benchmarks.common.errors import UserError
from benchmarks.common.rows import WARM_UP, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.shared import source_version
from scripts.studies.ab import variants, worktrees
from scripts.studies.ab.paired_rounds import PairedRounds, report_verdict
from scripts.studies.ab.sequential import look_at_rounds


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.fixture
def untrained(clone, recorder):
    """The clone with attempts that are real, and runs that train nothing and wait while `hold` exists."""
    met = {"MET": '{"torch": "none"}', "PASSED_ON": "bench scripts.runner.record"}
    clone.variables |= recorder.variables | met | {"WAIT_WHILE": clone.folder.parent / "hold"}
    return clone


# --- before anything starts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept_clone(tmp_path_factory):
    """For tests that start nothing."""
    return Clone(tmp_path_factory.mktemp("ab"))


@pytest.fixture
def read(kept_clone, monkeypatch, make_request):
    """read(text, **variables): the variant that text says, in the clone."""

    def variant(text: str, **variables) -> variants.Variant:
        monkeypatch.setattr(worktrees, "ROOT", kept_clone.folder)
        monkeypatch.setattr(source_version, "ROOT", kept_clone.folder)
        source_version.local_changes.cache_clear()
        return variants.parse_variant("B", text, make_request(**variables), "single")

    yield variant
    source_version.local_changes.cache_clear()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "B is missing; for example: ./bench ab HEAD~1 tree:"),
        ("nonsense", "B=nonsense is no commit of this repository"),
        ("commit:--help", "is no commit of this repository"),
        ("tree:x", "tree: is this checkout, and has no value; leave 'x' out"),
        ("config:nowhere.yaml", "there is no file 'nowhere.yaml'"),
        ("python:/nowhere/python", "/nowhere/python is no program"),
        ("python:", "nothing is no program"),
    ],
)
def test_a_side_that_is_none_is_named(read, text, words):
    """Protects the reader of the message: what was wrong, and what there is."""
    with pytest.raises(UserError, match=re.escape(words)):
        read(text)


def test_what_a_commit_lacks_is_reported_before_it_is_measured(kept_clone, read):
    """Protects minutes: a strategy, an option that is set, or the variables that start a launcher of any checkout."""
    folder = kept_clone.folder
    for path, old, new, variables, words in (
        (folder / "launchers/single.sh", None, None, {}, "has no strategy single"),
        (folder / "launchers/lib.sh", "--run", "--start", {}, "take no --run"),
        (
            folder / "benchmarks/common/config.py",
            " norm: Lit",
            " gone: Lit",
            {"ARGS": "--norm group"},
            "no option norm",
        ),
    ):
        text = path.read_text()
        path.write_text(text.replace(old, new)) if old else path.unlink()
        bad = kept_clone.commit("bad")
        kept_clone.git("revert", "--no-edit", "HEAD")
        with pytest.raises(UserError, match=f"{bad[:12]}.*{words}"):
            read(bad, **variables)
        assert path.read_text() == text and read("HEAD", **variables).commit


def test_a_word_that_a_commits_field_does_not_take_is_left_to_its_default():
    """Protects commits older than an `auto`: they would refuse the run's file."""
    for kind in ("int | Literal['auto']", "Annotated[int | Literal['auto'], Range(1)]", "Precision", "str"):
        assert variants._takes(kind, "auto")
    for kind in ("int", "Annotated[float, Range(0)]", "Literal['contiguous', 'channels_last']"):
        assert not variants._takes(kind, "auto")
    assert variants._takes("int", 3)


def test_a_commit_gets_every_value_that_it_knows(kept_clone, read, tmp_path):
    """Protects the comparison of commits between which a default changed. Mutant: differences from this checkout's
    defaults leave 0.9 to the commit, whose own is 0.5."""
    path = kept_clone.folder / "benchmarks/common/config.py"
    path.write_text(path.read_text().replace("float = 0.9\n", "float = 0.5\n    gone: int = 1\n"))
    variant = read(kept_clone.commit("another default"))
    kept_clone.git("revert", "--no-edit", "HEAD")
    folder = RunFolder(tmp_path / "logs" / "single-1-1")
    folder.path.mkdir(parents=True)
    folder.write_plan(variant.config, {})
    worktrees.write_plan(folder, variant.fields)
    reported = read_yaml(str(folder.plan))
    assert (
        reported["momentum"] == 0.9
        and reported.keys() == FIELDS.keys() - {"config"}
        and Path(reported["data"]).is_absolute()
    )


@pytest.mark.medium
def test_plan_says_what_is_compared(clone):
    """Protects the reader from a comparison of other things than were meant; nothing is started."""
    clone.variables |= {"PLAN": "yes"}
    aa = clone.run(A="HEAD", B="tree:").stdout
    assert "A and B are the same: an A/A run" in aa and "at most 2 rounds, after a warm-up of each" in aa
    (clone.folder / "more.yaml").write_text(SHORT + "norm: group\n")
    commits = clone.run(A="HEAD", B="commit:HEAD").stdout
    assert "local changes are not measured: A and B are commits" in commits and "an A/A run" in commits
    flags = clone.run(A="flags:", B="flags:--lr 0.3 --norm group").stdout
    assert "they differ in norm (batch against group), lr (0.1 against 0.3)" in flags and "A/A" not in flags
    assert "local changes are not measured" not in flags
    both = clone.run(A="python:/usr/bin/env", B=f"config:{clone.folder / 'more.yaml'}").stdout
    assert "they differ in norm (batch against group)" in both and both.splitlines()[0].endswith(" /usr/bin/env")
    for variables, words in (
        ({"FAIL_OVER": "5"}, "--fail-over is '5', but must be a percentage such as 5%"),
        ({"STRATEGY": "sngle"}, "did you mean single?"),
        ({"NNODES": 2}, "leave NNODES out"),
    ):
        done = clone.run(A="HEAD", B="tree:", **variables)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not (clone.folder / "results").exists() and clone.left_over() == []


# --- the session, with runs that train nothing --------------------------------------------------------------------


@pytest.mark.medium
def test_rounds_in_blocks_leave_rows_and_a_last_line_that_says_which(untrained):
    """Protects rows, order and exit codes; constant throughput and one round have no verdict."""
    (untrained.folder / "new.py").write_text("")
    done = untrained.run(A="HEAD", B="tree:", RESULTS="results/x", FAIL_OVER="5%", REPEATS=6)
    assert done.returncode == 3 and done.stderr == "not decided: whether B is slower by more than 5 %\n"
    output = done.stdout.splitlines()
    assert [line for line in output if line.startswith("round ")] == [f"round {n}: B/A 1.000" for n in range(1, 7)]
    assert output[-1].startswith("no verdict: every run has the same throughput")
    assert any(line.startswith("sd from run to run: 0.0 %; a run after B") for line in output) and any(
        "; 6 rounds, " in line for line in output
    )
    results = untrained.folder / "results" / "x"
    rows = {name: read_table(results / name, "runs") for name in "AB"}
    assert all([*rows[name].status] == [WARM_UP, *["ok"] * 6] for name in "AB")
    assert {*rows["A"].dirty} == {"no"} and {*rows["B"].dirty} == {"yes"}  # each had its own code
    found = json.loads((results / "ab.json").read_text())
    first = ["A" if place == 1 else "B" for place in rows["A"].position[1:]]
    assert first == found["rounds"]["first"] and found["rounds"]["images_per_s"]["B"] == [1.0] * 6
    assert first in ([*"ABABAB"], [*"BABABA"])  # ABBA ABBA, or BAAB BAAB: all along
    assert untrained.left_over() == []
    again = untrained.run(A="HEAD", B="tree:", RESULTS="results/x")
    assert again.returncode == 2 and "holds a comparison already" in again.stderr
    one = untrained.run(A="flags:", B="flags:", REPEATS=1, FAIL_OVER="5%")
    assert one.returncode == 3 and "no verdict: the first look is after 6 rounds" in one.stdout


@pytest.mark.medium
def test_a_budget_ends_a_sitting(untrained):
    """Protects --budget; the interval holds whenever one stops. Where no round began it says why: its words were
    "another round, of about 0 s, does not fit"."""
    done = untrained.run(A="flags:", B="flags:", REPEATS=20, BUDGET="0.1s")
    assert done.returncode == 0 and "no round was done" in done.stdout
    assert re.search(r"--budget 0\.1s: the warm-up alone took \d+ s; give more", done.stdout)


@pytest.mark.medium
def test_a_side_that_fails_is_named_with_its_log(untrained):
    """Protects the gate: a sentence, the log, exit code 4, which is not that of "slower", and no worktree."""
    (untrained.folder / "launchers/single.sh").write_text("#!/bin/bash\nexit 3\n")
    bad = untrained.commit("does not start")
    done = untrained.run(A="HEAD~1", B=bad)
    assert done.returncode == 4 and untrained.left_over() == []
    assert f"failed: B, {bad}: warm-up: failed: its launcher ended with code 3" in done.stderr
    assert "; its log: " in done.stderr.splitlines()[-1]


@pytest.mark.medium
def test_a_tree_that_changes_meanwhile_has_no_verdict(untrained):
    """Protects the meaning of A and B. Mutant: without the check both are measured as if they were one thing."""
    (hold := untrained.folder.parent / "hold").touch()
    process = untrained.start(A="flags:", B="flags:", REPEATS=20)
    untrained.until_one_runs(process)
    (untrained.folder / "new.py").write_text("")
    hold.unlink()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 4 and "its files were changed while they were measured" in err


def test_results_that_git_would_see_are_refused(untrained):
    """Protects a nightly gate: the comparison's own rows counted as changes of the tree, and the run failed. Mutant: no
    check."""
    done = untrained.run(A="HEAD", B="tree:", RESULTS="artifacts/ab")
    assert done.returncode == 2 and "artifacts/ab lies in this checkout and git does not ignore it" in done.stderr
    assert not (untrained.folder / "artifacts").exists()


def test_a_shallow_clone_is_named(untrained):
    """Protects whoever compares in a workflow, where a checkout has one commit."""
    head = (untrained.folder / ".git/refs/heads").rglob("*")
    commit = next(path for path in head if path.is_file()).read_text()
    (untrained.folder / ".git/shallow").write_text(commit)
    done = untrained.run(A="HEAD~50", B="tree:")
    assert done.returncode == 2 and "no commit of this clone, which is shallow: git fetch --unshallow" in done.stderr


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.medium),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.medium),
    ],
)
def test_a_signal_leaves_no_process_and_no_worktree(untrained, signum, code):
    """Protects the machine after Ctrl-C, and the rows so far; after SIGKILL the next one clears away."""
    (hold := untrained.folder.parent / "hold").touch()
    process = untrained.start(A="HEAD", B="flags:", REPEATS=20)
    untrained.until_one_runs(process)
    assert len(untrained.left_over()) == 2
    process.send_signal(signum)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    hold.unlink()
    assert process.returncode == code
    (results,) = (untrained.folder / "results").glob("[!.]*")  # after SIGKILL the worktree is there, too
    rows = [read_table(results / name, "runs") for name in "AB"]
    if signum == signal.SIGKILL:
        assert untrained.run(A="HEAD", B="flags:", REPEATS=1).returncode == 0
    else:
        # Mutant: a loop over both variants that the signal does not end waits for the other's run.
        assert sorted(status for each in rows for status in each.status) == ["interrupted", WARM_UP, WARM_UP]
    assert untrained.left_over() == [] and of_folder(untrained.folder.parent) == []


def of_folder(folder: Path) -> list[str]:
    """Processes whose run is in the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RUN_DIR", "").startswith(str(folder)):
                found += [" ".join(process.cmdline())]
    return found


# --- exit codes, as a shell sees them ---------------------------------------------------------------------------------

RATES = """
import hashlib, math
name = os.environ.get("RUN_DIR", "")
noise = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
rate = 100 * math.exp(0.01 * noise) * (0.8 if "/slow/B/" in name else 1.0)
"""


@pytest.mark.slow
@pytest.mark.real_interpreter
@pytest.mark.parametrize(
    ("results", "words", "code"),
    [
        ("equal", ["--fail-over", "5%"], 0),
        ("slow", ["--fail-over", "5%"], 1),
        ("wrong", ["--fail-over", "5"], 2),
        ("short", ["--fail-over", "5%", "--repeats", "2"], 3),
    ],
)
def test_bench_ab_has_four_exit_codes(clone, recorder, results, words, code):
    """Protects CI: not slower, slower, usage error, undecided, through ./bench. B's runs of `slow` are a fifth slower.
    Mutants: undecided as 2; a failed gate as 0."""
    program = recorder.python.with_name("recorder.py")
    text = program.read_text().replace('{"images_per_s": 1.0}', '{"images_per_s": rate}')
    program.write_text(text.replace("\nwords = ", f"{RATES}\nwords = ", 1))
    env = clone.variables | recorder.variables | {"PYTHON": sys.executable, "PASSED_ON": "bench scripts.runner.record"}
    env |= {"SETUP": "no", "MET": '{"torch": "none"}'}
    shutil.copy(ROOT / "bench", clone.folder)
    words = [f"python:{recorder.python}", f"python:{recorder.python}", *words, "--results", f"results/{results}"]
    command = [clone.folder / "bench", "ab", *words, "--strategy", "single", "--config", env["CONFIG"]]
    env = environment(**env)
    done = subprocess.run([*map(str, command)], cwd=clone.folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]


# --- for real -----------------------------------------------------------------------------------------------------


# --- the arithmetic -----------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_the_sd_is_that_of_a_run_and_the_gate_says_which(capsys, tmp_path):
    """Protects the numbers below the verdict: ratios of two runs have twice the variance of one."""

    def session(*rates):
        return PairedRounds(0, time.monotonic(), {"A": [100.0] * 6, "B": [*rates]}, list("ABABAB"))

    slow = session(90.0, 92.0, 90.0, 92.0, 90.0, 92.0)
    result = look_at_rounds(slow.log_ratios, 6)
    assert slow.sd == pytest.approx(0.0219790 / 2 * (6 / 5) ** 0.5 / 2**0.5, rel=1e-4)
    assert [report_verdict(result, slow, tmp_path, limit) for limit in (None, 0.01, 0.5)] == [0, 1, 0]
    close = session(94.0, 96.0, 94.0, 96.0, 94.0, 96.0)
    assert report_verdict(look_at_rounds(close.log_ratios, 6, 0.05), close, tmp_path, 0.05) == 3
    constant = session(*[90.0] * 6)
    assert report_verdict(look_at_rounds(constant.log_ratios, 6), constant, tmp_path, 0.05) == 3
    output = capsys.readouterr()
    assert "biased" not in output.out and "a comparison that was planned for as many rounds finds" in output.out
    assert "B is slower; B/A 0.910 [" in output.out and "no verdict: every run has the same throughput" in output.out
    assert "correlation of each round's ratio with the one before: -0.83" in output.out
    assert output.err.splitlines()[-1] == "not decided: whether B is slower by more than 5 %"
    report_verdict(look_at_rounds(session(60.0, 60.5, 60.0, 60.5, 60.0, 60.5).log_ratios, 20), slow, tmp_path, None)
    assert "it stopped early, where the answer was clear: the interval allows for that, the" in capsys.readouterr().out


# --- acceptance ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_planted_delay_is_found(clone, tmp_path):
    """A delay of 0.2 s in each step of B is found. It is long, so that other work on the machine does not hide it.
    How often smaller ones are found, and equal things called different, is in tests/results/test_simulations.py."""
    wrapper = tmp_path / "slow python"
    wrapper.write_text(
        f'#!/bin/bash\nexport PYTHONPATH="{ROOT}/tests/faults" FAULT=slow SLOW_S=0.2\nexec "{sys.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    done = clone.run(A="HEAD", B=f"python:{wrapper}", RESULTS="results/late", REPEATS=20)
    late = json.loads((clone.folder / "results/late/ab.json").read_text())["b_over_a"]
    assert done.returncode == 0 and late["verdict"] == "slower" and late["value"] < 0.7
