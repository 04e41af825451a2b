"""The plan: what is started, what counts as done already, and what a launcher of any checkout can rely on."""

import shutil
import subprocess

import pytest
from support import NUM_TRAIN, draw_images, finish

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.data import pack
from scripts.runner import plan, preflight, rounds
from scripts.shared import gpus, source_version
from scripts.shared.nodes import ranks_and_nodes
from scripts.verify import cases


def named(request) -> list[plan.Run]:
    """The runs of one round."""
    return plan.name_runs(plan.plan_strategies(request))


def planned(request) -> list[plan.Run]:
    """Of all rounds."""
    return rounds.planned_runs(named(request), request)


# --- done already -----------------------------------------------------------------------------------------------------


def test_a_suite_is_done_where_every_run_has_its_row(make_request, tmp_path):
    """Given again, only what is missing, interrupted, or named by --retry is run."""
    runs, results = planned(make_request()), tmp_path / "a set"
    names = [(run.round, run.strategy) for run in runs]
    assert sorted(names) == [(1, "ddp"), (1, "single"), (2, "ddp"), (2, "single")] and names[0][1] != names[2][1]
    assert plan.remaining_runs(runs, results) == runs == plan.remaining_runs(runs, None)
    for run, status in zip(runs, ("ok", "failed", "interrupted"), strict=False):
        finish([run], results, status)
    assert plan.remaining_runs(runs, results) == runs[2:]
    assert plan.remaining_runs(runs, results, "failed") == runs[1:]
    finish(runs[2:], results)  # the last row of a run counts
    assert plan.remaining_runs(runs, results) == []


@pytest.mark.parametrize(
    ("flags", "differs"),
    [
        ("--norm group", True),
        ("--bucket-cap-mb 25", True),
        ("--image-size 32", False),  # what the file says already
        ("--checkpoint-dir /tmp/x", False),
    ],
)
def test_a_suite_runs_again_exactly_what_differs(make_request, tmp_path, flags, differs):
    results = tmp_path / "a set"
    finish(planned(make_request()), results)
    other = planned(make_request(ARGS=flags, STRATEGIES="single ddp ddp_spawn"))
    new = [run for run in other if run.strategy == "ddp_spawn"]
    assert plan.remaining_runs(other, results) == (other if differs else new)


def test_other_ranks_threads_and_images_are_other_runs(make_request, tmp_path):
    """A copy of the images elsewhere is the same."""
    results = tmp_path / "a set"
    for part, seed in (("train", 0), ("val", 1)):
        draw_images(tmp_path / "images" / part, NUM_TRAIN, seed)
    shutil.copytree(tmp_path / "images", tmp_path / "a copy")
    shutil.copytree(tmp_path / "images", tmp_path / "changed")
    next((tmp_path / "changed" / "train").rglob("*.JPEG")).rename(tmp_path / "changed" / "train" / "waves" / "x.JPEG")
    folder = {"ARGS": "--loader folder", "DATA": tmp_path / "images"}
    finish(planned(make_request(**folder)), results)

    def left(**variables) -> int:
        return len(plan.remaining_runs(planned(make_request(**folder | variables)), results))

    assert left() == left(DATA=tmp_path / "a copy") == 0
    assert left(DATA=tmp_path / "changed") == left(NPROC=4) == left(THREADS_PER_RANK=7) == 4
    assert left(NNODES=2) == 2  # of ddp: single has one node anyway


# --- which runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "threads"),
    [({}, [2, 4]), ({"NPROC": 1}, [4]), ({"NUM_GPUS": 2, "NPROC": 2}, [2]), ({"STRATEGIES": "single ddp"}, [2])],
)
def test_one_process_on_all_cores_is_a_reference_on_cpus(make_request, monkeypatch, variables, threads):
    """A run more, where it differs from single's."""
    monkeypatch.setattr(machine, "num_cores", lambda: 4)
    monkeypatch.setattr(plan, "_fingerprint", lambda *_: "")
    runs = named(make_request(**{"STRATEGIES": ""} | variables))
    plain = [run for run in runs if (run.strategy, run.config.precision) == ("single", "fp32")]
    assert sorted(run.requested["threads_per_rank"] for run in plain) == threads


def test_an_a_a_suite_runs_the_baseline_twice_a_round_under_two_names(make_request):
    """Both halves are the same run, but for the name, and there whatever strategies are named."""
    runs = planned(make_request(STRATEGIES="ddp", REPEATS=2, AA="yes"))
    for number in (1, 2):
        names = {run.name: run for run in runs if run.round == number}
        assert names.keys() == {"single", "single, again", "ddp"}
        first, again = names["single"], names["single, again"]
        assert again.requested == first.requested | {"label": "again"} and again.variables == first.variables
        assert again.flags == "--label again"


