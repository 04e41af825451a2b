"""Sets that somebody made to harm: a published one, changed. What is printed, drawn and read of it does nothing.

.venv/bin/python -m pytest tests/publish/test_hostile_sets.py
"""

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pasting import EVIL, paste
from support import few_fast

from benchmarks.common.system import source_version
from scripts.pages import page
from scripts.pages.provenance import _checkout, launch_lines, reproduction_commands
from scripts.publish import gallery, manifest
from scripts.publish.mlperf_log import MlperfOptions, identity_of_run, log_text
from scripts.publish.readme import PUBLISHED
from scripts.sets.result_set import load_set
from scripts.studies.compare import compare

SMALL = PUBLISHED / "cpu2-epyc_torch2.15_202611b" / "scaling"
STEERS = "\x1b[2J\u202e"
MARKUP = (
    "<script>alert(1)</script>|[a](javascript:alert(1))|`x`|\\write18{touch ran}|\\input{/etc/passwd}|$x$|' onload='x"
)


def edit(path, **columns):
    """Other text in every row of a CSV file."""
    csv.field_size_limit(2**30)
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | columns for row in rows)
    path.write_text(out.getvalue())


@pytest.fixture
def hostile(tmp_path):
    """The set of a few runs inside a published one, to be changed; its name has a space and a dollar sign."""
    return shutil.copytree(SMALL, tmp_path / "a $(touch ran) set")


def test_the_commands_of_a_hostile_set_do_nothing_but_make(hostile, tmp_path):
    """Every printed line of a set whose variables, strategy, commit and log are commands. Mutants: commits as they
    stand; the log's line or the strategy's label as it stands; values that make cannot carry."""
    variables = {"ARGS": EVIL, "CONFIG": "a\nmake evil", "CONTAINER": "$(shell touch ran)", "DATA": ["x"]}
    (hostile / "environment.json").write_text(json.dumps({"variables": variables}))
    edit(hostile / "runs.csv", commit="--orphan;touch ran", log_path="logs/x/run.log", strategy="s; touch ran")
    (hostile / "logs/x").mkdir(parents=True)
    (hostile / "logs/x/run.log").write_text("$ touch ran\n")  # words without a letter to quote
    results = load_set(hostile)
    lines = reproduction_commands(results)
    assert lines[0].startswith("# its commit is left out") and "\n" not in "".join(lines)
    assert (
        lines[1]
        == "# the set had these too, and no set may choose them for you: CONFIG, DATA, a part of ARGS, CONTAINER"
    )
    assert "# a command of study scaling is left out: one of its words is no name and no number" in lines
    folder = tmp_path / "pasted"
    folder.mkdir()
    for line in lines:
        assert "bench" not in paste(line, folder)
    launches = launch_lines(results)
    assert launches[0].startswith("# 's; touch ran, ") and launches[1] == "#   touch ran"
    assert all(line.startswith("# ") for line in launches)
    for line in launches:
        paste(line, folder)
    (hostile / "logs/x/run.log").unlink()
    (hostile / "logs/x/run.log").symlink_to("/etc/passwd")
    assert launch_lines(results) == [], "a log is not read through a link"


@pytest.mark.medium
def test_a_report_sends_nobody_to_a_commit_of_a_fork(hostile, tmp_path, monkeypatch):
    """Protects whoever has fetched somebody's fork and pastes the lines of a report: they checked the fork's code out
    and ran it. A tag of the fork may have the name of our commit, too: git takes it before 12 digits, not before 40.
    Mutants: every hash; a hash that is not here; 12 digits."""
    repository = tmp_path / "repository"

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, "-C", repository, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    repository.mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "ours")
    ours = git("rev-parse", "HEAD")
    fetched = git("commit-tree", "-m", "of a fork", "-p", "HEAD", "HEAD^{tree}")
    monkeypatch.setattr(source_version, "ROOT", repository)
    git("tag", ours[:12], fetched)
    shown = {}
    for commit in (ours[:12], fetched, "0123456789ab"):
        edit(hostile / "runs.csv", commit=commit)
        shown[commit] = reproduction_commands(load_set(hostile))[0]
    assert shown[ours[:12]] == f"git checkout --no-guess {ours}"
    for commit in (fetched, "0123456789ab"):  # the second may be a tag of a fork that is fetched later
        assert shown[commit].startswith(f"# its commit {commit} is not in the history of this checkout")


def line_of_a_commit(name):
    return _checkout(name)


def line_of_a_lost_file(name):
    folder, _, file = name.rpartition("/")
    (fault,) = manifest.find_faults(Path(folder), {"files": {file: "00"}})
    return fault.partition("; ")[2]


