"""make gpu-check: its list, its order, its deadline, what a second call does, its page; and small real checks.

.venv/bin/python -m pytest tests/gpu_check/test_gpu_check.py -m "not slow"
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from fault_runs import processes_of
from support import ROOT, STRATEGIES, environment

from benchmarks.common.config import load_config
from benchmarks.common.rows import append_rows
from benchmarks.common.run_folder import RunFolder
from scripts.gpu_check import run, timed_checks, verdicts
from scripts.gpu_check.check import DRY, GPU, NEEDS, Check, Here
from scripts.gpu_check.check_page import write_page
from scripts.gpu_check.check_process import launcher_of, planned
from scripts.gpu_check.check_queue import Capabilities, work
from scripts.gpu_check.check_state import Deadline, State
from scripts.gpu_check.checks import checks
from scripts.options.run_options import GpuCheckFlags
from scripts.runner import processes
from scripts.runner.kernel_variables import kernel_variables

pytestmark = [pytest.mark.real_interpreter]  # signals to processes and groups

EVIL = "<script>alert(1)</script>|[x](javascript:y)"


DONE = verdicts.printed(r"^done.*")


def shell(name: str, text: str, tmp_path, find_verdict=DONE, estimate_s=0.0, **other) -> Check:
    """A check that is a line of sh."""
    variables = {"RESULTS": str(tmp_path), "MARKS": str(tmp_path / "marks")}
    other |= {"estimate_s": estimate_s}
    return Check(name, f"that {name} works", ("sh", "-c", text), find_verdict, variables, **other)


def do(listed, tmp_path, deadline=None, **capabilities) -> tuple[State, dict[str, str]]:
    state = State(tmp_path / "checks")
    return state, work(listed, state, deadline or Deadline(), Capabilities(**capabilities))


def statuses(state: State) -> dict[str, str]:
    return {name: found["status"] for name, found in state.ended.items()}


# --- the list ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [pytest.param(GPU, marks=pytest.mark.medium), DRY], ids=["gpu", "dry"])
@pytest.mark.medium
def test_every_check_of_the_list_can_be_planned(scale, tmp_path, monkeypatch):
    """Protects the nine minutes on a GPU: no command there may be refused for its words."""
    monkeypatch.setenv("NUM_GPUS", "1" if scale is GPU else "0")
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    listed = checks(scale, tmp_path)
    names = [check.name for check in listed]
    assert len(set(names)) == len(names)
    for place, check in enumerate(listed):
        assert set(check.needs) <= NEEDS.keys()
        assert not check.after or check.after in names[:place], check.name
        assert tmp_path in (check.results, *check.results.parents)
        if launcher_of(check):
            asked = planned(check)
            assert (ROOT / "launchers" / f"{asked.strategy}.sh").exists()
            assert asked.config.precision == (check.precision or asked.config.precision)
        elif "ARGS" in check.variables:
            load_config(["--config", check.variables["CONFIG"], *check.variables["ARGS"].split()])
        if "--precision" in check.argv:
            load_config([*check.argv[check.argv.index("--config") :]])
        if check.argv[1:2] == ("-m",):
            assert (ROOT / (check.argv[2].replace(".", "/") + ".py")).exists()
    trained = {launcher_of(check).stem for check in listed if launcher_of(check)}
    assert trained == set(STRATEGIES)
    assert {f"proof {name}" for name in STRATEGIES} - set(names) == {"proof apex_ddp", "proof horovod_ddp"}


@pytest.mark.parametrize("scale", [GPU, DRY], ids=["gpu", "dry"])
def test_what_a_user_would_publish_comes_first(scale, tmp_path):
    """Protects a GPU's first minutes: 44 short runs and 15 proofs came before the first timed run, in fp32."""
    names = [check.name for check in checks(scale, tmp_path)]
    points = ["single bf16", "ddp bf16", "ddp_amp fp16"]
    timed = [f"time {point} channels_last" for point in points]
    ways = ["", " compile", " many images", " many images compile"]
    expected = ["environment", "alone", *(name + way for way in ways for name in timed), "profile", "energy"]
    assert names[: len(expected)] == expected and names.index("time single bf16 channels_last") < 8
    rest = names[len(expected) :]
    (first_proof,) = [place for place, name in enumerate(rest) if name == "proof single"]
    assert rest[first_proof - 1 : first_proof + 3] == ["data", "proof single", "proof ddp", "proof ddp_amp"]
    assert not any(name.startswith(("time", "option", "fault", "build")) for name in rest[:first_proof])
    assert {name for name in STRATEGIES if f"{name} fp32" in rest[:first_proof]} >= {"single", "ddp", "fsdp"}
    listed = {check.name: check for check in checks(scale, tmp_path)}
    assert all(("--compile" in listed[name].command) == name.endswith("compile") for name in expected[2:-2])
    large, small = (listed["time single bf16 channels_last" + way].command for way in (" many images", ""))
    assert (scale.many_images in large, scale.images in small) == (True, True) and large != small


