"""The fault matrix: what becomes of a benchmark when things go wrong. Real processes, real signals, real disks.

    make test-faults
    .venv/bin/python -m pytest tests/faults/test_faults.py -m "not slow"

Faults are planted by tests/faults/sitecustomize.py. Each test compares the processes before and after. The matrix
with the measured seconds is printed after the tests.
"""

import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from fault_runs import Matrix, finish, output_of, patience, processes_of, run, start, until_planted
from support import ROOT

from benchmarks.common.checkpoint import load_checkpoint
from benchmarks.common.columns import TABLES
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError, timed_out
from benchmarks.common.rows import append_rows, read_table
from scripts.results.settings import add_settings, requested_settings, settings_hash
from scripts.runner.plan import last_statuses

NO_HOROVOD = "Horovod is not installed; scripts/setup/horovod.sh"
real_interpreter = pytest.mark.real_interpreter  # for signals to ranks and launchers, and who is whose child


@pytest.fixture(scope="module")
def matrix(request):
    lines = Matrix()
    request.config.pluginmanager.register(lines)
    return lines


@pytest.fixture
def results(tmp_path, tmp_path_factory) -> Path:
    """Where a test's runs leave their rows. After the test no process that knows the folder is alive."""
    assert processes_of(tmp_path) == []
    before = set(psutil.Process().children(recursive=True))  # such as multiprocessing's tracker, of other tests
    yield tmp_path / "a set"
    left = processes_of(tmp_path)
    for process in left:
        process.kill()
    assert left == [], "processes are left behind"
    assert set(psutil.Process().children(recursive=True)) <= before, "children are left behind"


def needs(strategy: str, matrix, number: int, fault: str) -> None:
    """Skips what needs Horovod where there is none."""
    if strategy == "horovod_ddp" and not find_spec("horovod"):
        matrix.skip(number, fault, NO_HOROVOD)


# ---- ranks that fail, die, hang -------------------------------------------------------------------------------


@real_interpreter
@pytest.mark.parametrize(
    "strategy", ["ddp", *(pytest.param(name, marks=pytest.mark.faults) for name in ("ddp_spawn", "horovod_ddp"))]
)
@pytest.mark.parametrize(
    "fault, reason",
    [
        pytest.param("raise rank=1 step=3", "rank 1: ArithmeticError: planted in this step", marks=pytest.mark.faults),
        ("kill rank=1 step=3", "rank 1: signal 9, possibly out of memory"),
    ],
)
def test_a_rank_that_fails_or_dies_is_named(matrix, results, strategy, fault, reason):
    """Protects the first cause: the row names the rank that failed, not the one that lost its peer."""
    number, title = (1, f"a rank raises ({strategy})") if "raise" in fault else (2, f"a rank is SIGKILLed ({strategy})")
    needs(strategy, matrix, number, title)
    ended = run(strategy, results, fault)
    assert (ended.code, ended.row["status"], ended.row["reason"]) == (1, "failed", reason)
    assert "last lines of" in ended.output
    assert not any(timed_out(cause["reason"]) for cause in ended.causes), "a rank waited timeout_s for the other"
    matrix.add(number, title, f"failed; {reason}", ended.seconds)


@real_interpreter
@pytest.mark.faults
@pytest.mark.parametrize("strategy", ["ddp", "horovod_ddp"])
def test_a_stopped_rank_is_named_when_the_others_stop_waiting(matrix, results, strategy):
    """timeout_s of the configuration bounds a collective; nobody calls the rank that torchrun killed out of memory."""
    title = f"a rank hangs, others wait timeout_s ({strategy})"
    needs(strategy, matrix, 3, title)
    ended = run(strategy, results, "stop rank=1 step=3", ARGS=f"--timeout-s {patience(10)}")
    assert (ended.code, ended.row["status"]) == (1, "timeout")
    assert ended.row["reason"].startswith("rank 1 was stopped by a signal and did not answer; rank 0: ")
    matrix.add(3, title, "timeout; rank 1 was stopped and did not answer", ended.seconds)