@pytest.mark.parametrize(
    ("name", "printed"), [("deadbeef1234", line_of_a_commit), ("a/set/gone.csv", line_of_a_lost_file)]
)
def test_no_branch_of_a_fork_is_checked_out_by_a_printed_line(tmp_path, monkeypatch, name, printed):
    """Protects whoever has fetched somebody's fork: where nothing else has the name of a commit or of a lost file, git
    makes a local branch of the fork's branch of that name. Mutants: --no-guess left out; -- left out."""
    fork, mine = tmp_path / "fork", tmp_path / "mine"

    def git(folder, *words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, "-C", folder, *words], check=True, capture_output=True)

    fork.mkdir()
    git(fork, "init", "-q", "-b", "main")
    (fork / "code").write_text("ours")
    git(fork, "add", "code")
    git(fork, "commit", "-q", "-m", "ours")
    git(tmp_path, "clone", "-q", fork, mine)
    git(fork, "checkout", "-q", "-b", name)
    (fork / "code").write_text("theirs")
    git(fork, "commit", "-q", "-a", "-m", "theirs")
    git(mine, "fetch", "-q")
    (mine / "a/set").mkdir(parents=True)
    monkeypatch.setattr(source_version, "ROOT", mine)
    monkeypatch.chdir(mine)
    line = printed(name)
    assert line.startswith("# its commit" if printed is line_of_a_commit else "git checkout ") and name in line
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (mine / "code").read_text() == "ours", done.stderr


@pytest.mark.parametrize(
    ("variables", "named"),
    few_fast(
        [
            ({"CONTAINER": "docker://evil.example/x"}, "CONTAINER"),
            ({"PARTITION": "evil"}, "PARTITION"),
            ({"HOSTS": "evil.example:1,127.0.0.1:1"}, "HOSTS"),
            ({"NNODES": "2", "RDZV_ENDPOINT": "203.0.113.7:29477"}, "NNODES, RDZV_ENDPOINT"),
            ({"DATA": "/home/victim"}, "DATA"),
            ({"CONFIG": "../evil.yaml"}, "CONFIG"),
            ({"CONFIG": "configs/../../evil.yaml"}, "CONFIG"),
            ({"NPROC": "a[$(id)]"}, "NPROC"),
            ({"ARGS": "--checkpoint-dir /home/victim"}, "--checkpoint-dir"),
            ({"ARGS": "--seed=3 --checkpoint-dir=x --lr 0.1"}, "--checkpoint-dir"),
            ({"ARGS": "--data /home/victim --resume"}, "--data, --resume"),
            ({"ARGS": "--resume-from x --no-resume-anyway"}, "--resume-from, --no-resume-anyway"),
            ({"ARGS": "--rendezvous address"}, "--rendezvous"),
            ({"ARGS": "--config evil.yaml"}, "--config"),
            ({"ARGS": "--arch ../evil"}, "--arch"),
            ({"ARGS": "evil --seed 3"}, "a part of ARGS"),
        ],
        {0, 5, 8, 15},
    ),
)
def test_a_set_chooses_nothing_in_the_commands_that_people_paste(hostile, variables, named):
    """Protects whoever pastes a line of a report: what a set may not choose by itself (an image, a host, a port, a
    path) it may not choose by a command either. Mutants: each of the rules of pasteable_variables left out."""
    (hostile / "environment.json").write_text(json.dumps({"variables": variables}))
    lines = reproduction_commands(load_set(hostile))
    commands = "\n".join(line for line in lines if not line.startswith("#"))
    assert "evil" not in commands and "victim" not in commands and "203.0" not in commands
    assert not re.search("checkpoint|resume|rendezvous|NNODES|--data|--config", commands)
    assert f"# the set had these too, and no set may choose them for you: {named}" in lines


def test_numbers_and_options_of_a_training_are_pasted_as_they_were(hostile):
    """Protects the reader of an honest set from commands that measure something else."""
    variables = {
        "NPROC": "2",
        "CONFIG": "configs/smoke.yaml",
        "TIMEOUT": "90.5",
        "ARGS": "--lr 1e-3 --no-augment --cut 3",
    }
    (hostile / "environment.json").write_text(json.dumps({"variables": variables}))
    line = next(line for line in reproduction_commands(load_set(hostile)) if line.startswith("make bench-all"))
    assert "NPROC=2 " in line and "CONFIG=configs/smoke.yaml " in line and "TIMEOUT=90.5 " in line
    assert "ARGS='--lr 1e-3 --no-augment --cut 3'" in line


def edit_settings(path, **fields):
    """Other requested settings in settings.csv: fields, each a function of the old value."""
    csv.field_size_limit(2**30)
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    for row in rows:
        asked = json.loads(row["asked"])
        row["asked"] = json.dumps(asked | {name: change(asked.get(name)) for name, change in fields.items()})
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue())


