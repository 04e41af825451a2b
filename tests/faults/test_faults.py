"""What becomes of a benchmark when things go wrong: real processes, real signals, real disks. sitecustomize.py plants
the faults."""

import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from fault_runs import finish, patience, processes_of, run, start, until_planted
from support import ROOT

from benchmarks.common.checkpoint import load_checkpoint
from benchmarks.common.columns import TABLES
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError, timed_out
from benchmarks.common.rows import append_rows, read_table
from scripts.results.settings import add_settings, requested_settings, settings_hash
from scripts.runner.plan import last_statuses

pytestmark = pytest.mark.real_interpreter
HOROVOD = pytest.param("horovod_ddp", marks=pytest.mark.skipif(not find_spec("horovod"), reason="no Horovod"))


@pytest.fixture
def results(tmp_path) -> Path:
    """Where a test's runs leave their rows. After the test no process that knows the folder is alive."""
    before = set(psutil.Process().children(recursive=True))  # such as multiprocessing's tracker, of other tests
    yield tmp_path / "a set"
    left = processes_of(tmp_path)
    for process in left:
        process.kill()
    assert left == [], "processes are left behind"
    assert set(psutil.Process().children(recursive=True)) <= before, "children are left behind"


# ---- ranks that fail, die, hang -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", HOROVOD])
@pytest.mark.parametrize(
    "fault, reason",
    [
        ("raise rank=1 step=3", "rank 1: ArithmeticError: planted in this step"),
        ("kill rank=1 step=3", "rank 1: signal 9, possibly out of memory"),
    ],
)
def test_a_rank_that_fails_or_dies_is_named(results, strategy, fault, reason):
    """And not the one that lost its peer."""
    ended = run(strategy, results, fault)
    assert (ended.code, ended.row["status"], ended.row["reason"]) == (1, "failed", reason)
    assert "last lines of" in ended.output
    assert not any(timed_out(cause["reason"]) for cause in ended.causes), "a rank waited timeout_s for the other"


@pytest.mark.parametrize("fault", ["hang", "stop"])
def test_a_rank_that_never_answers_is_a_timeout(results, fault):
    """Stuck, or stopped by a signal: the others wait timeout_s for it, the row says so, and the log where it is stuck.
    Nobody calls the rank that torchrun then killed out of memory."""
    ended = run("ddp", results, f"{fault} rank=1 step=3", ARGS=f"--timeout-s {patience(5)}")
    assert (ended.code, ended.row["status"]) == (1, "timeout")
    assert ended.row["reason"].startswith("rank 0: ") and ended.row["reason"].endswith("; rank 1 gave no sign")
    assert fault == "stop" or "in hang_here" in ended.log


def test_the_stacks_of_a_run_that_hangs_are_in_the_log(results):
    limit_s = patience(25)
    ended = run("ddp", results, "hang step=3", ARGS=f"--limit-s {limit_s} --timeout-s {4 * limit_s}")
    assert (ended.code, ended.row["status"]) == (1, "timeout")
    assert ended.log.count("in hang_here") == 2
    assert ended.row["reason"].startswith(f"not done after {limit_s} s") and ended.row["wall_s"] >= limit_s


@pytest.mark.parametrize("strategy", ["ddp", HOROVOD])
def test_workers_end_when_their_launcher_is_killed(results, strategy):
    """torchrun's workers live in sessions of their own and outlive it."""
    process = start([ROOT / "launchers" / f"{strategy}.sh"], results, "slow", ARGS="--steps 1000")
    until_planted(results)
    children = psutil.Process(process.pid).children()
    (launcher,) = [each for each in children if "scripts.runner.processes" not in each.cmdline()]
    assert "run" in launcher.cmdline()[2]  # torch.distributed.run, horovod.runner.launch
    launcher.kill()
    ended = finish(process, results)
    assert (ended.code, ended.row["status"], ended.row["exit_code"]) == (1, "failed", -9)
    assert ended.row["reason"] == "its command: signal 9, possibly out of memory; the remaining processes were ended"


def test_sigterm_leaves_a_checkpoint_to_resume_from(results, tiny_data):
    """The signal reaches loader workers, too: a rank whose worker is killed fails before it can save."""
    args = f"--checkpoint-dir {results.parent}/ck --steps 60 --loader folder --workers 1"
    process = start([ROOT / "launchers" / "ddp.sh"], results, "slow step=3", ARGS=args, DATA=tiny_data)
    until_planted(results)
    process.send_signal(signal.SIGTERM)
    ended = finish(process, results)
    assert (ended.code, ended.row["status"]) == (143, "interrupted")
    assert "SIGTERM stopped the run; a checkpoint of step" in ended.log
    assert "; a checkpoint of step" in ended.row["reason"]
    again = run("ddp", results, ARGS=f"{args} --resume", DATA=tiny_data)
    assert again.row["status"] == "ok" and "resumed at step" in again.log
    assert again.row["epoch_s"] != again.row["epoch_s"], "nobody knows how long the whole epoch took"


# ---- machines that lack something ------------------------------------------------------------------------------