def test_what_a_user_would_publish_fits_before_the_deadline(tmp_path):
    """Protects the first nine minutes: by the estimates, twelve timed runs did not fit. Mutants: 15 s more to compile;
    44 steps of 1,024 images."""
    listed = checks(GPU, tmp_path)
    first = listed[: [check.name for check in listed].index("profile")]
    assert sum(check.timed for check in first) == 1 + 12
    begins_s = 10.0  # imports and forecasts, before the first check
    assert begins_s + sum(check.estimate_s for check in first) <= run.DEADLINE_S
    for check in first[2:]:  # as many images in each: the estimate is made of their number
        config = planned(check).config
        assert config.steps * config.batch_per_device == timed_checks.NUM_IMAGES, check.name
        assert config.steps >= config.warmup_steps + config.windows * config.window_steps
        assert config.window_steps * config.batch_per_device == 2048, check.name


def test_both_of_torchs_process_groups_for_nccl_are_timed_on_several_gpus(tmp_path):
    """Protects the answer to whether ddp's buckets overlap in torch 2.15's new group: the same run with it, which is
    another setting. Mutant: the variable left out."""
    listed = {check.name: check for check in checks(GPU, tmp_path)}
    default = listed["time ddp bf16 channels_last"]
    new = listed["time ddp bf16 channels_last new nccl group"]
    assert new.variables == default.variables | {"TORCH_DIST_USE_NCCL2": "1"} and new.timed
    assert (new.argv, new.find_verdict) == (default.argv, default.find_verdict)
    assert {*new.needs} == {*default.needs, "two_gpus", "two_nccl_groups"} and new.results == default.results
    assert kernel_variables(new.variables) != kernel_variables(default.variables)


def test_a_torch_with_one_process_group_for_nccl_skips_its_check(monkeypatch):
    """Protects machines with torch before 2.15: the same run twice would be no comparison."""
    two_gpus = Here(2, (9, 0), True)
    for names, expected in (([], False), (["nccl", "nccl-legacy"], True)):
        backends = [SimpleNamespace(name=name) for name in names]
        monkeypatch.setattr("scripts.gpu_check.check.entry_points", lambda group, found=backends: found)
        assert NEEDS["two_nccl_groups"][1](two_gpus) == expected


def test_images_are_a_check_and_only_what_reads_them_waits(tmp_path):
    """Protects a GPU where scikit-image is missing: make gpu-check stopped there before its first check."""
    for scale in (DRY, dataclasses.replace(DRY, data="/my images")):
        listed = {check.name: check for check in checks(scale, tmp_path)}
        assert (scale.data or "scripts.data.mini") in " ".join(listed["data"].argv)
        assert {name for name in listed if listed[name].after == "data"} == {
            "loader",
            "overhead",
            "option no prefetch",
            *(name for name in listed if name.startswith("proof ")),
        }


def test_what_is_timed_is_in_the_set_and_the_rest_is_not(tmp_path):
    """Protects the report: images/s of runs that shared the device stand in no set beside those that did not."""
    for check in checks(GPU, tmp_path):
        if launcher_of(check):
            assert (check.results == tmp_path) <= check.timed, check.name


# --- order, deadline, going on ----------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("field", ["timed", "alone"])
def test_timed_checks_run_alone_and_others_at_once(tmp_path, field):
    """Protects the timed figures from the other checks, and the nine minutes from waiting."""
    begun = 'until [ "$(grep -c ^+ "$MARKS")" -ge {1} ]; do sleep 0.05; done'  # so a waits for b, and c for d
    mark = f'echo "+{{0}}" >> "$MARKS"; {begun}; sleep 0.3; echo "-{{0}}" >> "$MARKS"; echo done'
    order = {"a": 2, "b": 2, "t": 3, "c": 5, "d": 5}
    listed = [shell(name, mark.format(name, num), tmp_path, **{field: name == "t"}) for name, num in order.items()]
    state, left = do(listed, tmp_path, max_at_once=2)
    marks = (tmp_path / "marks").read_text().split()
    assert set(statuses(state).values()) == {"passed"} and not left
    assert set(marks[:2]) == {"+a", "+b"} and marks[4:6] == ["+t", "-t"] and set(marks[6:8]) == {"+c", "+d"}