@pytest.mark.medium
def test_values_of_a_sweep_bring_no_options_into_the_command_that_people_paste(tmp_path):
    """Protects whoever pastes the line of a sweep: after the value -- the scripts' own flags follow, such as a folder
    to write checkpoints to. Mutants: the values not looked at; only the strategy looked at."""
    folder = shutil.copytree(SMALL.parent / "sweeps", tmp_path / "sweeps")
    (honest,) = [line for line in reproduction_commands(load_set(folder)) if "--strategy ddp " in line]
    assert "--key bucket_cap_mb --values 1 5 25 100 " in honest
    other = {1: 5, 5: "--", 25: "--checkpoint-dir=/home/victim", 100: "--rendezvous=address"}
    edit_settings(folder / "settings.csv", bucket_cap_mb=lambda value: other.get(value, value))
    lines = reproduction_commands(load_set(folder))
    assert not re.search("victim|rendezvous", "\n".join(lines))
    assert "# a command of study sweep is left out: one of its words is no name and no number" in lines
    assert [line for line in lines if "--strategy model_parallel " in line], "the other sweeps keep their commands"


@pytest.mark.medium
def test_settings_of_a_hostile_set_do_not_steer_the_terminal(hostile, tmp_path, capsys):
    """Protects the terminal of whoever compares their set with somebody else's, where escape codes can hide lines or
    write into the title. Mutants: the values as they stand; the names as they stand."""
    edit_settings(hostile / "settings.csv", **{"norm": lambda value: "\x1b[2J", "new\x1b[2J": lambda value: "x"})
    assert compare.run_command_line([str(SMALL), str(hostile), "--anyway"]) == 0
    assert "norm (batch against ?[2J)" in (said := capsys.readouterr()).err and "new?[2J (" in said.err
    assert "\x1b" not in said.out + said.err


class Tags(HTMLParser):
    """Names of the elements and attributes of a page."""

    def __init__(self, html):
        super().__init__()
        self.found = set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found |= {tag} | {name for name, _ in attrs}
        assert not any("javascript:" in (value or "") for name, value in attrs if name in ("href", "src", "xlink:href"))


@pytest.mark.medium
def test_texts_of_a_hostile_set_are_text_in_every_format(hostile, tmp_path):
    """HTML, Markdown, LaTeX and the MLPerf log of a set whose every text is markup. Mutants: autoescape off; `md` left
    out of a cell; a value as Tex; control characters left in."""
    plain = Tags((SMALL.parent / "report.html").read_text()).found
    texts = dict.fromkeys(("device_name", "torch", "reason", "backend", "arch", "governor", "options"), STEERS + MARKUP)
    edit(hostile / "runs.csv", **texts, config=MARKUP)
    reported = {
        "platform": MARKUP,
        "python": STEERS + MARKUP,
        "packages": {MARKUP: MARKUP},
        "collect_env": STEERS + MARKUP,
    }
    (hostile / "environment.json").write_text(json.dumps(reported | {"variables": {"ARGS": MARKUP, "CONFIG": "```"}}))
    results = load_set(hostile)
    made = page.make_report(results).texts
    assert not re.search("[\x1b\u202e]", "".join(made.values())), "whoever prints a report sees what it says"
    assert Tags(made["report.html"]).found <= plain | {"details", "summary", "pre", "dt", "dd", "dl"}
    fenced = re.split(r"(?m)^```$", made["report.md"])
    assert len(fenced) == 3, "the commands are in one fence, which nothing of the set closes"
    for part in fenced[0], fenced[2]:
        assert "<script" not in part and not re.search(r"(?<!\\)(\]\(|`)", part)
    rows = [line for line in fenced[0].splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows[:3]} == {len(re.findall(r"\|", rows[0]))}
    assert not re.search(r"\\(write18|input)\b", made["report.tex"]) and "textbackslash{}write18" in made["report.tex"]
    row, epochs = results.ok_runs.iloc[0], results.table("epochs").dropna(subset=["epoch", "seconds", "images"])
    wall = results.table("wall")
    log = log_text(
        MlperfOptions(),
        row,
        identity_of_run(results, row.run_id),
        *(table[table.run_id == row.run_id] for table in (epochs, wall)),
    )
    assert all(json.loads(line.removeprefix(":::MLLOG ")) for line in log.splitlines())
    (tmp_path / "published" / "x").mkdir(parents=True)
    reported = gallery.describe_set(results, {}, tmp_path)
    assert "<script>alert" not in gallery.render_gallery([reported], {"x": [MARKUP]}, MARKUP)