@real_interpreter
@pytest.mark.faults
def test_a_rank_that_never_answers_is_a_timeout(matrix, results):
    """Alive, but stuck: the others wait timeout_s for it, the row says so, and the log where it is stuck.

    Not Horovod: a stuck rank's own thread goes on to answer, and its ranks wait until the run's limit.
    """
    title = "a rank is stuck, others wait timeout_s (ddp)"
    ended = run("ddp", results, "hang rank=1 step=3", ARGS=f"--timeout-s {patience(5)}")
    assert (ended.code, ended.row["status"]) == (1, "timeout")
    assert ended.row["reason"].startswith("rank 0: ") and ended.row["reason"].endswith("; rank 1 gave no sign")
    assert "in hang_here" in ended.log
    matrix.add(3, title, "timeout; rank 1 gave no sign, its stack is in the log", ended.seconds)


@real_interpreter
@pytest.mark.faults
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_the_stacks_of_a_run_that_hangs_are_in_the_log(matrix, results, strategy):
    limit_s = patience(25)
    ended = run(strategy, results, "hang step=3", TIMEOUT=limit_s, ARGS=f"--timeout-s {4 * limit_s}")
    assert (ended.code, ended.row["status"]) == (1, "timeout")
    assert ended.log.count("in hang_here") == {"single": 1, "ddp": 2}[strategy]
    assert ended.row["reason"].startswith(f"not done after {limit_s} s") and ended.row["wall_s"] >= limit_s
    matrix.add(4, f"the whole run hangs ({strategy})", "timeout; every rank's stack is in the log", ended.seconds)


@pytest.mark.faults
@real_interpreter
@pytest.mark.parametrize("strategy", ["ddp", "horovod_ddp"])
def test_workers_end_when_their_launcher_is_killed(matrix, results, strategy):
    """torchrun's workers live in sessions of their own and outlive it."""
    title = f"{'torchrun' if strategy == 'ddp' else 'horovodrun'} is SIGKILLed"
    needs(strategy, matrix, 5, title)
    process = start([ROOT / "launchers" / f"{strategy}.sh"], results, "slow", ARGS="--steps 1000")
    until_planted(results)
    children = psutil.Process(process.pid).children()
    (launcher,) = [each for each in children if "scripts.runner.processes" not in each.cmdline()]
    assert "run" in launcher.cmdline()[2]  # torch.distributed.run, horovod.runner.launch
    began = time.monotonic()
    launcher.kill()
    ended = finish(process, results)
    assert (ended.code, ended.row["status"], ended.row["exit_code"]) == (1, "failed", -9)
    assert ended.row["reason"] == "its command: signal 9, possibly out of memory; the remaining processes were ended"
    matrix.add(5, title, "failed; no worker left", ended.ended_at - began)


@pytest.mark.faults
@real_interpreter
@pytest.mark.parametrize("loader", ["synthetic", "folder --workers 1"])
def test_sigterm_leaves_a_checkpoint_to_resume_from(matrix, results, tiny_data, loader):
    """Preemption: TERM, a checkpoint between two steps, 143, and --resume goes on from there.

    The signal reaches loader workers, too: a rank whose worker is killed fails before it can save.
    """
    args = f"--checkpoint-dir {results.parent}/ck --steps 60 --loader {loader}"
    process = start([ROOT / "launchers" / "ddp.sh"], results, "slow step=3", ARGS=args, DATA=tiny_data)
    until_planted(results)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    ended = finish(process, results)
    assert (ended.code, ended.row["status"]) == (143, "interrupted")
    assert "SIGTERM stopped the run; a checkpoint of step" in ended.log
    assert "; a checkpoint of step" in ended.row["reason"]
    seconds = ended.ended_at - began
    again = run("ddp", results, ARGS=f"{args} --resume", DATA=tiny_data)
    assert again.row["status"] == "ok" and "resumed at step" in again.log
    assert again.row["epoch_s"] != again.row["epoch_s"], "nobody knows how long the whole epoch took"
    matrix.add(20, f"SIGTERM with --checkpoint-dir (ddp, {loader})", "interrupted; 143; resumed", seconds)


# ---- machines that lack something ------------------------------------------------------------------------------


