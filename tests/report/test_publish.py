"""Publishing: what is refused and why, what goes along, and that README's figures and links follow.

.venv/bin/python -m pytest tests/report/test_publish.py
"""

import json
import re
import shutil
import subprocess
import sys

import numpy
import pandas
import pytest
from support import ROOT, environment, recorded

from benchmarks.common.results import WARM_UP, append_rows, read_table
from scripts.analysis import manifest
from scripts.analysis.sets import load_set
from scripts.report.publish import Options, _place, _private, put, without_paths
from scripts.report.publishable import RULE, missing_files, problems
from scripts.report.readme import PUBLISHED, shown

SPEEDS = {"single": 100.0, "ddp": 170.0}
SECRET = "/mnt/secret place/photos"  # DATA of the machine that measured


def write_set(folder, speeds=SPEEDS, num_rounds=3, met=None, **columns):
    """A set as `make bench-all` and `make verify` leave it, of runs that may be published."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, num_ranks = numpy.random.default_rng(0), dict.fromkeys(speeds, 2) | {"single": 1}
    for repeat in range(1, num_rounds + 1):
        for position, (strategy, speed) in enumerate(speeds.items(), 1):
            run_id, ranks = f"{strategy}-{repeat}-000000", num_ranks[strategy]
            speed *= float(numpy.exp(0.02 * rng.normal()))
            row = {
                "schema": 2, "run_id": run_id, "strategy": strategy, "status": "ok", "repeat": repeat,
                "position": position, "arch": "resnet18",
                "image_size": 48, "global_batch": 32, "loader": "folder", "device": "cpu", "device_name": "Test CPU",
                "world_size": ranks, "nodes": 1, "threads_per_rank": 1, "backend": "gloo" if ranks > 1 else "none",
                "parallel": True, "oversubscribed": False, "torch": "2.15.0", "commit": "abc", "dirty": False,
                "images_per_s": speed, "acc1": 50.0, "val_samples": 132, "load_average": 0.1, "wall_s": 10.0,
                "started_at": f"2026-11-21T0{repeat}:00:00+00:00", "log_path": f"logs/{run_id}/run.log",
            } | columns  # fmt: skip
            row = recorded(folder, row, data=SECRET, **(met or {}))
            if (repeat, position) == (1, 1):
                warm = {"run_id": f"{strategy}-0-000000", "repeat": 0, "position": None, "status": WARM_UP}
                append_rows(folder, "runs", [row | warm])
            append_rows(folder, "runs", [row])
            windows = [{"run_id": run_id, "window": n, "images": 128, "seconds": 128 / speed} for n in range(3)]
            append_rows(folder, "windows", windows)
            epoch = {"run_id": run_id, "epoch": 0, "seconds": 5.0, "images": 480, "loss": 2.0, "acc1": 50.0}
            append_rows(folder, "epochs", [epoch | {"phase": phase} for phase in ("train", "val")])
            append_rows(folder, "steps", [{"run_id": run_id, "rank": 0, "step": 5, "step_ms": 9.0}])
            append_rows(folder, "wall", [{"run_id": run_id, "part": "imports", "seconds": 10.0}])
            append_rows(folder, "telemetry", [{"run_id": run_id, "t_s": 0.5, "device": "cpu", "util_pct": 50}])
            log = folder / row["log_path"]
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"$ {ROOT}/.venv/bin/python -m benchmarks.{strategy} --data {SECRET}\nepoch 0\n")
    settings = read_table(folder, "settings").set_index("settings")
    for row in read_table(folder, "runs").drop_duplicates("strategy").itertuples():
        halves = {"asked": settings.asked[row.settings], "met": settings.met[row.settings]}
        proof = {"run_id": f"{row.strategy}-0", "strategy": row.strategy, "steps": 20, "world_size": row.world_size}
        proof |= {"max_relative_difference": 0, "bit_identical": True, "tolerance": 0, "verdict": "ok"}
        append_rows(folder, "equivalence", [proof | halves])
    variables = {"DATA": SECRET, "NPROC": "2"}
    (folder / "environment.json").write_text(json.dumps({"num_cores": 2, "variables": variables}))
    return folder


def change(folder, table, change_frame):
    """Rewrite a table of the set with what `change_frame` makes of it, every cell text."""
    path = folder / f"{table}.csv"
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
    change_frame(frame).to_csv(path, index=False)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("good") / "a set")


@pytest.fixture
def own(good, tmp_path):
    return shutil.copytree(good, tmp_path / "own set")


def test_a_set_that_follows_the_protocol_has_no_problem(good):
    assert missing_files(good) == [] and problems(load_set(good)) == []


def setting(column, cell, strategy="ddp", repeat="3"):
    def changed(frame):
        frame.loc[(frame.strategy == strategy) & (frame.repeat == repeat), column] = cell
        return frame

    return changed


@pytest.mark.parametrize(
    ("table", "changed", "words"),
    [
        ("runs", setting("status", "failed"), ["ddp, round 3: failed: ", "RETRY=failed"]),
        ("runs", setting("dirty", "yes"), ["local changes", "commit them"]),
        ("runs", setting("commit", "def"), ["2 commits (abc, def)"]),
        ("runs", setting("commit", ""), ["without a commit"]),
        ("runs", setting("device_name", "Other CPU"), ["device_name: Other CPU, Test CPU"]),
        ("runs", setting("load_average", "7", "single", "0"), ["busy before the first run"]),
        ("runs", setting("oversubscribed", "yes"), ["ddp: oversubscribed"]),
        ("runs", setting("started_at", "2026-11-28T03:00:00+00:00"), ["ddp: runs of another sitting"]),
        ("runs", lambda frame: frame[frame.repeat != "3"], ["ddp has 2 of at least 3 rounds", "REPEATS=3"]),
        ("runs", lambda frame: frame[frame.strategy != "single"], ["no timed runs of single"]),
        ("runs", lambda frame: frame[frame.repeat != "0"], ["no run of round 0 warmed the machine", "new set"]),
        ("runs", setting("images_per_s", "", "single", "0"), ["no run of round 0 warmed the machine"]),
        ("runs", setting("position", ""), ["ddp: 1 of 3 runs without a place in the order", "new set"]),
        ("equivalence", lambda frame: frame[frame.strategy != "ddp"], ["ddp: not proved yet: make verify"]),
        ("equivalence", lambda frame: frame.assign(verdict="failed"), ["single: NO: ", "ddp: NO: "]),
        ("equivalence", lambda frame: frame.assign(asked=frame.asked.str.replace('"seed":0', '"seed":1')), ["seed"]),
        ("settings", lambda frame: frame[:0], ["settings were not recorded"]),
    ],
)
def test_what_speaks_against_a_set_is_said_with_what_to_do(own, table, changed, words):
    """Protects whoever reads a published figure: each of these sets looks well, and must not be published."""
    change(own, table, changed)
    lines = "\n".join(problems(load_set(own)))
    assert all(word in lines for word in words), lines


def test_local_changes_in_the_settings_are_found(tmp_path):
    """The column `dirty` may say no where an older launcher wrote it; the settings' hash of changes does not."""
    folder = write_set(tmp_path / "set")
    added = lambda frame: frame.assign(met=frame.met.str.replace("{", '{"local_changes":"1234",', n=1))  # noqa: E731
    change(folder, "settings", added)
    assert any("local changes" in line for line in problems(load_set(folder)))