def test_nothing_starts_that_does_not_fit_before_the_deadline(tmp_path):
    """Protects the end of the lease: what does not fit is listed, and what still fits is run."""
    listed = [shell("long", "echo done", tmp_path, estimate_s=60), shell("short", "echo done", tmp_path, estimate_s=1)]
    state, left = do(listed, tmp_path, deadline=Deadline(10))
    assert statuses(state) == {"short": "passed"} and left == {"long": "not reached before the deadline"}
    state, left = do(listed, tmp_path)
    assert statuses(state) == {"short": "passed", "long": "passed"} and not left


@pytest.mark.medium
def test_the_deadline_ends_what_takes_longer_than_it_said(tmp_path, monkeypatch):
    """Protects the page: a check that overruns is ended, and is no failure, for nobody knows."""
    monkeypatch.setattr("scripts.gpu_check.check_process.OVERTIME_S", 0.5)
    listed = [shell("slow", "sleep 60; echo done", tmp_path)]
    state, left = do(listed, tmp_path, deadline=Deadline(0.5))
    assert state.ended == {} and left == {"slow": "not reached: the deadline cut it short"}


@pytest.mark.medium
def test_runs_of_a_check_that_had_to_be_killed_are_ended(tmp_path, monkeypatch):
    """Protects the GPU's memory: a proof that does not answer leaves ranks, which no parent knows."""
    monkeypatch.setattr("scripts.gpu_check.check_process.GRACE_S", 0.2)
    monkeypatch.setattr("scripts.runner.processes.GRACE_S", 0.2)
    logs = tmp_path / "proof/verify/logs/x"
    text = f"trap '' TERM; mkdir -p {logs}; RUN_DIR={logs} setsid sh -c 'trap : TERM; sleep 60; sleep 60' & wait; wait"
    check = shell("proof", text, tmp_path, limit_s=1.0)
    state, _ = do([dataclasses.replace(check, variables={"RESULTS": str(tmp_path / "proof")})], tmp_path)
    assert statuses(state) == {"proof": "failed"} and logs.exists()
    assert processes.processes_of_run(logs) == []


