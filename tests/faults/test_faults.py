"""The fault matrix: what becomes of a benchmark when things go wrong. Real processes, real signals, real disks.

    make test-faults
    .venv/bin/python -m pytest tests/faults/test_faults.py -m "not slow"

Faults are planted by tests/faults/sitecustomize.py. Each test compares the processes before and after. The matrix
with the measured seconds is printed after the tests.
"""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from fault_runs import Matrix, finish, output_of, patience, processes_of, run, start, until, until_planted
from support import NUM_VAL, ROOT, environment

from benchmarks.common.checkpoint import load_checkpoint
from benchmarks.common.columns import TABLES
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError, timed_out
from benchmarks.common.rows import append_rows, read_table
from scripts.results.settings import add_settings, requested_settings, settings_hash
from scripts.runner.cause import first_cause
from scripts.runner.plan import last_statuses

SOAK_LIMIT_S = 5400  # 30 rounds take 5 minutes alone, and an hour beside seven other programs
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
    "strategy", ["ddp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp_spawn", "horovod_ddp"))]
)
@pytest.mark.parametrize(
    "fault, reason",
    [
        pytest.param("raise rank=1 step=3", "rank 1: ArithmeticError: planted in this step", marks=pytest.mark.slow),
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
@pytest.mark.slow
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
@pytest.mark.slow
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


@pytest.mark.slow
def test_what_nccl_says_of_a_rank_that_hangs():
    """NCCL's watchdog aborts the ranks that waited: they leave no note, and their signal 6 is not the cause."""
    message = (
        "[rank{0}]:[E1121 01:02:03.456 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=9408, Timeout(ms)=10000) ran for 10021 ms\n"
    )
    log = message.format(0) + message.format(2) + "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 7)\n"
    timeout = "rank 0: a collective timed out"
    assert first_cause([], log, 1, [], num_ranks=3) == ("timeout", f"{timeout}; rank 1 gave no sign")
    assert first_cause([], log, 1, [], num_ranks=4) == ("timeout", timeout)
    assert first_cause([], log.split("\n", 2)[2], 1, [], num_ranks=3) == ("failed", "rank 0: signal 6")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "[TC][rank={0}][name=default_pg] Operation timed out after 10000 ms",
        "[TC][rank={0}][name=default_pg] Aborting process on rank {0} due to timeout - timeout watchdog detected "
        "operation timeout",
    ],
)
def test_what_torchs_newer_process_group_says_of_a_rank_that_hangs(line):
    """Protects the status of a hang in torch 2.15, whose default process group for NCCL has log lines of its own
    (TC_LOG in torch/csrc/distributed/c10d/nccl2). It ends its rank by signal 6 after an error, too, which is no
    timeout. Mutants: the older watchdog's line alone; any line of the newer group."""
    prefix = "E1121 01:02:03.456 7 ProcessGroupNCCL.cpp:512] "
    exits = "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 7)\n"
    log = "".join(f"{prefix}{line.format(rank)}\n" for rank in (0, 2)) + exits
    assert first_cause([], log, 1, [], num_ranks=3) == (
        "timeout",
        "rank 0: a collective timed out; rank 1 gave no sign",
    )
    error = "error - timeout watchdog detected operation error"
    log = f"{prefix}[TC][rank=0][name=default_pg] Aborting process on rank 0 due to {error}\n{exits}"
    assert first_cause([], log, 1, [], num_ranks=3) == ("failed", "rank 0: signal 6")


@real_interpreter
@pytest.mark.slow
def test_a_stopped_rank_is_named_at_the_limit(matrix, results):
    limit_s = patience(30)
    ended = run("ddp", results, "stop rank=1 step=3", TIMEOUT=limit_s, ARGS=f"--timeout-s {4 * limit_s}")
    assert (ended.code, ended.row["status"]) == (1, "timeout")
    assert ended.row["reason"].startswith(f"not done after {limit_s} s; rank 1 was stopped by a signal")
    matrix.add(3, "a rank hangs, until TIMEOUT (ddp)", "timeout; rank 1 was stopped", ended.seconds)


