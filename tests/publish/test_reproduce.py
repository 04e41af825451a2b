"""`./bench reproduce`: what is refused before anything starts, and a set that runs again at its commit and is compared.

.venv/bin/python -m pytest tests/publish/test_reproduce.py

Launchers and attempts of two checkouts are real; what they run trains nothing, but for the slow test.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas
import pytest
from clones import Clone
from support import Recorder, environment, recorded

from benchmarks.common.store.results import append_rows, read_table
from benchmarks.common.system import source_version
from benchmarks.common.system.compiling import private_cache
from benchmarks.common.system.errors import UserError
from scripts.publish import reproduce
from scripts.publish.manifest import MANIFEST, checksums, find_faults, write_manifest
from scripts.runner import preflight
from scripts.sets.result_set import load_set
from scripts.studies.ab import worktrees

OTHER = "a folder of other images"
ARGS = "--seed 3"  # of the published set, as its environment.json has them


class Published(Clone):
    """A clone with a set that was made at its first commit; the newest one's launchers fail."""

    def __init__(self, folder, strategies="single", **variables):
        super().__init__(folder)
        self.variables |= {"STRATEGIES": strategies} | variables
        self.set = self.folder / "results" / "made"
        self.made_at = self.git("rev-parse", "HEAD").strip()
        done = self.program("scripts.runner.bench", "all", RESULTS="results/made")
        assert done.returncode == 0, done.stderr
        if not (self.set / "environment.json").exists():  # the stub makes none
            (self.set / "environment.json").write_text(json.dumps({"variables": {"ARGS": ARGS}}))
        write_manifest(self.set, load_set(self.set))
        for path in (self.folder / "launchers").glob("*.sh"):
            if path.name != "all.sh":
                path.write_text("#!/bin/sh\necho 'this is another commit' >&2\nexit 9\n")
        self.commit("broken launchers")
        self.variables |= {**dict.fromkeys(("CONFIG", "STRATEGIES", "REPEATS", "THREADS_PER_RANK"))}

    def program(self, *words, **variables) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", *words]
        env = environment(**self.variables | variables)
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=900)
        print(done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def change(self, **reported) -> None:
        """Other values in the manifest: at the top, or run__NAME of its first run, asked__NAME and met__NAME of that
        one's halves, which settings.csv then has too, said__NAME of what was asked, which it has not."""
        found = json.loads((self.set / MANIFEST).read_text())
        first = found["runs"][0]
        places = {"": found, "run": first, "asked": first["asked"], "met": first["met"], "said": first["asked"]}
        for key, value in reported.items():
            half, _, name = key.rpartition("__")
            places[half][name] = value
        if any(key.startswith(("asked__", "met__")) for key in reported):
            path = self.set / "settings.csv"
            rows = pandas.read_csv(path, dtype=str, keep_default_na=False)
            asked, met = json.dumps(first["asked"]), json.dumps(first["met"])
            rows.assign(asked=asked, met=met).to_csv(path, index=False)
            found["files"] = checksums(self.set)
        (self.set / MANIFEST).write_text(json.dumps(found))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """The clone and its set of one run, by an interpreter that trains nothing."""
    folder = tmp_path_factory.mktemp("reproduce")
    (folder / "stub folder").mkdir()
    recorder = Recorder(folder / "stub folder")
    reported = {"MET": '{"torch": "none"}', "PASSED_ON": "scripts.runner.supervisor", "REPEATS": 1}
    made = Published(folder, **recorder.variables | reported)
    made.recorder = recorder
    return made


@pytest.fixture
def kept(untrained):
    """The same, with its manifest as it was afterwards."""
    before = {untrained.set / name: (untrained.set / name).read_text() for name in (MANIFEST, "settings.csv")}
    yield untrained
    for path, text in before.items():
        path.write_text(text)


@pytest.mark.medium
def test_a_set_runs_again_at_its_commit_and_is_compared(kept):
    """Protects "reproduced": the code is the set's commit's, the settings are the set's, and two days have no verdict.
    Mutants: launchers of this checkout (they fail here); settings by this checkout's defaults (another hash)."""
    plan = kept.program("scripts.publish.reproduce", SET="results/made", PLAN="yes")
    assert plan.returncode == 0 and "1 of 1 runs" in plan.stdout and kept.made_at[:12] in plan.stdout
    done = kept.program("scripts.publish.reproduce", SET="results/made", RESULTS="results/again", ARGS="--anyway")
    assert done.returncode == 0, done.stderr
    assert "throughput of B, results/again, over that of A, results/made" in done.stdout
    assert "no verdict" in done.stdout and "1.000" in done.stdout
    before, after = (read_table(kept.folder / "results" / name, "runs") for name in ("made", "again"))
    assert [*after.commit] == [*before.commit] == [kept.made_at[:12]] and [*after.status] == ["ok"]
    assert [*after.settings] == [*before.settings], "what was asked and met has the same hash"
    assert kept.left_over() == []
    described = [call for call in kept.recorder.calls() if "scripts.runner.environment" in call["words"]]
    assert described[-1]["env"]["ARGS"] == ARGS, "what would make the set by hand, and not the words for the comparison"
    again = kept.program("scripts.publish.reproduce", SET="results/made", RESULTS="results/again")
    assert again.returncode == 0 and len(read_table(kept.folder / "results/again", "runs")) == 1, "all was done already"


@pytest.mark.medium
def test_a_device_of_a_set_does_not_steer_the_terminal(kept):
    """Protects the terminal of whoever runs somebody else's set again, from the first line on. Mutant: the name as it
    stands."""
    kept.change(met__device_name="a GPU\x1b[2J")
    plan = kept.program("scripts.publish.reproduce", SET="results/made", PLAN="yes", ARGS="--anyway")
    assert plan.returncode == 0 and "on a GPU?[2J: again" in plan.stdout and "\x1b" not in plan.stdout + plan.stderr


def test_nodes_that_no_launcher_would_use_are_refused(monkeypatch):
    """Protects hours of runs: NODES is Slurm's, and torchrun started one rank where the set had two nodes. Mutant: only
    the numbers of ranks compared."""
    monkeypatch.setenv("NODES", "2")
    monkeypatch.setenv("TASKS_PER_NODE", "1")
    requested = {"strategy": "ddp", "ranks": 2, "nodes": 2, "threads_per_rank": 1, "fingerprint": "synthetic"}
    run = {"label": "ddp", "strategy": "ddp", "asked": requested, "met": {}}
    with pytest.raises(UserError, match="NODES would not reach ddp"):
        reproduce.check_startable(run, "HEAD", Path("a set"))


@pytest.mark.parametrize(
    ("reported", "variables", "words"),
    [
        ({}, {"SET": ""}, "no published set is named; for example: ./bench reproduce results/published/x"),
        ({}, {"SET": "nowhere"}, "nowhere is no folder"),
        ({}, {"CONFIG": "x.yaml"}, "CONFIG is the set's own"),
        ({}, {"RESULTS": "results/made"}, "RESULTS=results/made is a published set"),
        ({}, {"STRATEGIES": "ddp"}, "has no ddp; it has single"),
        ({}, {"TIMEOUT": "9"}, "TIMEOUT is the set's own"),
        ({}, {"ARGS": "--day-sd two", "PLAN": None}, "--day-sd is 'two'"),
        ({}, {"NNODES": "2"}, "RDZV_ENDPOINT is ''"),
        ({}, {"UNTIL": "5%"}, "UNTIL is the width of ratios"),
        ({"commit": "HEAD"}, {}, "manifest.json says commit HEAD, and runs.csv "),
        ({"commit": "x\n\nrun: y"}, {}, "manifest.json says commit x??run: y, and runs.csv "),
        ({"run__strategy": "x\nrun: y"}, {}, "manifest.json says x?run: y of settings of single"),
        ({"schema": 2}, {}, "is of schema 2"),
        ({"runs": [{"strategy": "single"}]}, {}, "manifest.json cannot be read"),
        ({"runs": []}, {}, "is not whole"),
        ({"asked__ranks": None}, {}, "is not whole"),
        ({"asked__nodes": 0}, {}, "is not whole"),
        ({"run__rounds": 0}, {}, "is not whole"),
        ({"said__global_batch": 64}, {}, "manifest.json has settings of single that settings.csv has not"),
        ({"run__strategy": "ddp"}, {}, "manifest.json says ddp of settings of single"),
        ({"met__local_changes": "1234"}, {}, "made with local changes, which no commit has"),
        ({"met__device": "cuda"}, {}, "ran on 2 GPUs a machine, and here are 0"),
        ({"met__device": "cpu", "met__device_name": "a 6502"}, {}, "single ran on a 6502, and this is "),
        ({"asked__nodes": 2, "asked__ranks": 4}, {}, "ran 4 ranks on 2 nodes; say where they are"),
        ({"asked__fingerprint": "2-4-2-ab", "asked__loader": "folder"}, {"DATA": OTHER}, "other images (4-40-23-"),
        ({"asked__container": "docker://evil"}, {}, "ran with CONTAINER=docker://evil, and a set may not choose that"),
        ({"asked__partition": "evil"}, {}, "give PARTITION=... yourself, or PARTITION= for none"),
        ({"asked__cpus_per_task": "a[$(id)]"}, {}, "cpus_per_task is 'a[$(id)]', which is no number"),
        ({"asked__decoder": "/evil.so"}, {}, "decoder is '/evil.so', which is no value of this setting"),
        ({"asked__added_since": "../x"}, {}, "added_since is '../x', which is no value of this setting"),
        ({"asked__arch": ["resnet18"]}, {}, "arch is ['resnet18'], which is no value of this setting"),
        ({"asked__workers": "--x"}, {}, "workers is '--x', which is no value of this setting"),
        ({"asked__rendezvous": "address"}, {}, "rendezvous is 'address', by which it would listen"),
        ({"asked__config": "a\nb"}, {}, "config is 'a\\nb', which is no line of text"),
        ({"asked__loader": "folder", "asked__data": "/"}, {}, "the fingerprint of the images is empty"),
        ({"asked__threads_per_rank": 10**9}, {}, "which is no number from 1 to 1000000"),
        ({"asked__ranks": 10**5}, {}, "it asks for 100000 ranks on one machine, and with "),
        ({"asked__workers": 10**5}, {}, " loader workers in all on one machine, and with "),
        ({"asked__threads_per_rank": 10**5}, {}, "it asks for 100000 threads a rank on one machine, and with "),
        (
            {"run__strategy": "../x", "asked__strategy": "../x"},
            {},
            "strategy is '../x', which is no value",
        ),
        ({"run__strategy": "all", "asked__strategy": "all"}, {}, "has no strategy all"),
        ({"met__device": "cpu; id"}, {}, "device is 'cpu; id', which is none of cpu, cuda"),
        ({"met__world_size": "2"}, {}, "world_size is '2', which is no number from 1 to 1000000"),
        ({"run__rounds": 10**9}, {}, "says 1000000000 rounds, and runs.csv has "),
        ({"files": {"gone.csv": "00"}}, {}, "gone.csv is missing; git checkout"),
        ({"files": {"runs.csv": "00"}}, {}, "runs.csv is not what was published (sha256)"),
        ({"files": {"../x": "00"}}, {}, "names ../x, which is not in the set"),
        ({"files": {}}, {}, "runs.csv is not in manifest.json: it was not published"),
    ],
)
@pytest.mark.medium
def test_what_cannot_be_run_again_is_reported_first(kept, monkeypatch, tiny_data, reported, variables, words):
    """Protects hours: nothing is started, no folder is made, and the sentence says what to do."""
    kept.change(**reported)
    variables = {name: tiny_data if value == OTHER else value for name, value in variables.items()}
    env = environment(**{"THREADS_PER_RANK": None, "SET": "results/made", "PLAN": "yes"} | variables)
    for name in os.environ.keys() - env.keys() - {"PYTEST_CURRENT_TEST"}:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(kept.folder)
    monkeypatch.setattr(worktrees, "ROOT", kept.folder)
    monkeypatch.setattr(source_version, "ROOT", kept.folder)
    before = sorted((kept.folder / "results").iterdir())
    with pytest.raises(UserError, match=re.escape(words)):
        reproduce.main()
    assert sorted((kept.folder / "results").iterdir()) == before


@pytest.mark.parametrize("rev", ["HEAD", "main", "0123456789ab", "", "--upload-pack=id", "@{-1}"])
def test_a_commit_is_known_by_its_hash_only(kept, monkeypatch, rev):
    """Protects "at its commit": a branch goes on. Mutant: whatever git resolves."""
    monkeypatch.setattr(worktrees, "ROOT", kept.folder)
    monkeypatch.setattr(source_version, "ROOT", kept.folder)
    assert reproduce.commit_of_set({"runs": [], "commit": kept.made_at[:12]}, kept.set) == kept.made_at
    with pytest.raises(UserError, match=f"commit {re.escape(rev)} of .* is not in this repository"):
        reproduce.commit_of_set({"runs": [], "commit": rev}, kept.set)


def test_a_set_runs_no_code_that_this_checkout_does_not_come_after(kept, monkeypatch):
    """Protects whoever has fetched somebody's fork and reproduces a set: the set named a commit of the fork, and its
    launchers ran. Mutant: every commit that git has."""
    monkeypatch.setattr(worktrees, "ROOT", kept.folder)
    monkeypatch.setattr(source_version, "ROOT", kept.folder)
    fetched = kept.git("commit-tree", "-m", "of a fork", "-p", "HEAD", "HEAD^{tree}").strip()
    with pytest.raises(UserError, match="is not in the history of this checkout"):
        reproduce.commit_of_set({"runs": [], "commit": fetched[:12]}, kept.set)


def test_an_earlier_commit_takes_nothing_that_lies_in_tmp(kept, monkeypatch):
    """Protects from a set that chooses a commit of before a fix: its ranks took compiled code from
    /tmp/torchinductor_<user>, which another user can make, and horovodrun's command lines had secrets. Mutants: the
    environment as it is; not put back; with secrets."""
    monkeypatch.setattr(worktrees, "ROOT", kept.folder)
    monkeypatch.setattr(source_version, "ROOT", kept.folder)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_somebody")
    monkeypatch.setenv("SLURM_JWT", "s3cret")
    monkeypatch.setenv("https_proxy", "http://me:s3cret@proxy:3128")
    before = dict(os.environ)
    with worktrees.checked_out([kept.made_at]):
        temporary, cache = Path(os.environ["TMPDIR"]), Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert temporary.stat().st_mode & 0o777 == 0o700 and str(temporary) != before.get("TMPDIR")
        assert cache == private_cache() and Path(os.environ["TRITON_CACHE_DIR"]).parent == cache
        assert os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0"
        assert "s3cret" not in str(os.environ)
    assert dict(os.environ) == before and not temporary.exists()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_no_commit_is_checked_out_where_another_user_may_replace_it(kept, tmp_path, monkeypatch, when):
    """Protects whose RESULTS is a folder of their own, while results/ is a link to a disk of many users: one of these
    moved the folder of the worktrees away, and their launchers ran. Mutants: no look at results/; none at the new
    folder."""
    monkeypatch.setattr(worktrees, "ROOT", kept.folder)
    monkeypatch.setattr(source_version, "ROOT", kept.folder)
    (above := tmp_path / "disk").mkdir()
    (kept.folder / "results").rename(above / "results")
    (kept.folder / "results").symlink_to(above / "results")
    try:
        with worktrees.checked_out([kept.made_at]) as folders:
            assert (folders[kept.made_at] / "launchers/ddp.sh").is_file()
        make = tempfile.mkdtemp

        def make_and_open(*words, **options):
            made = make(*words, **options)
            above.chmod(0o777)
            return made

        if when == "before":
            above.chmod(0o777)
        else:
            monkeypatch.setattr(worktrees.tempfile, "mkdtemp", make_and_open)
        with (
            pytest.raises(UserError, match=r"^everybody may write to .*disk; run: chmod o-w "),
            worktrees.checked_out([kept.made_at]),
        ):
            pass
        assert len([*above.glob("results/.worktrees-*")]) == (when == "meanwhile")
        assert not [*above.glob("results/.worktrees-*/*")]
    finally:  # other tests have this clone, too
        for folder in above.glob("results/.worktrees-*"):
            folder.rmdir()
        (kept.folder / "results").unlink()
        (above / "results").rename(kept.folder / "results")


@pytest.mark.medium
def test_the_second_of_two_machines_has_nothing_to_compare(kept):
    """Its rows are the first one's, which compares. Mutant: load the set all the same, and end with an error."""
    reported = {"NNODES": 2, "NODE_RANK": 1, "RDZV_ENDPOINT": "127.0.0.1:29411", "LEAVES": "nothing"}
    done = kept.program("scripts.publish.reproduce", SET="results/made", RESULTS="results/second", **reported)
    assert done.returncode == 0 and not (kept.folder / "results/second/runs.csv").exists(), done.stderr


def test_what_runs_is_the_users_and_not_the_sets(kept, monkeypatch):
    """Protects from a set's choice of image, partition and images: a run gets the user's, and its settings say so.
    Mutants: CONTAINER from `asked`; `data` from `asked`; the user's CONTAINER not recorded."""
    (run,) = json.loads((kept.set / MANIFEST).read_text())["runs"]
    reported = {"container": "docker://evil", "partition": "evil", "cpus_per_task": "3", "data": "/evil"}
    for name in ("CONTAINER", "PARTITION", "DATA"):
        monkeypatch.setenv(name, "")
    made = reproduce._run(run["asked"] | reported, 1, "mine")
    assert (
        not {"container", "partition"} & made.requested.keys() and made.requested["data"] == made.config.data == "mine"
    )
    assert "evil" not in str(made.variables) and made.variables["CPUS_PER_TASK"] == "3"
    assert reproduce._data(run["asked"] | reported, kept.set) == os.path.abspath("data/imagenet-mini")
    monkeypatch.setenv("CONTAINER", "mine.sif")
    made = reproduce._run(run["asked"] | reported, 1, "mine")
    assert made.requested["container"] == made.variables["CONTAINER"] == "mine.sif"


def test_a_bf16_that_this_cpu_emulates_is_left_out_with_its_reason(kept, monkeypatch):
    """Protects from hours for a run that nobody asked for: the set was made where bf16 is native. Mutants: all runs
    start; --anyway changes nothing; fp32 is left out, too."""
    (run,) = json.loads((kept.set / MANIFEST).read_text())["runs"]
    chosen = [run, run | {"label": "single, bf16", "asked": run["asked"] | {"precision": "bf16"}}]
    monkeypatch.setenv("NUM_GPUS", "0")

    def reasons(flags: list[str], anyway: bool) -> dict[str, str]:
        monkeypatch.setattr(preflight, "vector_flags", lambda: flags)
        planned = reproduce.plan_rounds(chosen, kept.set, anyway)(1)
        return {planned_run.config.precision: planned_run.variables.get("SKIP", "") for planned_run in planned}

    without_bf16 = reasons(["sse2", "avx2"], anyway=False)
    assert without_bf16["fp32"] == "" and without_bf16["bf16"].endswith("to time it all the same, use -- --anyway")
    none = {"fp32": "", "bf16": ""}
    assert reasons(["sse2", "avx2"], anyway=True) == none == reasons(["sse2", "avx512bw"], anyway=False)


@pytest.mark.parametrize("harm", ["link", "link of a folder", "fifo"])
def test_a_set_with_links_or_pipes_is_refused(kept, harm, tmp_path):
    """Protects what lies outside the set, and from waiting for ever. Mutant: links followed."""
    path = kept.set / "logs" / "evil"
    if harm == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path if "folder" in harm else "/etc/passwd")
    try:
        reported = json.loads((kept.set / MANIFEST).read_text())
        assert any("evil is a link or no regular file" in line for line in find_faults(kept.set, reported))
    finally:
        path.unlink()