def test_the_page_is_there_before_the_report(tmp_path, monkeypatch):
    """Protects nine minutes of a GPU: a report that hangs, and the end of the lease, cost the report only."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("NUM_GPUS", "0")
    monkeypatch.setenv("RESULTS", str(tmp_path / "set"))
    there, page = [], tmp_path / "set/gpu-check.html"
    monkeypatch.setattr(run, "checks", lambda scale, results: [shell("one", "echo done", tmp_path)])
    monkeypatch.setattr(run, "make_report", lambda results, limit_s: there.append(page.exists()))
    try:
        assert run.main(run.GpuCheckFlags()) == 0
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    assert there == [True]


def test_a_check_that_hangs_fails_at_its_own_limit(tmp_path):
    state, _ = do([shell("hangs", "sleep 60", tmp_path, limit_s=0.5), shell("next", "echo done", tmp_path)], tmp_path)
    assert statuses(state) == {"hangs": "failed", "next": "passed"}
    assert "not done after" in state.ended["hangs"]["words"]


def test_a_second_call_goes_on(tmp_path):
    """Protects the lent minutes: nothing runs twice, but what failed and is asked for again."""
    listed = [
        shell("good", 'echo x >> "$MARKS"; echo done', tmp_path),
        shell("bad", 'echo x >> "$MARKS"; exit 3', tmp_path),
    ]
    do(listed, tmp_path)
    state, left = do(listed, tmp_path)
    assert (tmp_path / "marks").read_text().split() == ["x", "x"] and not left
    assert statuses(state) == {"good": "passed", "bad": "failed"} and "exit code 3" in state.ended["bad"]["words"]
    state.forget("failed")
    work(listed, state, Deadline(), Capabilities())
    assert (tmp_path / "marks").read_text().split() == ["x", "x", "x"]


CALLED = """
import signal, sys
from pathlib import Path
from scripts.gpu_check.check import Check
from scripts.gpu_check.verdicts import printed
from scripts.gpu_check.check_state import Deadline, State
from scripts.gpu_check.check_queue import Capabilities, work
folder, signals = Path(sys.argv[1]), []
signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
variables = {"RESULTS": str(folder), "MARKS": str(folder / "marks")}
mark = 'echo {0} >> "$MARKS"; test "$WAITS" != {0} || exec sleep 3600; echo done'
listed = [Check(name, "", ("sh", "-c", mark.format(name)), printed("done"), variables, estimate_s=0) for name in "abc"]
work(listed, State(folder / "checks"), Deadline(), Capabilities(), signals)
"""


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
@pytest.mark.medium
def test_a_call_that_was_killed_goes_on_where_it_was(tmp_path, signum):
    """Protects the state: b was at work, and is run again; a is not; no process is left."""
    words = [sys.executable, "-c", CALLED, tmp_path]
    first = subprocess.Popen(words, cwd=ROOT, env=environment(WAITS="b"))
    marks, until = tmp_path / "marks", time.monotonic() + 60
    while time.monotonic() < until and not (marks.exists() and marks.read_text().split() == ["a", "b"]):
        time.sleep(0.05)
    first.send_signal(signum)
    first.wait(60)
    assert marks.read_text().split() == ["a", "b"]
    time.sleep(0.2)
    assert processes_of(tmp_path) == []
    subprocess.run(words, cwd=ROOT, env=environment(), check=True, timeout=60)
    assert marks.read_text().split() == ["a", "b", "b", "c"]


HERE = {"commit": "abc", "local_changes": "", "device": "H100"}


@pytest.mark.parametrize(
    ("ran", "words"),
    [
        ({"commit": "def"}, "ran at commit def: passed"),
        ({"local_changes": "c0ffee"}, "ran with other local changes: passed"),
        ({"device": "H200"}, "ran on H200: passed"),
        ({"ran": "sh -c true"}, "ran by another command: passed"),
        ({"commit": None, "device": None}, "ran at commit unknown, on an unknown device: passed"),
    ],
)
def test_what_ran_on_other_code_or_another_device_is_run_again(tmp_path, capsys, ran, words):
    """Protects the page, which says of this commit and this device what passed. Until it has run again, it has not
    passed. Mutants: each of the four not compared; a file of an older commit, which does not say, counted."""
    listed = [shell("first", 'echo x >> "$MARKS"; echo done', tmp_path), shell("next", "echo done", tmp_path)]
    work(listed, State(tmp_path / "checks", here=HERE), Deadline(), Capabilities())
    path = tmp_path / "checks/first.json"
    found = {name: value for name, value in (json.loads(path.read_text()) | ran).items() if value is not None}
    path.write_text(json.dumps(found))
    state = State(tmp_path / "checks", here=HERE)
    state.set_aside(listed)
    assert statuses(state) == {"first": "elsewhere", "next": "passed"} and state.ended["first"]["words"] == words
    write_page(tmp_path, listed, state, {}, on_gpu=False, remarks=[])
    assert words in (tmp_path / "gpu-check.html").read_text()
    run.print_begin(True, listed, state, 0)
    assert "1 of 2 checks are left" in capsys.readouterr().out
    work(listed, state, Deadline(), Capabilities())
    again = State(tmp_path / "checks", here=HERE)
    again.set_aside(listed)
    assert statuses(again) == {"first": "passed", "next": "passed"} and (tmp_path / "marks").read_text() == "x\nx\n"


def test_a_lost_gpu_ends_what_needs_it_and_nothing_else(tmp_path):
    """Protects the page's "where": the check in which it went, and the others as not reached; builds go on."""
    gone = "echo 'RuntimeError: CUDA error: GPU is lost'; exit 1"
    listed = [shell("first", "echo done", tmp_path), shell("dies", gone, tmp_path)]
    listed += [
        shell("later", "echo done", tmp_path),
        shell("build x", "echo done", tmp_path, find_verdict=verdicts.library_built),
    ]
    state, left = do(listed, tmp_path, on_gpu=True, gpu_gone=lambda: "it does not answer")
    assert statuses(state) == {"first": "passed", "dies": "failed", "build x": "passed"}
    assert left == {"later": "not reached: the GPU was lost in dies: it does not answer"}


