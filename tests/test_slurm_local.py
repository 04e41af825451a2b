"""tests/slurm_local.sh brings up a real Slurm cluster and leaves nothing behind.

    .venv/bin/python -m pytest tests/test_slurm_local.py

Real daemons and real jobs. Needs root on a Debian-like system; else all are skipped with the reason.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from support import NUM_VAL, run_strategy

pytestmark = pytest.mark.real_interpreter  # Slurm starts the processes, and finds them by their parents

SCRIPT = Path(__file__).with_name("slurm_local.sh")


def slurm_local(command, folder, **environment):
    """Run the script on a state folder; returns the finished process with its text output."""
    environment = {**os.environ, "SLURM_LOCAL_DIR": str(folder), **environment}
    return subprocess.run([SCRIPT, command], env=environment, capture_output=True, text=True, timeout=300, check=False)


def srun_command(folder, script, *options):
    """The arguments of Popen for `script`, in bash, as 2 nodes x 2 tasks of the cluster in `folder`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    return {
        "args": ["srun", "-N2", "--ntasks-per-node=2", *options, "bash", "-c", script],
        "env": {**environment, "SLURM_CONF": str(folder / "slurm.conf")},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }


def srun(folder, script, *options):
    """Run to the end; returns the lines of all tasks, sorted."""
    with subprocess.Popen(**srun_command(folder, script, *options)) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return sorted(output.split("\n")[:-1])


def until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"30 s and still not: {what}"
        time.sleep(0.05)


def processes_of(folder):
    """Every live process that knows the folder: by working folder, argument or environment.

    Deliberately a wider net than the script's own, so that one it overlooks is seen here.
    """
    found = []
    for process in psutil.process_iter():
        try:
            traces = [process.cwd(), *process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(folder) in trace for trace in traces):
            found.append(process)
    return found


@pytest.fixture
def tmp_path():
    """A short one: Slurm's sockets allow 70 letters, which pytest's folders exceed beside other pytest processes."""
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


@pytest.mark.medium
def test_the_slurm_strategy_trains_on_two_nodes_with_two_ranks_each(cluster, tmp_path, tiny_data, tiny_config):
    """Protects launchers/slurm.sh end to end: a batch job, srun, four ranks, exact counts, a true row."""
    settings = {"CONFIG": tiny_config, "DATA": tiny_data, "SLURM_CONF": cluster / "slurm.conf"}
    short = "--epochs 1 --windows 1 --window-steps 2"
    row = run_strategy("slurm", tmp_path / "set", short, NODES=2, TASKS_PER_NODE=2, **settings)
    assert row["status"] == "ok", row["reason"]
    assert (row["nodes"], row["world_size"], row["threads_per_rank"], row["val_samples"]) == (2, 4, 1, NUM_VAL)


def test_two_jobs_run_at_once(cluster, tmp_path):
    """Each job waits for a file that the other one writes: in turn they would never end."""
    script = "touch {0}.$SLURM_PROCID; until [[ -e {1}.$SLURM_PROCID ]]; do sleep 0.05; done; echo met"
    scripts = [f"cd '{tmp_path}'; " + script.format(*pair) for pair in ("ab", "ba")]
    jobs = [subprocess.Popen(**srun_command(cluster, script)) for script in scripts]
    outputs = [job.communicate(timeout=60)[0] for job in jobs]
    assert [output.count("met") for output in outputs] == [4, 4], outputs


def test_daemons_listen_on_loopback_only(cluster):
    """Protects users of a shared machine; of what serves a job, too: srun, and Slurm's own process of each step."""

    def listeners() -> dict[str, set[str]]:
        found = {}
        for process in processes_of(cluster):
            with contextlib.suppress(psutil.Error):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        found.setdefault(process.name(), set()).add(connection.laddr.ip)
        return found

    assert {"slurmctld", "slurmd"} <= listeners().keys()
    with subprocess.Popen(**srun_command(cluster, "sleep 3600")) as job:
        try:
            until(lambda: "srun" in listeners(), "srun listens")
            found = listeners()
        finally:
            job.terminate()
    assert set.union(*found.values()) == {"127.0.0.1"}, found


def test_status_distinguishes_up_from_down(cluster, tmp_path):
    up = slurm_local("status", cluster)
    assert up.returncode == 0 and "node1" in up.stdout and "node2" in up.stdout
    down = slurm_local("status", tmp_path)
    assert down.returncode == 1 and "start it with" in down.stderr


@pytest.mark.parametrize("command", ["start", "stop"])
def test_a_folder_with_other_files_is_left_alone(cluster, tmp_path, command):
    """stop removes its state folder: a mistyped SLURM_LOCAL_DIR must not cost the user's files."""
    (tmp_path / "thesis.tex").write_text("years of work")
    refused = slurm_local(command, tmp_path)
    assert refused.returncode == 2 and "not this script's" in refused.stderr
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_bad_usage_exits_2_and_says_what_to_do(cluster, tmp_path):
    for command, environment, remedy in [
        ("restart", {}, "start, stop, status"),
        ("start", {"GRES": "gpu:zero"}, "gpu:N"),
        ("start", {"SLURM_LOCAL_DIR": f"{tmp_path}/a b"}, "choose another"),
    ]:
        refused = slurm_local(command, tmp_path / "new", **environment)
        assert refused.returncode == 2 and remedy in refused.stderr
    assert list(tmp_path.iterdir()) == []