def test_a_listed_file_that_is_a_link_is_refused_in_a_line(kept):
    """Protects from a traceback, and from a link that leads within the set and elsewhere in a copy. Mutant: checksums
    taken where there is a link."""
    path, aside = kept.set / "runs.csv", kept.set / "logs" / "aside.csv"
    path.rename(aside)
    path.symlink_to("logs/aside.csv")
    try:
        lines = find_faults(kept.set, json.loads((kept.set / MANIFEST).read_text()))
        assert lines == ["runs.csv is a link or no regular file, and no set is published with one"]
    finally:
        path.unlink()
        aside.rename(path)


def test_a_set_without_a_manifest_is_reported(kept, monkeypatch):
    (kept.set / MANIFEST).rename(kept.set / "aside")
    try:
        done = kept.program("scripts.publish.reproduce", SET="results/made")
    finally:
        (kept.set / "aside").rename(kept.set / MANIFEST)
    assert done.returncode == 2 and "has no manifest.json" in done.stderr and len(done.stderr.splitlines()) == 1


def timed(folder, device_name):
    """A set with one more run of a machine."""
    row = {"run_id": device_name, "strategy": "single", "status": "ok", "repeat": 1, "images_per_s": 100.0}
    row |= {"world_size": 1, "nodes": 1, "threads_per_rank": 1, "device_name": device_name}
    append_rows(folder, "runs", [recorded(folder, row)])
    return load_set(folder)