def test_a_plan_that_is_refused_is_that_checks_failure(tmp_path):
    """Protects the others: a GPU that plans cannot ask any more, or a program that is not there, ends one check."""
    (refused,) = [check for check in checks(DRY, tmp_path) if check.name == "ddp fp32"]
    refused = dataclasses.replace(refused, variables=refused.variables | {"ARGS": "--image-size 1"})
    missing = dataclasses.replace(shell("missing", "", tmp_path), argv=("no-such-program",))
    state, _ = do([refused, missing, shell("next", "echo done", tmp_path)], tmp_path)
    assert statuses(state) == {"ddp fp32": "failed", "missing": "failed", "next": "passed"}
    assert "image_size is 1" in state.ended["ddp fp32"]["words"]


def test_what_comes_after_a_failure_is_not_started(tmp_path):
    listed = [shell("a", "exit 1", tmp_path), shell("b", "echo done", tmp_path, after="a")]
    state, left = do(listed, tmp_path, max_at_once=2)
    assert statuses(state) == {"a": "failed"} and left == {"b": "not started: a has not passed"}


# --- verdicts -------------------------------------------------------------------------------------------------------

ROW = {"run_id": "r", "status": "ok", "device": "cuda", "precision": "bf16", "world_size": 1, "images_per_s": 9.0}


def ended(tmp_path, row: dict, **other) -> verdicts.Ended:
    append_rows(tmp_path, "runs", [row])
    return verdicts.Ended(0, tmp_path / "log", tmp_path, "r", **{"precision": "bf16", "on_gpu": True} | other)


@pytest.mark.parametrize(
    "change, status, words",
    [
        ({}, "passed", "1 GPU, cuda"),
        ({"device": "cpu"}, "failed", "ran on the CPU in place of the GPU"),
        ({"precision": "fp32"}, "failed", "bf16 was requested, and it ran in fp32"),
        ({"status": "skipped", "reason": "does not fit"}, "skipped", "does not fit"),
        ({"status": "timeout", "reason": "rank 1 gave no sign"}, "failed", "rank 1 gave no sign"),
    ],
)
def test_what_a_row_says(tmp_path, change, status, words):
    """Protects against a check that passes on another device, in another precision, or unseen beside others."""
    verdict = verdicts.run_ok(ended(tmp_path, ROW | change))
    assert verdict.status == status and words in verdict.words


def test_other_processes_are_said_of_what_is_timed(tmp_path):
    """Protects the page: checks that run several at once share the GPU with each other, and slowness is theirs."""
    crowded = ended(tmp_path, ROW | {"other_gpu_processes": 2})
    assert (
        "2 processes of others" in verdicts.run_timed(crowded).words and "others" not in verdicts.run_ok(crowded).words
    )


@pytest.mark.parametrize("num_gpus, cores, max_at_once", [(0, 2, 2), (1, 16, 6), (1, 8, 4), (8, 96, 1)])
def test_checks_side_by_side_have_cores_and_a_gpu_to_share(monkeypatch, num_gpus, cores, max_at_once):
    """Protects several GPUs: six checks of eight ranks each would wait for one another's collectives until they end."""
    monkeypatch.setattr("benchmarks.common.machine.num_cores", lambda: cores)
    monkeypatch.setattr("scripts.shared.gpus.gpu_memory_bytes", lambda num_used: 80e9)
    assert run.max_checks_at_once(num_gpus) == max_at_once


def test_a_fault_passes_only_as_itself(tmp_path):
    """Protects the faults: a run that survives, or fails of something else, is no proof."""
    find_verdict = verdicts.fails_with("failed", r"rank \d+: signal 9")
    assert find_verdict(ended(tmp_path, ROW)).status == "failed"
    other = ROW | {"status": "failed", "reason": "rank 1: out of memory"}
    (tmp_path / "2").mkdir()
    (tmp_path / "3").mkdir()
    assert find_verdict(ended(tmp_path / "2", other)).status == "failed"
    assert (
        find_verdict(ended(tmp_path / "3", other | {"reason": "rank 0: signal 9, possibly out of memory"})).status
        == "passed"
    )