@real_interpreter
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_the_stacks_of_a_run_that_hangs_are_in_the_log(matrix, results, strategy):
    limit_s = patience(25)
    ended = run(strategy, results, "hang step=3", TIMEOUT=limit_s, ARGS=f"--timeout-s {4 * limit_s}")
    assert (ended.code, ended.row["status"]) == (1, "timeout")
    assert ended.log.count("in hang_here") == {"single": 1, "ddp": 2}[strategy]
    assert ended.row["reason"].startswith(f"not done after {limit_s} s") and ended.row["wall_s"] >= limit_s
    matrix.add(4, f"the whole run hangs ({strategy})", "timeout; every rank's stack is in the log", ended.seconds)


@pytest.mark.slow
@real_interpreter
@pytest.mark.parametrize("strategy", ["ddp", "horovod_ddp"])
def test_workers_end_when_their_launcher_is_killed(matrix, results, strategy):
    """torchrun's workers live in sessions of their own and outlive it."""
    title = f"{'torchrun' if strategy == 'ddp' else 'horovodrun'} is SIGKILLed"
    needs(strategy, matrix, 5, title)
    process = start([ROOT / "launchers" / f"{strategy}.sh"], results, "slow", ARGS="--steps 1000")
    until_planted(results)
    (launcher,) = psutil.Process(process.pid).children()
    assert "run" in launcher.cmdline()[2]  # torch.distributed.run, horovod.runner.launch
    began = time.monotonic()
    launcher.kill()
    ended = finish(process, results)
    assert (ended.code, ended.row["status"], ended.row["exit_code"]) == (1, "failed", -9)
    assert ended.row["reason"] == "SIGKILL ended the launcher; its remaining processes were killed"
    matrix.add(5, title, "failed; no worker left", ended.ended_at - began)


@pytest.mark.slow
def test_a_killed_single_process_says_the_same(matrix, results):
    """There is no launcher of ranks that could be meant: the one process was the rank."""
    ended = run("single", results, "kill step=3")
    reason = "rank 0: signal 9, possibly out of memory"
    assert (ended.code, ended.row["status"], ended.row["reason"]) == (1, "failed", reason)
    matrix.add(2, "a rank is SIGKILLed (single)", f"failed; {reason}", ended.seconds)


@real_interpreter
@pytest.mark.slow
def test_ranks_end_when_even_the_record_is_killed(matrix, results):
    """SIGKILL to scripts/runner/record.py: its run must not go on beside the next one; the loop writes its row."""
    process = start([ROOT / "bench"], results, "slow", STRATEGIES="single", REPEATS=1, ARGS="--steps 1000")
    run_dir = until_planted(results)
    began = time.monotonic()
    (record,) = psutil.Process(process.pid).children()
    record.kill()
    ended = finish(process, results)
    assert processes_of(run_dir) == []
    assert (ended.code, ended.row["status"], ended.row["run_id"]) == (1, "failed", run_dir.name)
    assert ended.row["reason"].startswith("SIGKILL ended its record")
    seconds = ended.ended_at - began
    matrix.add(5, "scripts/runner/record.py is SIGKILLed", "failed; the loop writes its row; no process left", seconds)


@pytest.mark.slow
def test_success_without_metrics_is_a_failure(matrix, results):
    ended = run("single", results, "exit step=3")
    assert (ended.code, ended.row["status"], ended.row["exit_code"]) == (1, "failed", 0)
    matrix.add(1, "a run exits 0 without its metrics (single)", f"failed; {ended.row['reason']}", ended.seconds)


@pytest.mark.slow
@real_interpreter
@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_bench_all_keeps_the_finished_rows(matrix, results, signum, code):
    """Ctrl-C reaches the whole foreground group, a scheduler's SIGTERM only make."""
    process = start(
        ["make", "bench-all"],
        results,
        "slow rank=1 step=3",
        SETUP="no",
        DATA="unused",
        STRATEGIES="ddp apex_ddp single",  # in the first round of three the last is first
        REPEATS=1,
        ARGS="--steps 100",
    )
    until(lambda: list(results.glob("logs/ddp-*/fault-at")), "ddp is slow")
    began = time.monotonic()
    if signum == signal.SIGINT:
        os.killpg(process.pid, signum)
    else:
        process.send_signal(signum)
    ended = finish(process, results)
    runs = read_table(results, "runs")
    runs = runs[runs["repeat"] > 0]
    assert [*zip(runs.strategy, runs.status, strict=True)] == [("single", "ok"), ("ddp", "interrupted")]
    assert ended.code == -signum or (ended.code == 2 and f"Error {code}" in ended.output)
    matrix.add(
        6, f"{signum.name} to make bench-all", f"interrupted; {code}; finished rows kept", ended.ended_at - began
    )


