"""./bench slurm: one Slurm job in which all strategies take turns on the same nodes.

    .venv/bin/python -m pytest tests/runner/test_slurm_all.py

The quick tests read what is submitted and said, with programs on PATH that stand for Slurm. The slow ones are real: a
cluster of two nodes on this host, and torchrun as two pods of a Kubernetes job would start it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fault_runs import until
from support import ONE_RUN, ROOT, after, environment, few_fast, hear_sigint, put, start_bench

from benchmarks.common.config import Config
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.runner import processes

pytestmark = pytest.mark.real_interpreter  # Slurm starts the processes, and finds them by their parents

SLURM_LOCAL = ROOT / "tests/slurm_local.sh"


# --- the job ------------------------------------------------------------------------------------------------------


@pytest.fixture
def submitted(bin_path, tmp_path, tiny_data):
    """submitted(**options): ./bench slurm as it ended, and the call of sbatch: words, env. Options are in capitals."""
    put(bin_path, sbatch=f'printf "%s\\0" "$@" >"{tmp_path}/words"; env -0 >"{tmp_path}/env"; echo 7')

    def submit(**variables) -> tuple[subprocess.CompletedProcess, list[str], dict]:
        ours = {"PATH": f"{bin_path}:{os.environ['PATH']}", "RESULTS": tmp_path / "a set", "DATA": tiny_data}
        ours |= {"SLURM_LOCAL_DIR": "/nowhere", "THREADS_PER_RANK": None}  # the cluster's slurm.conf is who knows where
        keywords = {"capture_output": True, "text": True, "timeout": 60}
        done = start_bench(ROOT, "slurm", subprocess.run, **ours | variables, **keywords)
        if not (tmp_path / "words").exists():
            return done, [], {}
        recorded = [(tmp_path / name).read_text().split("\0")[:-1] for name in ("words", "env")]
        return done, recorded[0], dict(each.split("=", 1) for each in recorded[1])

    return submit


@pytest.mark.parametrize("partition", [{}, {"PARTITION": "short"}])
def test_a_task_has_its_share_of_the_nodes_that_the_job_may_get(submitted, partition):
    """Protects loader workers from one core each: nodes of other partitions are no nodes of the job. Mutants: the
    smallest node of all partitions; GPUs of other partitions, which refused a job for CPUs."""
    done, words, _ = submitted(NODES=2, TASKS_PER_NODE=4, **partition)
    assert done.returncode == 0, done.stderr
    assert after(words, "--cpus-per-task") == "2"


def test_one_job_is_submitted_for_all(submitted, tmp_path):
    """Protects the shape of the job, and that a job that starts again finds the same set and the same settings."""
    done, words, env = submitted(NODES=2, TASKS_PER_NODE=4, PARTITION="short", TIME=30, REPEATS=3)
    assert done.returncode == 0, done.stderr
    shape = {"--nodes": "2", "--ntasks-per-node": "4", "--cpus-per-task": "2", "--partition": "short", "--time": "30"}
    assert {flag: after(words, flag) for flag in shape} == shape
    assert "--requeue" in words and words[-2:] == ["--repeats", "3"]
    expected = {"NODES": "2", "TASKS_PER_NODE": "4", "NPROC": "4", "CPUS_PER_TASK": "2", "THREADS_PER_RANK": "2"}
    assert {name: env[name] for name in expected} == expected
    assert env["RESULTS"] == str(tmp_path / "a set") and Path(env["RESULTS"]).is_dir() and "NUM_CORES" not in env


@pytest.mark.medium
def test_what_a_cluster_demands_reaches_sbatch(submitted):
    """Protects users of clusters with accounts: each variable is sbatch's option, and none is there by itself. Without
    NODES the job has one node. Mutants: any of the lines left out."""
    demanded = {"ACCOUNT": "lab7", "QOS": "long", "MEMORY": "64G", "EXCLUSIVE": "yes", "GPU_TYPE": "a100"}
    done, words, env = submitted(GPUS_PER_NODE=2, TASKS_PER_NODE=2, **demanded)
    assert done.returncode == 0, done.stderr
    assert {"--account=lab7", "--qos=long", "--mem=64G", "--exclusive"} <= {*words}
    assert after(words, "--gres") == "gpu:a100:2" and after(words, "--nodes") == "1" and env["NODES"] == "1"


@pytest.mark.medium
def test_a_plan_is_printed_and_nothing_is_submitted(submitted, tmp_path):
    """Protects --plan on a login node: the runs of the nodes, not of this machine, and no folder. The words can be
    pasted. Mutant: words without quotes."""
    shape = {"NODES": 2, "TASKS_PER_NODE": 4, "ACCOUNT": "lab 7;id"}
    done, words, _ = submitted(PLAN="yes", STRATEGIES="single ddp", REPEATS=1, **shape)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sbatch --nodes 2 --ntasks-per-node 4 --cpus-per-task 2 --account=lab\\ 7\\;id\n")
    assert "ddp                 ranks 8" in done.stdout and "single              ranks 4" in done.stdout
    assert words == [] and not (tmp_path / "a set").exists()


@pytest.mark.parametrize(
    ("variables", "message"),
    few_fast(
        [
            ({"SLURM_JOB_ID": "3"}, "this is in Slurm job 3"),
            ({"SINFO": "down"}, "no Slurm cluster answers sinfo; run it on a cluster"),
            ({"CONTAINER": "x.sif"}, "CONTAINER=x.sif needs apptainer"),
            ({"REPEATS": "0"}, "--repeats is 0, but must be at least 1"),
            ({"GPUS_PER_NODE": "2", "TASKS_PER_NODE": "1"}, "TASKS_PER_NODE=1 does not match 2 GPUs a node"),
            (
                {"GRES": "gpu:a100:4(S:0-1)"},
                "no GPU, and nodes have gpu:a100:4(S:0-1); say how many: --gpus-per-node 4",
            ),
            ({"GPU_TYPE": "a100"}, "the job would have no GPU; say how many: --gpus-per-node 4, or 0 for the CPU"),
            ({"STRATEGIES": "single dpd"}, "no strategy 'dpd'; did you mean ddp?"),
            ({"TASKS_PER_NODE": "3"}, "is not a multiple of 6 ranks"),
            ({"NODES": "PATH[$(touch ran)]"}, "must be a number of nodes"),  # bash's arithmetic would run it
            ({"TASKS_PER_NODE": "PATH[$(touch ran)]"}, "must be a number of ranks a node"),
        ],
        {0, 7},
    ),
)
def test_a_mistake_is_reported_before_anything_waits_in_the_queue(submitted, tmp_path, variables, message):
    """Protects hours in the queue: exit code 2, a sentence, no traceback, no job, and no set."""
    done, words, _ = submitted(**{"NODES": 2} | variables)
    assert not (ROOT / "ran").exists()
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr and words == []
    assert not (tmp_path / "a set").exists()


@pytest.mark.parametrize("life", ["first", "second"])
@pytest.mark.parametrize("came_to", ["ok", "interrupted", "warm-up"])
def test_near_the_time_limit_the_job_goes_back_into_the_queue_if_it_got_anywhere(tmp_path, life, came_to):
    """Protects a set longer than a job, and the cluster from a job that goes round for ever. The loop hears SIGTERM,
    and its row of the run in progress comes before the job ends. The first life has no runs.csv yet."""
    put(tmp_path / "launchers", **{"cluster.sh": ""})
    put(
        tmp_path,
        **{
            "bench": f"""trap 'echo "c,ddp,interrupted,SIGTERM" >>"$RESULTS/runs.csv"; exit 143' TERM
            [ -e "$RESULTS/runs.csv" ] || echo run_id,strategy,status,reason >"$RESULTS/runs.csv"
            echo "b,single,{came_to}," >>"$RESULTS/runs.csv"; touch "$RESULTS/began"; while :; do sleep 0.1; done""",
        },
    )
    own = {"scontrol": f'echo "$@" >>"{tmp_path}/scontrol-calls"'}
    put(tmp_path / "bin", **own, sleep='case $1 in 60) ;; *) exec /bin/sleep "$@" ;; esac')
    if life == "second":
        (tmp_path / "runs.csv").write_text("run_id,strategy,status,reason\na,single,ok,\n")
    nodes = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_SUBMIT_DIR": tmp_path}
    env = environment(PATH=f"{tmp_path}/bin:{os.environ['PATH']}", RESULTS=tmp_path, **nodes)
    script = ROOT / "launchers/slurm_all_job.sh"
    job = subprocess.Popen([script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until((tmp_path / "began").exists, "the loop runs", 20)
    job.send_signal(signal.SIGUSR1)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 143 and (tmp_path / "runs.csv").read_text().endswith("c,ddp,interrupted,SIGTERM\n")
    assert "job 7 runs on node[1-2]" in out
    if came_to == "ok":
        assert (tmp_path / "scontrol-calls").read_text() == "requeue 7\n" and err == ""
    else:
        assert not (tmp_path / "scontrol-calls").exists() and "raise --time-min" in err


def test_steps_that_a_killed_srun_left_are_ended(monkeypatch, tmp_path):
    """Protects the next run from ranks on another node, where no process of this one finds them; by their name, so
    that no other step of the user's job is ended."""
    steps = 'echo "7.5 ddp-1-12000"; echo "7.0 bash"; echo "7.batch batch"'
    put(
        tmp_path / "bin",
        squeue=f'[ -e "{tmp_path}/ended" ] || echo "7.3 ddp-1-1200"; {steps}',
        scancel=f'echo "$@" >>"{tmp_path}/ended"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    processes.cancel_slurm_steps(tmp_path / "ddp-1-1200")
    assert (tmp_path / "ended").read_text() == "7.3\n"


@pytest.mark.parametrize("delay", ["0", pytest.param("0.4", marks=pytest.mark.medium)])
def test_a_run_that_ends_with_its_job_is_interrupted_and_did_not_fail(tmp_path, delay):
    """Protects resuming: Slurm signals all processes of a job at once, the ranks may end before their record hears
    of it, and a run that failed is not run again."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    folder.write_plan(Config(), {"strategy": "ddp", "ranks": 1, "nodes": 1, "threads_per_rank": 1} | ONE_RUN)
    own = ["--run", folder.plan]
    ends = ["bash", "-c", f"(sleep {delay}; kill -TERM $PPID) & [ {delay} != 0 ] || wait; exit 143"]
    command = [sys.executable, "-m", "scripts.runner.record", *own, "--", *ends]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(SLURM_JOB_ID=7), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 143, done.stderr
    (row,) = read_table(tmp_path, "runs").itertuples()
    assert row.status == "interrupted" and "SIGTERM" in row.reason


# --- for real -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path_factory):
    """A local cluster of its own: what an environment needs to find it."""
    folder = tmp_path_factory.mktemp("slurm")
    own = {**os.environ, "SLURM_LOCAL_DIR": str(folder)}
    started = subprocess.run([SLURM_LOCAL, "start"], env=own, capture_output=True, text=True, timeout=300)
    if started.returncode == 3:
        pytest.skip(started.stderr.strip().splitlines()[-1])
    assert started.returncode == 0, started.stderr
    yield {"SLURM_CONF": str(folder / "slurm.conf")}
    assert subprocess.run([SLURM_LOCAL, "stop"], env=own, capture_output=True, timeout=120).returncode == 0


@pytest.mark.slow
def test_a_job_that_is_put_back_goes_on_on_the_same_nodes(cluster, tmp_path, tiny_data, tiny_config):
    """Protects the whole of it: one job, two nodes in the rows of what spans them, one in the others', put back into
    the queue in the middle of a run, whose row says interrupted, and no finished run is run twice."""
    variables = {"RESULTS": tmp_path / "a set", "DATA": tiny_data, "CONFIG": tiny_config, "NODES": 2, "REPEATS": 2}
    variables |= {"TASKS_PER_NODE": 1, "STRATEGIES": "single ddp ddp_spawn slurm horovod_ddp"}
    runs = tmp_path / "a set" / "runs.csv"
    with open(tmp_path / "output", "w") as output:
        process = start_bench(ROOT, "slurm", **cluster | variables, stdout=output, stderr=output)
        try:
            until(lambda: runs.exists() and len(read_table(runs.parent, "runs")) > 2 and _trains(runs.parent), "a run")
            jobs = subprocess.run(
                ["squeue", "-h", "-o", "%A"], env=os.environ | cluster, capture_output=True, text=True
            )
            (job,) = jobs.stdout.split()
            subprocess.run(["scontrol", "requeue", job], env=os.environ | cluster, check=True, timeout=60)
            assert process.wait(900) == 0, (tmp_path / "output").read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    print((tmp_path / "output").read_text())
    rows = read_table(runs.parent, "runs")
    rows = rows[rows["repeat"] > 0]
    done = rows[rows.status != "interrupted"]
    assert (done.groupby(["strategy", "repeat"]).size() == 1).all() and len(done) == 2 * 5
    assert (rows.status == "interrupted").sum() == 1 and set(done.status) <= {"ok", "skipped"}
    ok = done[done.status == "ok"].groupby("strategy")[["nodes", "world_size"]].max().to_dict("index")
    assert ok["ddp"] == ok["slurm"] == {"nodes": 2, "world_size": 2}
    assert ok["single"] == ok["ddp_spawn"] == {"nodes": 1, "world_size": 1}
    assert all("`ssh node" in reason for reason in done[done.strategy == "horovod_ddp"].reason)
    assert (runs.parent / "job/run.log").read_text().count(f"job {job} runs on node[1-2]") == 2


def _trains(results: Path) -> bool:
    """Whether a run is in its training now."""
    folders = sorted(results.glob("logs/*-[1-9]-*/"), key=lambda path: path.stat().st_mtime)
    return bool(folders) and (folders[-1] / "progress").exists() and not (folders[-1] / "summary.json").exists()


@pytest.mark.parametrize("to_all", [False, True], ids=["the script", "its group"])
@pytest.mark.medium
def test_a_job_whose_number_is_not_known_yet_is_cancelled_all_the_same(tmp_path, to_all):
    """Protects the cluster from a job that nobody follows: SIGTERM came while sbatch was submitting it. Programs stand
    for Slurm's, whose moment is too short. Mutants: no trap before sbatch; sbatch hears SIGTERM."""
    sbatch = f"touch '{tmp_path}/submitted'; sleep 1; echo 77"
    scontrol = f"test -e '{tmp_path}/cancelled' && echo ' JobState=CANCELLED ExitCode=0:15' || echo ' JobState=PENDING'"
    put(tmp_path / "bin", sbatch=sbatch, scontrol=scontrol, scancel=f"echo \"$@\" >'{tmp_path}/cancelled'")
    env = environment(RUN_DIR=tmp_path, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    words = [ROOT / "launchers/slurm_submit.sh", "--", "true"]
    process = subprocess.Popen(words, env=env, start_new_session=True, preexec_fn=hear_sigint)
    until((tmp_path / "submitted").exists, "sbatch is at work")
    os.killpg(process.pid, signal.SIGTERM) if to_all else process.terminate()
    assert process.wait(60) == 143
    assert (tmp_path / "cancelled").read_text() == "77\n"
