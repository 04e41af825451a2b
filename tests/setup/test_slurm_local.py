"""scripts/setup/slurm_local.sh brings up a real Slurm cluster and leaves nothing behind.

    .venv/bin/python -m pytest tests/setup/test_slurm_local.py

Real daemons and real jobs. Needs root on a Debian-like system; else all are skipped with the reason.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from support import NUM_VAL, put, run_strategy

pytestmark = pytest.mark.real_interpreter  # Slurm starts the processes, and finds them by their parents

SCRIPT = Path(__file__).parents[2] / "scripts/setup/slurm_local.sh"


def slurm_local(command, folder, **environment):
    """Run the script on a state folder; returns the finished process with its text output."""
    environment = {**os.environ, "SLURM_LOCAL_DIR": str(folder), **environment}
    # umask: where everybody can write to slurm.conf, everybody chooses the programs that root's daemons run
    return subprocess.run(
        [SCRIPT, command], env=environment, umask=0, capture_output=True, text=True, timeout=300, check=False
    )


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


def daemons_of(folder):
    """By program; not slurmstepd, which may outlive its job by some milliseconds."""
    return [p for p in processes_of(folder) if p.name() in ("munged", "slurmctld", "slurmd")]


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
    assert [path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o022] == []
    assert [path for path in folder.rglob("*") if path.is_dir() and path.stat().st_mode & 0o022] == []
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


@pytest.mark.medium
def test_two_nodes_run_two_tasks_each(cluster):
    """The variables from which the ranks of launchers/slurm.sh come are those of 2 nodes x 2 tasks."""
    names = "PROCID NTASKS LOCALID NODEID JOB_NODELIST".split()
    lines = srun(cluster, f'echo "{" ".join(f"$SLURM_{name}" for name in names)} $SLURMD_NODENAME $HOSTNAME"')
    host = os.uname().nodename
    assert lines == [
        f"0 4 0 0 node[1-2] node1 {host}",
        f"1 4 1 0 node[1-2] node1 {host}",
        f"2 4 0 1 node[1-2] node2 {host}",
        f"3 4 1 1 node[1-2] node2 {host}",
    ]


def test_two_jobs_run_at_once(cluster, tmp_path):
    """Each job waits for a file that the other one writes: in turn they would never end."""
    script = "touch {0}.$SLURM_PROCID; until [[ -e {1}.$SLURM_PROCID ]]; do sleep 0.05; done; echo met"
    scripts = [f"cd '{tmp_path}'; " + script.format(*pair) for pair in ("ab", "ba")]
    jobs = [subprocess.Popen(**srun_command(cluster, script)) for script in scripts]
    outputs = [job.communicate(timeout=60)[0] for job in jobs]
    assert [output.count("met") for output in outputs] == [4, 4], outputs


def test_start_again_changes_nothing(cluster):
    """`start` is idempotent: the same answer, the same processes."""
    before = daemons_of(cluster)
    assert sorted(p.name() for p in before) == ["munged", "slurmctld", "slurmd", "slurmd"]
    again = slurm_local("start", cluster)
    assert (again.returncode, again.stdout) == (0, f"export SLURM_CONF={cluster}/slurm.conf\n")
    assert daemons_of(cluster) == before
    other = slurm_local("start", cluster, GRES="gpu:2")
    assert other.returncode == 2 and "stop it first" in other.stderr


def test_start_heals_a_dead_node(cluster):
    """A slurmd that was killed comes back with the next `start`, and jobs run on it."""
    victim = next(p for p in processes_of(cluster) if p.cmdline() == ["slurmd", "-N", "node2"])
    victim.kill()
    until(lambda: victim not in processes_of(cluster), "node2's slurmd is dead")
    assert slurm_local("start", cluster).returncode == 0
    assert len(srun(cluster, "echo here")) == 4


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


def test_a_host_whose_name_is_no_loopback_address_is_refused(tmp_path):
    """Protects it from a cluster that listens on all addresses, unless that is asked for. getent stands for such a
    host."""
    put(tmp_path / "bin", getent="echo '10.0.0.1 STREAM this-host'")
    refused = slurm_local("start", tmp_path / "new", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    if "needs root" in refused.stderr:
        pytest.skip("needs root")
    assert refused.returncode == 3 and "/etc/hosts" in refused.stderr and "LISTEN=all" in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["", "slurm.conf"])
def test_a_cluster_that_others_can_change_is_not_used(tmp_path, name):
    """Protects the user from programs that another user has named in slurm.conf. Mutant: the owners alone."""
    (tmp_path / "slurm.conf").touch()
    script = 'source "$0/launchers/cluster.sh"; find_cluster || echo "$WHY"'
    env = {**os.environ, "SLURM_LOCAL_DIR": str(tmp_path), "PATH": f"{tmp_path}/none:{os.environ['PATH']}"}
    env.pop("SLURM_CONF", None)
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine has a cluster of its own")
    command = ["bash", "-c", script, SCRIPT.parents[2]]
    assert "others may write" not in subprocess.run(command, env=env, capture_output=True, text=True).stdout
    (tmp_path / name).chmod(0o777)
    assert "others may write" in subprocess.run(command, env=env, capture_output=True, text=True).stdout
    started = slurm_local("start", tmp_path)
    assert started.returncode == 3 and ("others may write" in started.stderr or "needs root" in started.stderr)


def test_status_distinguishes_up_from_down(cluster, tmp_path):
    up = slurm_local("status", cluster)
    assert up.returncode == 0 and "node1" in up.stdout and "node2" in up.stdout
    down = slurm_local("status", tmp_path)
    assert down.returncode == 1 and "start it with" in down.stderr


@pytest.mark.slow  # the other tests start and stop one cluster
def test_second_cluster_with_gpus_stops_with_a_stubborn_job_and_a_dead_controller(cluster, tmp_path):
    """A second cluster runs beside the first. stop ends it though a task ignores SIGTERM in a session of its
    own and no slurmctld is left that could cancel it. The first cluster lives on."""
    assert slurm_local("start", tmp_path, GRES="gpu:2").returncode == 0
    try:
        assert srun(tmp_path, "echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:2") == ["0,1"] * 4
        ready = tmp_path / "log" / "ready"
        script = f"""setsid bash -c "trap '' TERM; touch {ready}; while :; do sleep 1; done" & wait"""
        job = subprocess.Popen(**srun_command(tmp_path, script))
        until(ready.exists, "the job runs")
        next(p for p in daemons_of(tmp_path) if p.name() == "slurmctld").kill()
    finally:
        stopped = slurm_local("stop", tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    job.communicate(timeout=10)
    assert processes_of(tmp_path) == [] and not tmp_path.exists()
    assert slurm_local("status", cluster).returncode == 0


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


def test_without_root_start_exits_3_with_the_reason(cluster):
    """3 tells tests and CI "not possible here" from "broken"."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the checkout may be where "nobody" cannot read
        refused = subprocess.run(
            [shutil.copy(SCRIPT, folder), "start"],
            env={**os.environ, "SLURM_LOCAL_DIR": f"{folder}/new"},
            user="nobody",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert refused.returncode == 3 and "needs root" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("command", ["start", "stop", "status"])
@pytest.mark.parametrize("theirs", ["", "slurm.conf"])
def test_a_folder_of_another_user_is_refused(tmp_path, command, theirs):
    """Protects root from a slurm.conf that somebody else has put there, and names programs that sinfo loads.
    Mutants: no look at the folder's owner; at the file's; only start looks."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "slurm.conf").write_text("ClusterName=theirs\n")
    os.chown(folder / theirs, 12345, 12345)
    done = slurm_local(command, folder)
    assert done.returncode == 3 and "belongs to another user" in done.stderr
    assert (folder / "slurm.conf").read_text() == "ClusterName=theirs\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="others than root start no cluster")
def test_whoever_can_read_the_script_cannot_keep_root_waiting(tmp_path):
    """Protects root from another user who holds the lock. Mutant: the script is the lock."""
    with SCRIPT.open() as script:
        fcntl.flock(script, fcntl.LOCK_EX)
        stopped = slurm_local("stop", tmp_path / "none")
    assert stopped.returncode == 0 and "nothing runs" in stopped.stderr
    assert stat.S_IMODE(os.stat("/run/slurm-local.lock").st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/var/lib/dpkg").is_dir(), reason="only root installs, on Debian")
def test_whoever_can_read_the_packages_folder_cannot_keep_root_waiting(tmp_path):
    """Protects root from another user who holds a lock of a folder that everybody can read, for ever. Mutant: apt-get
    under flock /var/lib/dpkg."""
    put(tmp_path / "bin", **{"apt-get": "exit 9"})
    for name in "bash cat chmod flock grep mkdir readlink realpath rm stat uname".split():  # and nothing of Slurm's
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    folder = os.open("/var/lib/dpkg", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        started = slurm_local("start", tmp_path / "state", PATH=str(tmp_path / "bin"))
    finally:
        os.close(folder)
    assert started.returncode == 3 and "apt-get could not install" in started.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_munged_of_another_user_is_not_taken_for_ours():
    """Protects the cluster from another user's program of that name: start would have trusted it with the key that
    guards all jobs, and stop, which is root, would have killed what anybody names so. Mutant: no look at the owner."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        state = Path(folder) / "state"
        program = shutil.copy(os.path.realpath("/bin/bash"), f"{folder}/munged")
        words = [program, "-c", "sleep 3600 & wait", f"--socket={state}/munge.socket"]
        with subprocess.Popen(words, user="nobody", cwd="/") as theirs:
            try:
                until(lambda: psutil.Process(theirs.pid).name() == "munged", "it has its name")
                stopped = slurm_local("stop", state)
                assert stopped.returncode == 0 and "nothing runs" in stopped.stderr
                assert theirs.poll() is None
            finally:
                for each in [*psutil.Process(theirs.pid).children(), theirs]:
                    each.kill()


@pytest.mark.medium
def test_the_log_of_a_job_lies_in_its_folder_whatever_the_folders_name(cluster, tmp_path):
    """Protects a run's log, which sbatch would write elsewhere: %j and %u in a file's name are its own words, and the
    folder of another user's name may be another's. Mutant: % not doubled."""
    (folder := tmp_path / "100 %j of %u").mkdir()
    put(tmp_path, job="echo here")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    environment |= {"RUN_DIR": str(folder), "SLURM_CONF": str(cluster / "slurm.conf")}
    words = [SCRIPT.parents[2] / "launchers/slurm_submit.sh", "--nodes=1", "--", tmp_path / "job"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "run.log").read_text() == "here\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100 %j of %u", "job"]