@pytest.mark.parametrize("size, status", [("32k", "failed"), ("1m", "ok")])
def test_a_small_dev_shm_is_explained_or_enough(results, tiny_data, size, status):
    """At 32 kB the workers cannot start; 1 MB is enough, for batches are not in there."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs root")
    small = ["unshare", "-m", "bash", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "-"]
    args = f"--loader folder --workers 1 --image-size 224 --global-batch 16 --timeout-s {patience(5)}"
    process = start([*small, ROOT / "launchers" / "single.sh"], results, DATA=tiny_data, ARGS=args)
    ended = finish(process, results)
    assert (ended.code, ended.row["status"]) == (int(status == "failed"), status)
    if status == "failed":
        assert "/dev/shm" in ended.row["reason"] and "--workers 0" in ended.row["reason"]


# ---- numbers and data that are no good -------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_all_ranks(results):
    ended = run("ddp", results, "nan rank=1 step=4")
    assert (ended.code, ended.row["status"]) == (1, "invalid")
    assert "the loss was not finite at step 4" in ended.row["reason"]
    assert read_table(results, "epochs").empty, "nobody went on to evaluate"


def test_fewer_images_than_ranks_do_not_hang(results, own_data):
    for part in ("train", "val"):
        for path in sorted((own_data / part).rglob("*.JPEG"))[1:]:
            path.unlink()
        for folder in (own_data / part).iterdir():
            if not any(folder.iterdir()):
                folder.rmdir()
    ended = run("ddp", results, DATA=own_data, ARGS="--loader folder")
    assert (ended.row["status"], ended.row["val_samples"]) == ("ok", 1)


# ---- checkpoints, rows, disks ----------------------------------------------------------------------------------


def test_checkpoints_are_whole_or_the_one_before_is_used(results, tmp_path):
    folder = tmp_path / "ck" / "single-1"
    args = f"--checkpoint-dir {folder.parent} --checkpoint-steps 1"
    ended = run("single", results, "torn_save save=3", ARGS=args)
    assert (ended.row["status"], ended.row["exit_code"]) == ("failed", -9)
    ended = run("single", results, ARGS=f"{args} --resume")
    assert ended.row["status"] == "ok" and "resumed at step" in ended.log

    last, whole = folder / "last.pt", (folder / "last.pt").read_bytes()
    for spoiled in (whole[: len(whole) // 2], b"", b"PK hello"):
        last.write_bytes(spoiled)
        config = Config(checkpoint_dir=str(folder), resume=True)
        with pytest.raises(UserError, match=r"truncated or foreign.*use --resume-from previous"):
            load_checkpoint(config, 1000)
    ended = run("single", results, ARGS=f"{args} --resume")
    assert (ended.code, ended.row["status"]) == (1, "failed") and "--resume-from previous" in ended.row["reason"]
    ended = run("single", results, ARGS=f"{args} --resume --resume-from previous")
    assert ended.row["status"] == "ok" and "resumed at step" in ended.log


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("mount needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_under_the_results_keeps_the_earlier_rows(results, small_disk):
    folder = small_disk
    assert run("single", folder).row["status"] == "ok"
    before = {path.name: path.read_text() for path in folder.glob("*.csv")}
    ended = run("single", folder, "fill step=3", FILL=small_disk / "fill", TMPDIR="/tmp")
    assert ended.code in (1, 2) and "No space left on device" in ended.output and "Traceback" not in ended.output
    assert all((folder / name).read_text().startswith(text) for name, text in before.items())


def test_a_full_disk_under_the_checkpoints_is_reported(results, small_disk):
    ended = run("single", results, ARGS=f"--checkpoint-dir {small_disk}")  # ResNet-18 with momentum is 94 MB
    assert (ended.code, ended.row["status"]) == (1, "failed")
    assert "cannot write the checkpoint" in ended.row["reason"] and "No space" in ended.row["reason"], ended.row
    assert {path.name for path in small_disk.rglob("*")} == {"single-1"}
    assert not read_table(results, "windows").empty, "what was measured before is kept"


def test_a_half_written_line_costs_only_itself(results, capsys):
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
    row = {"schema": 1, "run_id": "r", "strategy": "single", "status": "ok", "repeat": 1}
    append_rows(results, "runs", [row | {"settings": add_settings(results, asked)}])
    with open(results / "runs.csv", "a") as file:
        file.write("1,torn,single,ok,,0,2\n")  # a short line, which no chart counts
    assert last_statuses(results) == {(settings_hash(asked), 1): "ok"}


def test_two_suites_at_once_do_not_meet(results, tmp_path, checkout):
    """Each makes a result set of its own; on one set the second is told who holds it."""
    for name in ("Makefile", "bench"):
        shutil.copy(ROOT / name, checkout)
    shutil.rmtree(checkout / "results", ignore_errors=True)
    ours = {"RESULTS": None, "SETUP": "no", "DATA": "unused", "REPEATS": 1}
    process = start(["make", "-C", checkout, "-j2", "bench-ddp", "bench-single"], results, **ours)
    assert finish(process, results).code == 0
    sets = [path for path in (checkout / "results").iterdir() if not path.is_symlink()]
    found = sorted((row.strategy, row.status) for path in sets for row in read_table(path, "runs").itertuples())
    assert len(sets) == 2 and found == [("ddp", "ok"), ("single", "ok")]
    first = start([checkout / "bench"], results, "slow", STRATEGIES="single", ARGS="--steps 1000")
    until_planted(results)
    second = finish(start([ROOT / "bench"], results, STRATEGIES="single"), results)
    assert second.code == 2 and "is in use by another suite" in second.output
    first.terminate()
    assert first.wait(60) == 143