@pytest.mark.parametrize("name", ["runs.csv", "settings.csv", "equivalence.csv", "environment.json"])
def test_a_missing_file_is_named_with_its_command(own, name):
    (own / name).unlink()
    (line,) = missing_files(own)
    assert f"lacks {name}; RESULTS={own} make " in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "NAME is not set"),
        ("a/b", "NAME=a/b"),
        ("..", "NAME=.."),
        ("measured", "NAME=measured"),
        (None, "REPLACE=yes"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name, words, good):
    with pytest.raises(Exception, match=re.escape(words)):
        _place(Options(shown(PUBLISHED)["cpu"] if name is None else name, good))


def test_paths_of_the_machine_are_left_out():
    private = {SECRET: "photos", "/home/ann/bench/": ""}
    text = (
        f'{{"data":"{SECRET}","x":"/home/ann/bench/configs/a.yaml"}} /usr/lib/libc.so /scratch/u/x.log images/s </td>'
    )
    wanted = '{"data":"photos","x":"configs/a.yaml"} /usr/lib/libc.so x.log images/s </td>'
    assert without_paths(text, private) == wanted


@pytest.mark.parametrize(("home", "text"), [("/", "images/s"), ("/home/ann", "~/x, images/s")])
def test_the_home_of_a_container_hides_no_slash(home, text, good, monkeypatch):
    """Protects reports that a container publishes, where HOME is / and every / once became ~."""
    monkeypatch.setenv("HOME", home)
    assert without_paths(text.replace("~", home), _private(load_set(good), "a set")) == text