@real_interpreter
@pytest.mark.slow
def test_a_signal_before_the_first_step_is_not_lost(matrix, results):
    """bash starts a background child deaf to SIGINT; a signal that comes before Python listens must still count."""
    process = start([ROOT / "bench"], results, "slow", STRATEGIES="single ddp", REPEATS=1)
    until(lambda: [*results.glob("logs/*")] or None, "the suite begins")
    time.sleep(0.5)  # bash and Python start
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    ended = finish(process, results)
    assert ended.code == 130 and not list(results.glob("logs/ddp-*"))
    matrix.add(6, "SIGINT while a launcher starts", "130; the suite ends", ended.ended_at - began)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_taken_port_is_named(matrix, results):
    """Only across nodes is a port chosen by the user; on one machine torchrun and the others choose free ones."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        ended = run("all", results, NNODES=2, NODE_RANK=0, RDZV_ENDPOINT=endpoint, STRATEGIES="ddp", REPEATS=1)
    assert ended.code == 2 and endpoint in ended.output and "taken" in ended.output
    matrix.add(7, "the port of RDZV_ENDPOINT is taken", "refused, names it", ended.ended_at - began)


@real_interpreter
@pytest.mark.slow
def test_missing_tools_are_skipped_with_the_remedy(matrix, results, tmp_path):
    """A real interpreter without Horovod and Apex, and a PATH without Slurm."""
    venv = tmp_path / "venv"
    site = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("horovod", "apex")):
            (site / entry.name).symlink_to(entry)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", venv)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "basename", "timeout", "awk"):  # nor git
        (tools / name).symlink_to(shutil.which(name))
    variables = {"PYTHON": venv / "bin" / "python", "PATH": tools}
    for strategy, remedy in [
        ("horovod_ddp", "scripts/setup/horovod.sh"),
        ("slurm", "./bench slurm slurm"),
        ("apex_ddp", "run it where there are NVIDIA GPUs"),
    ]:
        ended = run(strategy, results, **variables)
        assert (ended.code, ended.row["status"]) == (0, "skipped") and remedy in ended.row["reason"]
    matrix.add(8, "Horovod, Slurm, Apex are missing", "skipped with the remedy")


@pytest.mark.slow
def test_too_few_gpus_are_refused_and_too_few_cores_flagged(matrix, results):
    ended = run("all", results, NUM_GPUS=1, NPROC=2, STRATEGIES="ddp")
    assert ended.code == 2 and "only 1 GPUs can be seen; lower NPROC" in ended.output and not results.exists()
    many = len(os.sched_getaffinity(0)) + 1
    ended = run("ddp", results, NPROC=many, ARGS=f"--global-batch {2 * many}")
    assert (ended.row["status"], ended.row["oversubscribed"], ended.row["world_size"]) == ("ok", "yes", many)
    matrix.add(9, "fewer GPUs than ranks; fewer cores", "refused; the row is marked oversubscribed")


@real_interpreter
@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("strategy, fault", [("ddp", "nan rank=1 step=4"), ("single", "inf step=4")])
def test_a_loss_that_is_no_number_stops_all_ranks(matrix, results, strategy, fault):
    ended = run(strategy, results, fault)
    assert (ended.code, ended.row["status"]) == (1, "invalid")
    assert "the loss was not finite at step 4" in ended.row["reason"]
    assert read_table(results, "epochs").empty, "nobody went on to evaluate"
    matrix.add(
        10, f"the loss becomes {fault.split()[0]} ({strategy})", f"invalid; {ended.row['reason']}", ended.seconds
    )


def spoil(folder: Path) -> list[str]:
    """Cut a JPEG short, empty one, and replace one by text; returns their names."""
    cut, empty, text = sorted(folder.rglob("*.JPEG"))[:3]
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    empty.write_bytes(b"")
    text.write_text("this is no photograph")
    return [path.name for path in (cut, empty, text)]


@pytest.mark.slow
def test_a_bad_file_is_named_or_counted(matrix, results, own_data):
    names = spoil(own_data / "train")
    ended = run("ddp", results, DATA=own_data, ARGS="--loader folder --steps 10")
    assert (ended.code, ended.row["status"]) == (1, "failed")
    assert any(name in ended.row["reason"] for name in names) and "--skip-bad-files" in ended.row["reason"]
    matrix.add(11, "truncated, empty and non-image files (ddp)", "failed; the file is named", ended.row["wall_s"])
    ended = run("single", results, DATA=own_data, ARGS="--loader folder --steps 10 --skip-bad-files")
    assert (ended.row["status"], ended.row["skipped_files"]) == ("ok", 3)
    matrix.add(11, "the same with --skip-bad-files (single)", "ok; 3 skipped_files")


@pytest.mark.slow
def test_an_empty_class_and_an_unknown_one_are_refused_before_launch(matrix, results, own_data):
    (own_data / "train" / "empty").mkdir()
    ended = run("all", results, DATA=own_data, ARGS="--loader folder", STRATEGIES="single")
    assert ended.code == 2 and "class folders without an image: 'empty'" in ended.output
    (own_data / "train" / "empty").rmdir()
    shutil.copytree(own_data / "val" / "waves", own_data / "val" / "unheard of")
    ended = run("all", results, DATA=own_data, ARGS="--loader folder", STRATEGIES="single")
    assert ended.code == 2 and "val/ has classes that train/ lacks: 'unheard of'" in ended.output
    assert not results.exists()
    matrix.add(12, "an empty class; a val class that train lacks", "refused before launch")


@pytest.mark.slow
def test_counts_are_right_where_no_batch_divides(matrix, results, own_data):
    for path in sorted((own_data / "train").rglob("*.JPEG"))[17:]:
        path.unlink()
    for folder in (own_data / "train").iterdir():
        if not any(folder.iterdir()):
            folder.rmdir()
            shutil.rmtree(own_data / "val" / folder.name)
    next((own_data / "val").rglob("*.JPEG")).unlink()
    num_val = len([*(own_data / "val").rglob("*.JPEG")])
    ended = run("ddp", results, DATA=own_data, ARGS="--loader folder --steps 0 --epochs 3")
    assert (ended.row["status"], ended.row["val_samples"]) == ("ok", num_val) and num_val % 2
    assert set(read_table(results, "epochs").query("phase == 'train'").images) == {16}
    matrix.add(18, f"17 images in batches of 4 on 2 ranks, {num_val} to validate", "ok; right counts", None)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_hostile_data_set_trains_and_its_names_do_no_harm(matrix, results, own_data):
    hostile = ["quo\"te's", "new\nline", "<script>alert(1)<", "=cmd()"]
    for part in ("train", "val"):
        for folder, name in zip(sorted((own_data / part).iterdir()), hostile, strict=True):
            folder.rename(folder.with_name(name))
    target = own_data.parent / "elsewhere.JPEG"
    shutil.move(next((own_data / "train" / "=cmd()").iterdir()), target)
    (own_data / "train" / "=cmd()" / "link.JPEG").symlink_to(target)
    ended = run("all", results, DATA=own_data, ARGS="--loader folder", STRATEGIES="single", REPEATS=1)
    assert ended.row["status"] == "ok" and ended.row["val_samples"] == NUM_VAL
    bad = own_data / "train" / "new\nline" / "=1+1\n<script>.JPEG"
    next((own_data / "train" / "new\nline").iterdir()).rename(bad)
    bad.write_bytes(b"")
    ended = run("all", results, DATA=own_data, ARGS="--loader folder --steps 10", STRATEGIES="single", REPEATS=1)
    assert ended.row["status"] == "failed" and "<script>.JPEG" in ended.row["reason"]
    lines = (results / "runs.csv").read_text().splitlines()
    assert (read_table(results, "runs").repeat > 0).sum() == 2  # beside those that warmed up
    assert not any(cell.startswith(("=", "+", "@")) for line in lines for cell in line.split(","))
    if find_spec("scripts.report.page"):
        reporting = [sys.executable, "-m", "scripts.report.page", "--results", results]
        done = subprocess.run(reporting, cwd=ROOT, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "<script>.JPEG" not in (results / "report.html").read_text()
    matrix.add(21, "a hostile data set", "trains; CSV and HTML are safe")


class Payload:
    """Unpickled without care, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


