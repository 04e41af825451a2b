"""./bench slurm on a real cluster: tests/slurm_local.sh brings up two nodes on this host, and leaves nothing behind.
Needs root on a Debian-like system; else all are skipped with the reason."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from fault_runs import processes_of, until
from support import NUM_VAL, ROOT, environment, hear_sigint

from benchmarks.common.rows import read_table

pytestmark = pytest.mark.real_interpreter  # Slurm starts the processes, and finds them by their parents

SCRIPT = Path(__file__).with_name("slurm_local.sh")
TWO_BY_TWO = ("--nodes", "2", "--tasks-per-node", "2")


def slurm_local(command, folder):
    env = {**os.environ, "SLURM_LOCAL_DIR": str(folder)}
    return subprocess.run([SCRIPT, command], env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def tmp_path():
    """A short one: Slurm's sockets allow 70 letters."""
    folder = tempfile.mkdtemp(prefix="slurm-test-")
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    started = slurm_local("start", folder)
    if started.returncode == 3:
        pytest.skip(started.stderr.strip().splitlines()[-1])
    assert started.returncode == 0, started.stderr
    assert started.stdout == f"export SLURM_CONF={folder}/slurm.conf\n"
    yield folder
    stopped = slurm_local("stop", folder)
    assert stopped.returncode == 0, stopped.stderr
    assert not folder.exists()
    assert processes_of(folder) == []


class Submitted:
    """./bench slurm on two nodes with two ranks each."""

    def __init__(
        self, cluster: Path, folder: Path, config: Path, data: Path, strategies: list[str], words: Sequence[str]
    ):
        self.env = environment(SETUP="no", SLURM_CONF=cluster / "slurm.conf")
        self.results, self.output = folder / "a set", folder / "output"
        own = [*TWO_BY_TWO, "--results", self.results, "--config", config, "--data", data]
        command = [sys.executable, ROOT / "bench", "slurm", *strategies, *own, *words]
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                command, env=self.env, stdout=output, stderr=output, start_new_session=True, preexec_fn=hear_sigint
            )

    def ask(self, *command: str) -> str:
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=True).stdout

    def job(self) -> str:
        return self.ask("squeue", "--noheader", "--format", "%A").strip()

    def trains(self) -> bool:
        """Whether a run that counts is in its training now."""
        assert self.process.poll() is None, self.output.read_text()
        folders = sorted(self.results.glob("logs/*-[1-9]-*/"), key=lambda path: path.stat().st_mtime)
        return bool(folders) and (folders[-1] / "progress").exists() and not (folders[-1] / "summary.json").exists()

    def wait(self) -> int:
        code = self.process.wait(900)
        print(self.output.read_text())  # pytest shows it if the test fails
        return code

    def rows(self):
        rows = read_table(self.results, "runs")
        return rows[rows["repeat"] > 0]


@pytest.fixture
def submit(cluster, tmp_path, tiny_data, tiny_config):
    """submit("single ddp", "--repeats", "2"): a Submitted."""
    started = []

    def start(strategies: str, *words: str) -> Submitted:
        started.append(Submitted(cluster, tmp_path, tiny_config, tiny_data, strategies.split(), words))
        return started[-1]

    yield start
    for each in started:
        each.process.terminate()
        each.process.wait(60)


def test_all_strategies_take_turns_in_one_job_which_goes_on_after_a_requeue(submit):
    """Two nodes are in the rows of what spans them, and no finished run is run twice."""
    job = submit("single ddp ddp_spawn slurm horovod_ddp", "--repeats", "2")
    until(lambda: job.trains() and len(read_table(job.results, "runs")) > 2, "a run", 300)
    number = job.job()
    job.ask("scontrol", "requeue", number)
    assert job.wait() == 0
    rows = job.rows()
    done = rows[rows.status != "interrupted"]
    assert (done.groupby(["strategy", "repeat"]).size() == 1).all() and len(done) == 2 * 5
    assert (rows.status == "interrupted").sum() == 1 and set(done.status) <= {"ok", "skipped"}
    ok = done[done.status == "ok"]
    shapes = ok.groupby("strategy")[["nodes", "world_size"]].max().to_dict("index")
    assert shapes["ddp"] == shapes["slurm"] == {"nodes": 2, "world_size": 4}
    assert shapes["single"] == {"nodes": 1, "world_size": 1} and shapes["ddp_spawn"] == {"nodes": 1, "world_size": 2}
    assert set(ok.val_samples) == {NUM_VAL} and set(ok.threads_per_rank) == {1}
    assert all("`ssh node" in reason for reason in done[done.strategy == "horovod_ddp"].reason)
    assert (job.results / "job.log").read_text().count(f"job {number} runs on node[1-2]") == 2


def test_ctrl_c_cancels_the_job(submit, tmp_path):
    """The tasks have the time to write a checkpoint."""
    job = submit("slurm", "--", "--epochs", "999", "--checkpoint-dir", str(tmp_path / "kept"))
    until(job.trains, "a run", 300)
    os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does
    assert job.wait() == 130
    (row,) = job.rows().itertuples()
    assert row.status == "interrupted" and "was saved" in row.reason
    assert job.job() == "" and (tmp_path / "kept" / "slurm-1" / "last.pt").exists()


def test_a_job_near_its_time_limit_resumes_from_its_checkpoint(submit, tmp_path):
    """Slurm's warning is sent by hand: how far a run gets within minutes depends on the machine."""
    job = submit("slurm", "--repeats", "1", "--", "--epochs", "30", "--checkpoint-dir", str(tmp_path / "kept"))
    until(job.trains, "a run", 300)
    job.ask("scancel", "--batch", "--signal", "USR1", job.job())
    assert job.wait() == 0
    rows = job.rows()
    assert [*rows.status] == ["interrupted", "ok"]
    assert "resumed at" in (job.results / rows.log_path.iloc[-1]).read_text()


def test_daemons_listen_on_loopback_only(cluster):
    """Also srun, and Slurm's own process of each step."""

    def listeners() -> dict[str, set[str]]:
        found = {}
        for process in processes_of(cluster):
            with contextlib.suppress(psutil.Error):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        found.setdefault(process.name(), set()).add(connection.laddr.ip)
        return found

    assert {"slurmctld", "slurmd"} <= listeners().keys()
    env = environment(SLURM_CONF=cluster / "slurm.conf")
    with subprocess.Popen(["srun", "-N2", "--ntasks-per-node=2", "sleep", "3600"], env=env) as job:
        try:
            until(lambda: "srun" in listeners(), "srun listens")
            found = listeners()
        finally:
            job.terminate()
    assert set.union(*found.values()) == {"127.0.0.1"}, found