def test_what_a_run_leaves_is_counted_before_it_is_ended(tmp_path, monkeypatch):
    """Protects the same, by a real process that outlives a run's launcher."""
    folder = RunFolder.create(tmp_path, "x", 1)
    text = f"RUN_DIR={folder.path} setsid sleep 60 >/dev/null & sleep 0.3; echo done"
    check = shell(
        "leaves", text, tmp_path, find_verdict=lambda ended: verdicts.Verdict("passed", f"{ended.num_left} left")
    )
    check = dataclasses.replace(check, argv=(*check.argv, "launchers/x.sh"))  # so it is one run
    monkeypatch.setattr("scripts.gpu_check.check_process.begin", lambda check: (None, folder, {}))
    state, _ = do([check], tmp_path)
    assert state.ended["leaves"]["words"] == "1 left"
    assert processes.processes_of_run(folder.path) == []


@pytest.mark.parametrize(
    "strategy, parallel, status, words",
    [
        ("ddp", "yes", "passed", "bit-identical after 4 steps on 2 devices"),
        ("ddp", "no", "left", "on one device: no communication was tested"),
        ("single", "no", "passed", "bit-identical"),
    ],
)
def test_a_proof_without_an_exchange_is_left_for_several_gpus(tmp_path, strategy, parallel, status, words):
    """Protects the claim: on one GPU every strategy's sum over ranks is of one, and is right whatever it does."""
    proof = {"strategy": strategy, "run_id": "p", "steps": 4, "world_size": 2, "verdict": "ok", "bit_identical": True}
    append_rows(tmp_path, "equivalence", [proof])
    (tmp_path / "verify").mkdir()
    append_rows(tmp_path / "verify", "runs", [{"run_id": "p", "parallel": parallel}])
    verdict = verdicts.equivalence_proved(verdicts.Ended(0, tmp_path / "log", tmp_path))
    assert verdict.status == status and words in verdict.words


def test_what_is_not_proved_is_not_called_wrong(tmp_path):
    """Protects the strategies: rounding in which a mistake could hide says nothing against them."""
    for verdict, status in (("not proved", "skipped"), ("skipped", "skipped"), ("failed", "failed")):
        append_rows(tmp_path, "equivalence", [{"strategy": "ddp", "run_id": "p", "verdict": verdict, "reason": "why"}])
        assert verdicts.equivalence_proved(verdicts.Ended(1, tmp_path / "log", tmp_path)).status == status


@pytest.mark.parametrize(
    "find_verdict, text, status",
    [
        (verdicts.loader_timed, "loading costs 3 % of training", "passed"),
        (verdicts.loader_timed, "no verdict: the windows differ by too much", "skipped"),
        (verdicts.dataset_made, "make_dataset: scikit-image is not installed", "skipped"),
        (verdicts.gpu_unused, "4 MiB\n", "passed"),
        (verdicts.gpu_unused, "17, python, 900 MiB\n910 MiB\n", "failed"),
        (verdicts.gpu_unused, "4 MiB\n70000 MiB\n", "failed"),  # of the second GPU, by a process outside the container
        (verdicts.gpu_unused, "Field is not supported\n", "skipped"),
    ],
)
def test_what_was_not_seen_does_not_pass(tmp_path, find_verdict, text, status):
    """Protects against green where nothing was found out."""
    (tmp_path / "log").write_text(text)
    assert find_verdict(verdicts.Ended(int("not installed" in text), tmp_path / "log", tmp_path)).status == status


@pytest.mark.parametrize("skips, status", [(0, "passed"), (2, "failed"), (None, "failed")])
def test_cuda_graphs_pass_where_they_were_replayed(tmp_path, skips, status):
    """Protects the option: a run that quietly goes without them is no check of them."""
    assert verdicts.graphs_replayed(ended(tmp_path, ROW | {"cudagraph_skips": skips})).status == status