@real_interpreter
@pytest.mark.faults
@pytest.mark.parametrize("size, status", [("32k", "failed"), ("1m", "ok")])
def test_a_small_dev_shm_is_explained_or_enough(matrix, results, tiny_data, size, status):
    """At 32 kB the workers cannot start; Docker's 64 MB, and even 1 MB, are enough, for batches are not in there."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        matrix.skip(19, "/dev/shm is too small", "a mount namespace needs root")
    small = ["unshare", "-m", "bash", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "-"]
    args = f"--loader folder --workers 1 --image-size 224 --global-batch 16 --timeout-s {patience(5)}"
    process = start([*small, ROOT / "launchers" / "single.sh"], results, DATA=tiny_data, ARGS=args)
    ended = finish(process, results)
    assert (ended.code, ended.row["status"]) == (int(status == "failed"), status)
    if status == "failed":
        assert "/dev/shm may be full" in ended.row["reason"] and "--workers 0" in ended.row["reason"]
    matrix.add(19, f"/dev/shm has {size}", f"{status}; where it failed, it says so", ended.row["wall_s"])


# ---- numbers and data that are no good -------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("strategy, fault", [("ddp", "nan rank=1 step=4"), ("single", "inf step=4")])
def test_a_loss_that_is_no_number_stops_all_ranks(matrix, results, strategy, fault):
    ended = run(strategy, results, fault)
    assert (ended.code, ended.row["status"]) == (1, "invalid")
    assert "the loss was not finite at step 4" in ended.row["reason"]
    assert read_table(results, "epochs").empty, "nobody went on to evaluate"
    matrix.add(
        10, f"the loss becomes {fault.split()[0]} ({strategy})", f"invalid; {ended.row['reason']}", ended.seconds
    )


@pytest.mark.faults
def test_fewer_images_than_ranks_do_not_hang(matrix, results, own_data):
    for part in ("train", "val"):
        for path in sorted((own_data / part).rglob("*.JPEG"))[1:]:
            path.unlink()
        for folder in (own_data / part).iterdir():
            if not any(folder.iterdir()):
                folder.rmdir()
    ended = run("ddp", results, DATA=own_data, ARGS="--loader folder")
    assert (ended.row["status"], ended.row["val_samples"]) == ("ok", 1)
    matrix.add(18, "1 image for 2 ranks", "ok; it counts once", ended.row["wall_s"])


# ---- checkpoints, rows, disks ----------------------------------------------------------------------------------


@pytest.mark.faults
def test_checkpoints_are_whole_or_the_one_before_is_used(matrix, results, tmp_path):
    folder = tmp_path / "ck" / "single-1"
    args = f"--checkpoint-dir {folder.parent} --checkpoint-steps 1"
    ended = run("single", results, "torn_save save=3", ARGS=args)
    assert (ended.row["status"], ended.row["exit_code"]) == ("failed", -9)
    seconds = ended.seconds
    ended = run("single", results, ARGS=f"{args} --resume")
    assert ended.row["status"] == "ok" and "resumed at step" in ended.log
    matrix.add(14, "kill -9 during a checkpoint write", "failed; the last whole one resumes", seconds)

    last, whole = folder / "last.pt", (folder / "last.pt").read_bytes()
    for text, spoiled in {"truncated": whole[: len(whole) // 2], "empty": b"", "foreign": b"PK hello"}.items():
        last.write_bytes(spoiled)
        config = Config(checkpoint_dir=str(folder), resume=True)
        with pytest.raises(UserError, match=r"truncated or foreign.*use --resume-from previous"):
            load_checkpoint(config, 1000)
        print(text)
    ended = run("single", results, ARGS=f"{args} --resume")
    assert (ended.code, ended.row["status"]) == (1, "failed") and "--resume-from previous" in ended.row["reason"]
    ended = run("single", results, ARGS=f"{args} --resume --resume-from previous")
    assert ended.row["status"] == "ok" and "resumed at step" in ended.log
    matrix.add(13, "a truncated, empty or foreign checkpoint", "failed; says so; the one before resumes")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB, or None where mount is refused."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", folder], capture_output=True)
    yield folder if done.returncode == 0 else None
    if done.returncode == 0:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.faults
def test_a_full_disk_under_the_results_keeps_the_earlier_rows(matrix, results, small_disk):
    if not small_disk:
        matrix.skip(15, "disk full in results", "mount needs root")
    folder = small_disk
    assert run("single", folder).row["status"] == "ok"
    before = {path.name: path.read_text() for path in folder.glob("*.csv")}
    ended = run("single", folder, "fill step=3", FILL=small_disk / "fill", TMPDIR="/tmp")
    assert ended.code in (1, 2) and "No space left on device" in ended.output and "Traceback" not in ended.output
    assert all((folder / name).read_text().startswith(text) for name, text in before.items())
    assert (folder / "runs.csv").read_text() == before["runs.csv"]
    matrix.add(15, "disk full in results", "clear error; earlier rows intact", ended.seconds)


@pytest.mark.faults
def test_a_full_disk_under_the_checkpoints_is_reported(matrix, results, small_disk):
    if not small_disk:
        matrix.skip(15, "disk full in checkpoints", "mount needs root")
    ended = run("single", results, ARGS=f"--checkpoint-dir {small_disk}")  # ResNet-18 with momentum is 94 MB
    assert (ended.code, ended.row["status"]) == (1, "failed")
    assert "cannot write the checkpoint" in ended.row["reason"] and "No space" in ended.row["reason"], ended.row
    assert {path.name for path in small_disk.rglob("*")} == {"single-1"}
    assert not read_table(results, "windows").empty, "what was measured before is kept"
    matrix.add(15, "disk full in checkpoints", f"failed; {ended.row['reason']}")


@pytest.mark.faults
def test_a_half_written_line_costs_only_itself(matrix, results, capsys):
    results.mkdir()
    for table, columns in TABLES.items():
        key = "run_id" if "run_id" in columns else columns[0]
        status = {"status": "ok"} if "status" in columns else {}
        rows = [{key: f"single-{n}", columns[-1]: "x"} | status for n in range(3)]
        append_rows(results, table, rows)
        path = results / f"{table}.csv"
        path.write_text(path.read_text()[:-4])
        assert list(read_table(results, table)[key]) == ["single-0", "single-1"]
        assert f"{table}.csv: 1 of its lines are not whole" in capsys.readouterr().err
        append_rows(results, table, rows[2:])
        assert list(read_table(results, table)[key]) == ["single-0", "single-1", "single-2"]
        assert capsys.readouterr().err == ""
    for table in ("runs", "settings"):
        (results / f"{table}.csv").unlink()
    asked = requested_settings(Config(), "single", 2, 1, 1, "")
    done = {(settings_hash(asked), 1): "ok"}
    row = {"schema": 1, "run_id": "r", "strategy": "single", "status": "ok", "repeat": 1}
    append_rows(results, "runs", [row | {"settings": add_settings(results, asked)}])
    assert last_statuses(results) == done
    path = results / "runs.csv"
    whole = path.read_text()
    path.write_text(whole + "1,torn,single,ok,,0,2\n")  # a short line, which no chart counts
    assert last_statuses(results) == done
    path.write_text("run_id,strategy,status,repeat\nr,single,ok,1\n")  # an older schema: it does not say what it was
    assert last_statuses(results) == {}
    path.write_text(whole)
    append_rows(results, "runs", [row | {"run_id": "r2", "repeat": 2, "settings": add_settings(results, asked)}])
    assert last_statuses(results) == done | {(settings_hash(asked), 2): "ok"}
    matrix.add(16, "half-written last line in each CSV", "skipped with a warning; the next row is whole")


@real_interpreter
@pytest.mark.faults
def test_two_suites_at_once_do_not_meet(matrix, results, tmp_path, checkout):
    """Each makes a result set of its own; on one set the second is told who holds it."""
    for name in ("Makefile", "bench"):
        shutil.copy(ROOT / name, checkout)
    shutil.rmtree(checkout / "results", ignore_errors=True)
    process = start(
        ["make", "-C", checkout, "-j2", "bench-ddp", "bench-single"],
        results,
        RESULTS=None,
        SETUP="no",
        DATA="unused",
        REPEATS=1,
    )
    ended = finish(process, results)
    assert ended.code == 0
    sets = [path for path in (checkout / "results").iterdir() if not path.is_symlink()]
    found = sorted((row.strategy, row.status) for path in sets for row in read_table(path, "runs").itertuples())
    expected = [("ddp", "ok"), ("single", "ok")]
    assert len(sets) == 2 and found == expected
    first = start([checkout / "bench"], results, "slow", STRATEGIES="single", ARGS="--steps 1000")
    until_planted(results)
    output = output_of(results).read_text()
    second = finish(start([ROOT / "bench"], results, STRATEGIES="single"), results)
    assert second.code == 2 and "is in use by another suite" in second.output, output
    first.terminate()
    assert first.wait(60) == 143
    matrix.add(17, "make -j2; two suites on one set", "both right; the second says that another holds it")


# ---- clocks, endurance ----------------------------------------------------------------------------------------