def test_a_failed_move_leaves_the_old_set(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place/runs.csv").write_text("old")
    with pytest.raises(OSError):
        put(tmp_path / "is not there", tmp_path / "place", tmp_path / "aside")
    assert (tmp_path / "place/runs.csv").read_text() == "old"


def test_publishing_moves_figures_and_links(good, tmp_path):
    """The real command in a checkout of its own: the set with its report, no logs, no path; then the READMEs."""
    checkout = tmp_path / "a checkout"
    for part in ("benchmarks", "scripts"):
        shutil.copytree(ROOT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("configs", "launchers", "results/published/old-set", "tests/faults"):
        (checkout / folder).mkdir(parents=True)
    for folder in ("configs", "launchers", "results", "tests/faults"):
        (checkout / folder / "README.md").write_text("no figures\n")
    readme = checkout / "README.md"
    readme.write_text("ddp <!--images_per_s.ddp-->9<!--/-->\n\n[a]: results/published/old-set/runs.csv\n")
    (checkout / "results/published/shown.json").write_text('{"cpu": "old-set"}')

    def publish(*words):
        command = [sys.executable, "-m", "scripts.report.publish", "--results", good, "--name", "cpu2_new", *words]
        return subprocess.run(command, cwd=checkout, env=environment(), capture_output=True, text=True)

    done = publish()
    assert done.returncode == 0, done.stderr
    new = checkout / "results/published/cpu2_new"
    speed = load_set(good).timed("ddp")[0].throughput.value
    wanted = f"ddp <!--images_per_s.ddp-->{speed:,.0f}<!--/-->\n\n[a]: results/published/cpu2_new/runs.csv\n"
    assert readme.read_text() == wanted
    assert shown(new.parent) == {"cpu": "cpu2_new"}
    names = {path.name for path in new.iterdir()}
    assert names >= {"runs.csv", "report.md", "report.html", "report.tex", "charts", "published.json", manifest.NAME}
    told = manifest.read_manifest(new)
    assert told["commit"] == "abc" and [(run["strategy"], run["rounds"]) for run in told["runs"]] == [
        ("single", 3),
        ("ddp", 3),
    ]
    assert {"runs.csv", "report.tex", "charts/throughput.pdf"} <= told["files"].keys()
    assert manifest.faults(new, told) == []
    assert not (new / "logs").exists() and [*new.parent.glob(".publishing*")] == []
    for path in new.rglob("*"):
        if path.is_file() and path.suffix not in (".png", ".pdf"):
            assert not any(
                word in path.read_text() for word in ("/mnt", "secret", str(ROOT), str(tmp_path), ".publishing")
            ), path
    assert "python -m benchmarks.ddp --data photos" in (new / "report.html").read_text()  # of the log's first line
    assert problems(load_set(new)) == []
    again = publish()
    assert again.returncode == 2 and "REPLACE=yes" in again.stderr and len(again.stderr.splitlines()) == 1
    (new / "stale").write_text("")
    assert publish("--replace").returncode == 0 and not (new / "stale").exists()
    readme.write_text("<!--sweep.ddp.bucket_cap_mb-->x<!--/-->")  # what the set has no figure for
    refused = publish("--replace")
    assert refused.returncode == 1 and "make sweep STRATEGY=ddp KEY=bucket_cap_mb" in refused.stderr


# --- what is published --------------------------------------------------------------------------------------------

SETS = [path for path in sorted(PUBLISHED.iterdir()) if path.is_dir() and path.name != "measured"]


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.name)
def test_a_published_set_passes_its_checks_or_says_by_which_older_rule_it_came(path):
    told = json.loads((path / "published.json").read_text())
    if told["rule"] == RULE:
        assert problems(load_set(path)) == []
    else:
        assert told["rule"] < RULE and len(told["reason"]) > 20


def test_what_the_readmes_show_is_published():
    names = shown(PUBLISHED)
    assert {*names} <= {"cpu", "gpu"} and {*names.values()} <= {path.name for path in SETS}