@pytest.mark.slow
def test_a_hostile_config_or_checkpoint_is_refused_and_not_run(matrix, results, tmp_path):
    trap = tmp_path / "executed"
    config = tmp_path / "hostile.yaml"
    config.write_text(f"arch: !!python/object/apply:os.mknod ['{trap}']\n")
    ended = run("all", results, CONFIG=config, STRATEGIES="single")
    assert ended.code == 2 and "is not plain YAML" in ended.output
    (tmp_path / "last.pt").write_bytes(pickle.dumps({"model": Payload(trap), "about": {}}))
    ended = run("single", results, ARGS=f"--checkpoint-dir {tmp_path} --resume")
    assert ended.row["status"] == "failed" and "truncated or foreign" in ended.row["reason"]
    assert not trap.exists()
    matrix.add(22, "YAML tags; a pickle with code", "refused; nothing executed")


# ---- checkpoints, rows, disks ----------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_full_disk_under_the_checkpoints_is_reported(matrix, results, small_disk):
    if not small_disk:
        matrix.skip(15, "disk full in checkpoints", "mount needs root")
    ended = run("single", results, ARGS=f"--checkpoint-dir {small_disk}")  # ResNet-18 with momentum is 94 MB
    assert (ended.code, ended.row["status"]) == (1, "failed")
    assert "cannot write the checkpoint" in ended.row["reason"] and "No space" in ended.row["reason"], ended.row
    assert {path.name for path in small_disk.rglob("*")} == {"single-1"}
    assert not read_table(results, "windows").empty, "what was measured before is kept"
    matrix.add(15, "disk full in checkpoints", f"failed; {ended.row['reason']}")