def test_runs_of_two_machines_are_not_taken_for_one(tmp_path):
    """Protects the ratio of a set that was gone on with elsewhere. Mutant: the later group in place of the first."""
    (tmp_path / "before").mkdir()
    (tmp_path / "again").mkdir()
    before = timed(tmp_path / "before", "one CPU")
    once = reproduce.with_labels_of(timed(tmp_path / "again", "one CPU"), before)
    assert [group.label for group in once.groups] == ["single"]
    with pytest.raises(UserError, match="has single of several versions or machines"):
        reproduce.with_labels_of(timed(tmp_path / "again", "another CPU"), before)


@pytest.mark.slow
def test_real_training_comes_out_as_it_was(tmp_path):
    """Two strategies that train, run again: the same settings, a ratio for both, and why two rounds give no verdict."""
    made = Published(tmp_path, "single ddp", REPEATS=2)
    done = made.program("scripts.publish.reproduce", SET="results/made", RESULTS="results/again", ARGS="--day-sd 5%")
    assert done.returncode == 0, done.stderr
    again = read_table(made.folder / "results/again", "runs")
    assert [*again[again.repeat > 0].status] == ["ok"] * 4 and set(again.commit) == {made.made_at[:12]}
    for name in ("single", "ddp"):
        assert re.search(rf"(?m)^{name} +\d\.\d+ +no verdict: fewer than 5 rounds", done.stdout)
    assert made.left_over() == []