def test_energy_is_skipped_without_a_counter_and_failed_on_a_gpu(tmp_path):
    assert verdicts.energy_measured(ended(tmp_path, ROW)).status == "failed"
    mig_slice = ROW | {"device_name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb"}
    for name in "234":
        (tmp_path / name).mkdir()
    assert verdicts.energy_measured(ended(tmp_path / "4", mig_slice)).status == "skipped"
    assert verdicts.energy_measured(ended(tmp_path / "2", ROW | {"device": "cpu"}, on_gpu=False)).status == "skipped"
    assert (
        "0.25 J an image" in verdicts.energy_measured(ended(tmp_path / "3", ROW | {"energy_j_per_image": 0.25})).words
    )


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_escapes_and_says_all(tmp_path):
    """Protects its readers: texts of logs are no markup, and each check is on it once, with its command."""
    listed = [shell("good", f"echo 'done {EVIL}'", tmp_path), shell("bad", f"echo 'error: {EVIL}'; exit 1", tmp_path)]
    listed += [shell("gpu", "true", tmp_path, needs=("cuda",)), shell("two", "true", tmp_path, needs=("two_gpus",))]
    listed += [shell("late", "true", tmp_path)]
    state, _ = do(listed[:2], tmp_path)
    left = {"gpu": "needs an NVIDIA GPU", "two": "needs two NVIDIA GPUs or more", "late": "not reached"}
    write_page(tmp_path, listed, state, left, on_gpu=False, remarks=[EVIL])
    html, markdown = (tmp_path / "gpu-check.html").read_text(), (tmp_path / "gpu-check.md").read_text()
    assert "<script" not in html and "&lt;script&gt;" in html
    assert "<script" not in "".join(markdown.split("```")[::2])  # a fence shows what it holds
    assert html.index("This is a dry run") < html.index("Failed (1)") < html.index("Not reached (1)")
    for heading in ("Passed (1)", "Left for several GPUs (1)", "Needs what is not here (1)"):
        assert html.count(f"<h2>{heading}</h2>") == 1
    assert [html.count(f'class="name">{check.name}<') for check in listed] == [1] * 5
    assert "This is a dry run" in markdown and f"./bench gpu-check --results {tmp_path}" in html
    write_page(tmp_path, listed, state, left, on_gpu=True, remarks=[])
    assert "dry run" not in (tmp_path / "gpu-check.html").read_text()


def test_a_folder_is_of_a_gpu_or_of_a_dry_run(tmp_path):
    from benchmarks.common.errors import UserError

    (tmp_path / "checks").mkdir()
    run.claim_mode(tmp_path, False)
    run.claim_mode(tmp_path, False)
    with pytest.raises(UserError, match="holds a dry run"):
        run.claim_mode(tmp_path, True)


# --- real -------------------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_a_real_run_is_judged_by_its_row(tmp_path, monkeypatch):
    """Protects the way from the list to a row: planned here, launched with its own flags, found again."""
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    (check,) = [check for check in checks(DRY, tmp_path) if check.name == "single bf16"]
    state, left = do([check], tmp_path)
    assert statuses(state) == {"single bf16": "passed"}, state.ended
    assert not left and "1 rank, " in state.ended["single bf16"]["words"]
    found = json.loads((tmp_path / "checks/single-bf16.json").read_text())
    assert os.path.getsize(found["log"]) > 0 and (tmp_path / "short/runs.csv").exists()


@pytest.mark.slow
def test_a_killed_rank_and_a_loss_that_is_no_number(tmp_path, monkeypatch):
    """Protects the faults: made for real, found by name."""
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    listed = [check for check in checks(DRY, tmp_path) if check.name.startswith("fault")]
    state, _ = do([dataclasses.replace(check, timed=False) for check in listed], tmp_path)
    assert set(statuses(state).values()) == {"passed"}, state.ended


@pytest.mark.slow
def test_a_compiled_run_is_judged_by_its_row(tmp_path, monkeypatch):
    """Protects the compiled checks, which test_the_whole_dry_run leaves out."""
    monkeypatch.setenv("THREADS_PER_RANK", "2")
    (check,) = [check for check in checks(DRY, tmp_path) if check.name == "option compile"]
    state, _ = do([check], tmp_path)
    assert statuses(state) == {"option compile": "passed"}, state.ended


@pytest.mark.slow
def test_the_whole_dry_run(tmp_path, monkeypatch, capsys):
    """Protects make gpu-check where there is no GPU: exit code 0, every check reached, a page.

    As on a machine without a compiler: the ten checks that compile take half an hour of two cores.
    """
    monkeypatch.setattr(run, "missing_compiler", lambda on_gpu: "no compiler in this test")
    monkeypatch.setenv("RESULTS", str(tmp_path / "set"))
    exit_code = run.main(GpuCheckFlags())
    printed = capsys.readouterr()
    assert exit_code == 0, printed
    assert " 0 failed" in printed.out and " 0 not reached" in printed.out
    assert (tmp_path / "set/gpu-check.html").exists() and (tmp_path / "set/report.html").exists()