@pytest.mark.slow
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
@pytest.mark.slow
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


@real_interpreter
@pytest.mark.slow
def test_a_clock_set_back_changes_no_duration(matrix, results, tmp_path):
    libraries = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
    if not libraries:
        matrix.skip(23, "the clock is set back an hour", "libfaketime is missing; apt-get install faketime")
    clock = tmp_path / "clock"
    clock.write_text("+0s\n")
    began = time.monotonic()
    ended = run(
        "single",
        results,
        "clock step=4",
        LD_PRELOAD=libraries[0],
        FAKETIME_TIMESTAMP_FILE=clock,
        FAKETIME_DONT_FAKE_MONOTONIC=1,
        FAKETIME_NO_CACHE=1,
    )
    assert ended.row["status"] == "ok" and clock.read_text() == "-3600s\n"
    passed = ended.ended_at - began
    assert 0 < ended.row["wall_s"] < passed
    assert read_table(results, "wall").seconds.min() > -0.1
    assert read_table(results, "wall").seconds.sum() == pytest.approx(ended.row["wall_s"], abs=0.1)
    for table in ("windows", "epochs"):
        assert read_table(results, table).seconds.between(0, passed, inclusive="neither").all()
    moments = read_table(results, "telemetry").query("device == 'cpu'").t_s
    assert moments.is_monotonic_increasing and moments.between(0, passed).all()
    matrix.add(23, "the clock is set back an hour", "ok; every duration is right")


@real_interpreter
@pytest.mark.slow
def test_thirty_rounds_leave_nothing_behind(matrix, results, tmp_path):
    """Each round's processes end with it, so what could grow is the suite's own shell and what runs leave on disks."""
    signal.alarm(SOAK_LIMIT_S)  # in place of the limit of other tests (conftest.py)
    rounds, scratch = 30, tmp_path / "scratch"
    scratch.mkdir()
    process = start([ROOT / "bench"], results, STRATEGIES="single", REPEATS=rounds, TMPDIR=scratch)
    suite, seen, files = psutil.Process(process.pid), {}, {}
    while process.poll() is None and len(seen) < rounds:
        number = len([*results.glob("logs/*")])
        if number:
            counted = (suite.num_fds(), suite.memory_info().rss, len(suite.children(recursive=True)))
            # The least of the round: a file that is open for a moment is no leak.
            seen[number] = tuple(map(min, counted, seen.get(number, counted)))
            files[number] = sorted(os.listdir(scratch))
        time.sleep(0.1)
    ended = finish(process, results)
    assert ended.code == 0 and list(read_table(results, "runs").status) == ["warm-up"] + ["ok"] * rounds
    (fds, rss, children), late = seen[2], seen[rounds - 1]  # of the last, one sample was taken
    assert late[0] <= fds and late[1] <= 1.1 * rss + 1e6 and late[2] <= children + 2, seen
    assert sorted(os.listdir(scratch)) == files[2], "every round leaves temporary files"
    matrix.add(24, f"soak: {rounds} rounds of single", "every row ok; nothing grows")