def test_packed_files_alone_are_enough_for_a_plan(make_request, own_data, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    variables = {"STRATEGIES": "single", "REPEATS": 1, "ARGS": "--loader packed", "DATA": own_data}
    pack.main(pack.PackOptions(str(own_data)))
    (beside,) = plan.plan_strategies(make_request(**variables))
    for part in ("train", "val"):
        shutil.rmtree(own_data / part)
    plan._fingerprint.cache_clear()
    (alone,) = plan.plan_strategies(make_request(**variables))
    assert alone.requested == beside.requested and alone.requested["fingerprint"].startswith("4-40-23-")
    with pytest.raises(UserError, match="train/ is not there"):
        cases.cases_of_request(make_request(**variables), 20)  # the proof's reference reads the files


WITH_AVX2, WITH_AVX512 = ["avx2", "fma", "sse2"], ["avx2", "avx512bw", "fma", "sse2"]


def test_nobody_waits_for_a_bf16_that_the_cpu_emulates(make_request, monkeypatch):
    """What the user has asked for runs."""

    def skipped(flags: list[str], **given: str) -> list[tuple[str, str]]:
        monkeypatch.setattr(preflight, "vector_flags", lambda: flags)
        runs = named(make_request(**given))
        return sorted((run.strategy, run.name) for run in runs if run.skip)

    assert skipped(WITH_AVX2, STRATEGIES="") == [("ddp_amp", "ddp_amp"), ("single", "single, bf16")]
    assert skipped(WITH_AVX512, STRATEGIES="") == []
    assert skipped(WITH_AVX2, STRATEGIES="single ddp_amp") == []
    assert skipped(WITH_AVX2, STRATEGIES="", ARGS="--precision bf16") == []


@pytest.mark.parametrize(
    ("args", "capability", "more"),
    [
        ("", None, [("single", "bf16", 2)]),
        ("", (7, 0), [("ddp_amp", "fp32", 1)]),  # it runs auto's choice, fp16, on one rank
        ("--precision auto", (8, 0), []),
    ],
)
def test_the_baseline_is_timed_in_every_precision_that_is_used(make_request, monkeypatch, args, capability, more):
    """Without a baseline in its own precision, a mixed one has no ratio."""
    monkeypatch.setattr(gpus, "min_compute_capability", lambda: capability)
    runs = named(make_request(STRATEGIES="single ddp ddp_amp", ARGS=args))
    found = [(run.strategy, run.config.precision, run.requested["ranks"]) for run in runs]
    asked = args.removeprefix("--precision ") or "fp32"
    assert sorted(found) == sorted([*((name, asked, 2) for name in ("single", "ddp", "ddp_amp")), *more])
    assert len(named(make_request(STRATEGIES="ddp ddp_amp", ARGS=args))) == 2


# --- ranks and machines -----------------------------------------------------------------------------------------------


def test_machines_that_a_launcher_would_not_use_are_refused(make_request):
    make_request(HOSTS="a:4,b:4")
    preflight.check_nodes_variables(["single", "horovod_ddp"])
    with pytest.raises(UserError, match="HOSTS would not reach ddp"):
        preflight.check_nodes_variables(["horovod_ddp", "ddp"])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (4, 1)),
        ({"NNODES": 2}, (8, 2)),
        ({"HOSTS": "a:4,b:3"}, (7, 2)),
        ({"SLURM_JOB_NUM_NODES": 3}, (12, 3)),
        ({"SLURM_JOB_NUM_NODES": 3, "NNODES": 2}, (8, 2)),
    ],
)
def test_ranks_of_all_machines(monkeypatch, variables, expected):
    for name in ("HOSTS", "NNODES", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    assert ranks_and_nodes(4) == expected


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NNODES": "abc"}, "NNODES is 'abc', but must be a number of nodes"),
        ({"NNODES": 2, "NODE_RANK": 2}, "NODE_RANK is 2, but must be less than NNODES, which is 2"),
        ({"NPROC": "2.5"}, r"NPROC is '2\.5', but must be a number of ranks, 1 or more"),
        ({"HOSTS": "a:0"}, "HOSTS is 'a:0'"),
        ({"HOSTS": "-oProxyCommand=x:4"}, "HOSTS is '-oProxyCommand=x:4'"),  # which ssh would take for an option
        ({"NNODES": 2, "RDZV_ENDPOINT": "node0"}, "RDZV_ENDPOINT is 'node0', but must be host:port"),
    ],
)
def test_a_contradictory_request_is_refused_at_once(make_request, monkeypatch, variables, words):
    monkeypatch.delenv("RDZV_ENDPOINT", raising=False)
    with pytest.raises(UserError, match=words):
        make_request(**variables)
        ranks_and_nodes(2)
        preflight.check_rendezvous()


# --- the source ---------------------------------------------------------------------------------------------------


def test_local_changes_are_distinguished(tmp_path, monkeypatch):
    """Changed files count, and new ones, also where the user has git ask another program for differences."""

    def git(*words):
        ident = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *ident, *words], check=True, capture_output=True)

    def changes() -> str:
        source_version.local_changes.cache_clear()
        return source_version.local_changes()

    monkeypatch.setattr(source_version, "ROOT", tmp_path)
    git("init", "-q")
    git("config", "diff.external", "true")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-qm", "first")
    assert changes() == "" and len(source_version.commit()) == 12
    found = set()
    for name, text in (("a.py", "2"), ("a.py", "3"), ("new.py", "1"), ("new.py", "2")):
        (tmp_path / name).write_text(text)
        found.add(changes())
    assert len(found) == 4 and "" not in found


def test_without_git_the_sources_have_a_hash(tmp_path, monkeypatch):
    """Edited code is another program, and a warning says that rows have no commit."""
    monkeypatch.setattr(source_version, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "scripts").mkdir()
    found = []
    for text in ("1", "2", "1"):
        (tmp_path / "scripts" / "a.py").write_text(text)
        (tmp_path / "scripts" / "a.pyc").write_text(str(len(found)))
        source_version.local_changes.cache_clear()
        found.append(source_version.local_changes())
    source_version.local_changes.cache_clear()
    assert source_version.commit() is None and found[0] == found[2] != found[1] and all(found)
    assert "no commit, but a hash of the sources" in source_version.warning_without_commit()
