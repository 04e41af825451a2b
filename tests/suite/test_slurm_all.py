"""make slurm-all: one Slurm job in which all strategies take turns on the same nodes.

    .venv/bin/python -m pytest tests/suite/test_slurm_all.py

The quick tests read command lines, with programs on PATH that stand for Slurm, ssh and containers. The slow ones are
real: a cluster of two nodes on this host, and torchrun as two pods of a Kubernetes job would start it.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fault_runs import until
from support import ROOT, STRATEGIES, SYNTHETIC_YAML, environment

from benchmarks.common.results import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.suite import plan, preflight, processes

ON_ONE_NODE = {"single", "dataparallel", "model_parallel", "ddp_spawn"}
OTHERWISE = {"slurm", "horovod_ddp"}  # by srun and by ssh; all others by torchrun
SLURM_LOCAL = ROOT / "scripts/setup/slurm_local.sh"
SCONTROL = """
case "$*" in
"show hostnames "*) printf '%s\\n' node1 node2 ;;
"show node node1 -o") echo "NodeName=node1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=node1 Version=23" ;;
"show job "*) echo " JobId=7 JobState=COMPLETED Reason=None ExitCode=0:0" ;;
esac
"""


def put(folder: Path, **programs: str) -> None:
    """Programs that stand for others, each by its bash."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def bin_path(tmp_path) -> Path:
    """A PATH's first folder: Slurm on two nodes of 8 cores, and an ssh that is let in."""
    put(tmp_path / "bin", sinfo="echo 8", scontrol=SCONTROL, ssh='[ "${SSH:-yes}" = yes ]', srun="echo usage")
    return tmp_path / "bin"


@pytest.fixture
def launched(recorder, bin_path, tmp_path, tiny_config, tiny_data):
    """launched(strategy, **environment): what a launcher runs in a job on two nodes with two tasks each; `words`,
    their environment `env`, the attempt's own words, and the half that was `asked`."""

    def launch(name: str, **variables) -> dict:
        job = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "node[1-2]", "ALLOCATION": 7, "NODES": 2, "NPROC": 2}
        job |= {"TASKS_PER_NODE": 2, "CPUS_PER_TASK": 3, "THREADS_PER_RANK": 3, "SLURM_CONF": "/dev/null"}
        ours = {"PATH": f"{bin_path}:{os.environ['PATH']}", "RESULTS": tmp_path / "a set", "CONFIG": tiny_config}
        ours |= {"DATA": tiny_data, "PASSED_ON": "scripts.suite.plan"}
        env = environment(**recorder.variables | ours | job | variables)
        done = subprocess.run([ROOT / "launchers" / f"{name}.sh"], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        call = recorder.calls()[-1]
        at = call["words"].index("--") if "--" in call["words"] else len(call["words"])
        folder = RunFolder(tmp_path / "a set" / "logs" / call["env"]["RUN_ID"])
        found = {"words": call["words"][at + 1 :], "attempt": call["words"][:at], "env": call["env"]}
        return found | {"asked": folder.settings()["asked"]}

    return launch


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


# --- what runs where ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_launcher_spans_the_nodes_or_says_that_it_cannot(monkeypatch, name):
    """Protects the comparison: no strategy runs on fewer nodes than the plan, its settings and its forecast have."""
    text = (ROOT / "launchers" / f"{name}.sh").read_text().splitlines()
    said = [word for word in ("on_one_node", "words_of_torchrun") if word in text]
    assert said == ([] if name in OTHERWISE else ["on_one_node" if name in ON_ONE_NODE else "words_of_torchrun"])
    for variable, value in (("HOSTS", ""), ("NODES", "2"), ("TASKS_PER_NODE", "4")):
        monkeypatch.setenv(variable, value)
    assert preflight.all_ranks(name, 4) == ((4, 1) if name in ON_ONE_NODE else (8, 2))


def test_torchrun_is_started_on_every_node(launched):
    """Protects the ranks' numbers: one torchrun a node, which knows its place, and meets the others at the first."""
    run = launched("ddp")
    step, torchrun = run["words"][: run["words"].index("bash")], run["words"][run["words"].index("-m") :]
    assert step[0] == "srun" and "--kill-on-bad-exit=1" in step
    for flag, value in (("--nodes", "2"), ("--ntasks", "2"), ("--ntasks-per-node", "1"), ("--cpus-per-task", "6")):
        assert after(step, flag) == value
    assert after(step, "--job-name") == run["env"]["RUN_ID"]
    assert "PET_NODE_RANK=$SLURM_NODEID" in after(run["words"], "-c")
    for flag, value in (("--nnodes", "2"), ("--nproc-per-node", "2"), ("--rdzv-backend", "static")):
        assert after(torchrun, flag) == value
    assert re.fullmatch(r"10\.0\.0\.1:2\d{4}", after(torchrun, "--rdzv-endpoint"))
    assert run["env"]["NPROC"] == "4" and "RENDEZVOUS_FILE" not in run["env"]
    assert "GLOO_SOCKET_IFNAME" not in run["env"]  # nodes cannot talk over loopback
    assert (run["asked"]["ranks"], run["asked"]["nodes"]) == (4, 2)


def test_srun_starts_all_tasks(launched):
    """Protects the one that needs no torchrun; inside the job it submits none."""
    words = launched("slurm")["words"]
    assert words[0] == "srun" and after(words, "--ntasks") == "4" and after(words, "--cpus-per-task") == "3"


def test_ranks_of_two_gpus_are_half_as_many_on_each_node(launched):
    """Protects 2 ranks x 2 nodes on machines of 4 GPUs from being 4 on each."""
    run = launched("hybrid_parallel", NUM_GPUS=4, GPUS_PER_NODE=4, NPROC=4, TASKS_PER_NODE=4)
    assert after(run["words"], "--nproc-per-node") == "2" and run["env"]["NPROC"] == "4"


@pytest.mark.parametrize("name", sorted(ON_ONE_NODE))
def test_what_cannot_span_nodes_has_the_first(launched, name):
    """Protects their rows: the ranks of one node, on it, and asked so."""
    run = launched(name)
    assert run["words"][1:3] == ["-m", f"benchmarks.{name}"]
    assert run["env"]["NPROC"] == ("2" if name == "ddp_spawn" else "1")
    assert (run["asked"]["ranks"], run["asked"]["nodes"]) == (2, 1)


def test_horovod_spans_nodes_by_ssh_or_is_skipped(launched):
    """Protects Horovod's row from being of fewer ranks than its neighbours'."""
    run = launched("horovod_ddp")
    assert after(run["words"], "-H") == "node1:2,node2:2" and after(run["words"], "-np") == "4"
    skipped = launched("horovod_ddp", SSH="no")
    assert skipped["words"] == [] and "`ssh node2` does not work" in after(skipped["attempt"], "--skip")
    assert (skipped["asked"]["ranks"], skipped["asked"]["nodes"]) == (4, 2)


def test_the_one_rank_that_fp16_is_measured_by_stays_on_one_node(monkeypatch, tmp_path):
    """Protects x one rank on V100s: the run of one rank is no run of one rank on each node, and no round lacks it."""
    for name, value in {
        "NODES": 2,
        "TASKS_PER_NODE": 4,
        "NPROC": 4,
        "NUM_GPUS": 4,
        "STRATEGIES": "single ddp_amp",
    }.items():
        monkeypatch.setenv(name, str(value))
    (tmp_path / "a.yaml").write_text(SYNTHETIC_YAML.replace("global_batch: 4", "global_batch: 8"))
    monkeypatch.setenv("CONFIG", str(tmp_path / "a.yaml"))
    monkeypatch.setattr("benchmarks.common.machine.capability", lambda: (7, 0))
    monkeypatch.setattr("benchmarks.common.machine.usable_gpus", lambda: 4)
    given = plan.read_variables()
    runs = [run for run in plan.bench(given) if run.round == 1 and run.strategy == "ddp_amp"]
    assert sorted((run.asked["ranks"], run.asked["nodes"], run.variables.get("NODES")) for run in runs) == [
        (1, 1, "1"),
        (8, 2, None),
    ]


# --- containers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_apptainer_runs_the_scripts_of_every_node(launched, bin_path, tmp_path, tiny_data, program):
    """Protects CONTAINER=: the image's interpreter, with the folders that a run needs, and the GPUs."""
    put(bin_path, **{program: ""})
    image = {"CONTAINER": "/images/torch.sif"}
    words = launched("single", **image)["words"]
    assert words[:2] == [str(bin_path / program), "exec"] and "--nv" not in words
    mounted = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]
    assert mounted == [str(ROOT), str(tmp_path / "a set"), str(tiny_data)]
    assert words[words.index("/images/torch.sif") :][:4] == ["/images/torch.sif", "python3", "-m", "benchmarks.single"]
    run = launched("ddp", NUM_GPUS=2, GPUS_PER_NODE=2, **image)
    assert run["words"][0] == "srun" and "--nv" in run["words"] and run["asked"]["container"] == image["CONTAINER"]
    inner = run["words"][run["words"].index("node") + 1 :]
    assert inner[0] == str(bin_path / program) and after(inner, "python3") == "-m"
    if program == "apptainer":
        assert "ssh, outside of the container" in after(launched("horovod_ddp", **image)["attempt"], "--skip")


def test_pyxis_takes_the_image_in_sruns_own_words(launched, bin_path, tmp_path, tiny_data):
    """Protects clusters with pyxis, where one process needs a step of its own, too."""
    put(bin_path, srun="echo '  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'")
    for name, tasks in (("ddp", "2"), ("slurm", "4"), ("single", "1")):
        words = launched(name, CONTAINER="nvcr.io#nvidia/pytorch:25.01-py3")["words"]
        assert words[0] == "srun" and after(words, "--ntasks") == tasks
        assert after(words, "--container-image") == "nvcr.io#nvidia/pytorch:25.01-py3"
        mounts = ",".join(f"{path}:{path}" for path in (ROOT, tmp_path / "a set", tiny_data))
        assert after(words, "--container-mounts") == mounts and after(words, "--container-workdir") == str(ROOT)
        assert "python3" in words and "apptainer" not in words
    assert after(words, "--relative") == "0"  # the first node


# --- the job ------------------------------------------------------------------------------------------------------


@pytest.fixture
def submitted(bin_path, tmp_path, tiny_data):
    """submitted(**environment): launchers/slurm_all.sh as it ended, and what sbatch was told: words, env."""
    put(bin_path, sbatch=f'printf "%s\\0" "$@" >"{tmp_path}/words"; env -0 >"{tmp_path}/env"; echo 7')

    def submit(**variables) -> tuple[subprocess.CompletedProcess, list[str], dict]:
        ours = {"PATH": f"{bin_path}:{os.environ['PATH']}", "RESULTS": tmp_path / "a set", "DATA": tiny_data}
        env = environment(**ours | {"SLURM_CONF": "/dev/null", "THREADS_PER_RANK": None} | variables)
        done = subprocess.run([ROOT / "launchers/slurm_all.sh"], env=env, capture_output=True, text=True, timeout=60)
        if not (tmp_path / "words").exists():
            return done, [], {}
        told = [(tmp_path / name).read_text().split("\0")[:-1] for name in ("words", "env")]
        return done, told[0], dict(each.split("=", 1) for each in told[1])

    return submit


def test_one_job_is_submitted_for_all(submitted, tmp_path):
    """Protects the shape of the job, and that a job that starts again finds the same set and the same settings."""
    done, words, env = submitted(NODES=2, TASKS_PER_NODE=4, PARTITION="short", TIME=30)
    assert done.returncode == 0, done.stderr
    shape = {"--nodes": "2", "--ntasks-per-node": "4", "--cpus-per-task": "2", "--partition": "short", "--time": "30"}
    assert {flag: after(words, flag) for flag in shape} == shape
    assert "--requeue" in words and words[-1] == "scripts/suite/slurm_suite.sh"
    told = {"NODES": "2", "TASKS_PER_NODE": "4", "NPROC": "4", "CPUS_PER_TASK": "2", "THREADS_PER_RANK": "2"}
    assert {name: env[name] for name in told} == told
    assert env["RESULTS"] == str(tmp_path / "a set") and Path(env["RESULTS"]).is_dir() and "NUM_CORES" not in env


def test_a_plan_is_printed_and_nothing_is_submitted(submitted, tmp_path):
    """Protects PLAN=yes on a login node: the runs of the nodes, not of this machine, and no folder."""
    done, words, _ = submitted(PLAN="yes", NODES=2, TASKS_PER_NODE=4, STRATEGIES="single ddp", REPEATS=1)
    assert done.returncode == 0, done.stderr
    assert "ddp                 ranks 8" in done.stdout and "single              ranks 4" in done.stdout
    assert words == [] and not (tmp_path / "a set").exists()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SLURM_JOB_ID": "3"}, "this is in Slurm job 3"),
        ({"SLURM_CONF": None, "SLURM_LOCAL_DIR": "/nowhere"}, "no Slurm cluster here; run it on a cluster"),
        ({"CONTAINER": "x.sif"}, "CONTAINER=x.sif needs apptainer"),
        ({"REPEATS": "0"}, "REPEATS is 0, but must be at least 1"),
        ({"GPUS_PER_NODE": "2", "TASKS_PER_NODE": "1"}, "TASKS_PER_NODE=1 does not match 2 GPUs a node"),
    ],
)
def test_a_mistake_is_said_before_anything_waits_in_the_queue(submitted, variables, said):
    """Protects hours in the queue: exit code 2, a sentence, no traceback, and no job."""
    if "SLURM_CONF" in variables and Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine is part of a cluster")
    done, words, _ = submitted(NODES=2, **variables)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr and words == []


@pytest.mark.parametrize("rows", [2, 1])
def test_near_the_time_limit_the_job_goes_back_into_the_queue_if_it_got_anywhere(tmp_path, rows):
    """Protects a set longer than a job, and the cluster from a job that goes round for ever. The loop hears SIGTERM,
    and its row of the run in progress comes before the job ends."""
    (tmp_path / "launchers").mkdir()
    shutil.copy(ROOT / "launchers/cluster.sh", tmp_path / "launchers")
    lines = ["run_id,strategy,status,reason", "a,single,ok,", "b,ddp,ok,"]
    loop = f"""trap 'echo "c,ddp,interrupted,SIGTERM" >>"$RESULTS/runs.csv"; exit 143' TERM
    echo "{lines[rows]}" >>"$RESULTS/runs.csv"; touch "$RESULTS/began"; while :; do sleep 0.1; done"""
    put(tmp_path / "launchers", **{"all.sh": loop.replace(lines[1], "d,single,interrupted,") if rows == 1 else loop})
    put(
        tmp_path / "bin",
        scontrol=f'echo "$@" >>"{tmp_path}/told"',
        sleep='case $1 in 60) ;; *) exec /bin/sleep "$@" ;; esac',
    )
    (tmp_path / "runs.csv").write_text("\n".join(lines[:2]) + "\n")
    env = environment(PATH=f"{tmp_path}/bin:{os.environ['PATH']}", RESULTS=tmp_path, SLURM_JOB_ID=7)
    job = subprocess.Popen(
        [ROOT / "scripts/suite/slurm_suite.sh"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    )
    until((tmp_path / "began").exists, "the loop runs", 20)
    job.send_signal(signal.SIGUSR1)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 143 and (tmp_path / "runs.csv").read_text().endswith("c,ddp,interrupted,SIGTERM\n")
    if rows == 2:
        assert (tmp_path / "told").read_text() == "requeue 7\n"
    else:
        assert not (tmp_path / "told").exists() and "raise TIME=" in err


def test_steps_that_a_killed_srun_left_are_ended(monkeypatch, tmp_path):
    """Protects the next run from ranks on another node, where no process of this one finds them; by their name, so
    that no other step of the user's job is ended."""
    put(
        tmp_path / "bin",
        squeue=f'[ -e "{tmp_path}/ended" ] || echo "7.3 ddp-1-1200"; echo "7.0 bash"; echo "7.batch batch"',
        scancel=f'echo "$@" >>"{tmp_path}/ended"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    processes.end_steps("ddp-1-1200")
    assert (tmp_path / "ended").read_text() == "7.3\n"


@pytest.mark.parametrize("delay", ["0", "0.4"])
def test_a_run_that_ends_with_its_job_is_interrupted_and_did_not_fail(tmp_path, delay):
    """Protects resuming: Slurm signals all processes of a job at once, the ranks may end before their attempt hears of
    it, and a run that failed is not run again."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    own = ["--strategy", "ddp", "--results", tmp_path, "--run-id", folder.run_id]
    ends = ["bash", "-c", f"(sleep {delay}; kill -TERM $PPID) & [ {delay} != 0 ] || wait; exit 143"]
    command = [sys.executable, "-m", "scripts.suite.attempt", *own, "--", *ends]
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
        env = environment(**cluster | variables)
        process = subprocess.Popen([ROOT / "launchers/slurm_all.sh"], env=env, stdout=output, stderr=output)
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
    assert (done.groupby(["strategy", "repeat"]).size() == 1).all() and len(done) == 2 * 5 + 2 * 1  # and all cores
    assert (rows.status == "interrupted").sum() <= 1 and set(done.status) <= {"ok", "skipped"}
    ok = done[done.status == "ok"].groupby("strategy")[["nodes", "world_size"]].max().to_dict("index")
    assert ok["ddp"] == ok["slurm"] == {"nodes": 2, "world_size": 2}
    assert ok["single"] == ok["ddp_spawn"] == {"nodes": 1, "world_size": 1}
    assert all("ssh node2" in reason for reason in done[done.strategy == "horovod_ddp"].reason)
    assert "has started again" in (runs.parent / "job/run.log").read_text()


def _trains(results: Path) -> bool:
    """Whether a run is in its training now."""
    folders = sorted(results.glob("logs/*-[1-9]-*/"), key=lambda path: path.stat().st_mtime)
    return bool(folders) and (folders[-1] / "progress").exists() and not (folders[-1] / "summary.json").exists()


@pytest.mark.slow
def test_the_line_for_kubernetes_starts_two_pods_that_train_together(tmp_path):
    """Protects the line of launchers/README.md: its text is what runs, as two processes with a job's variables."""
    (line,) = [line for line in (ROOT / "launchers/README.md").read_text().splitlines() if line.startswith("torchrun ")]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = line.replace("29400", str(port))
    (tmp_path / "a.yaml").write_text(
        SYNTHETIC_YAML + "steps: 4\nwarmup_steps: 1\nwindows: 1\nwindow_steps: 2\nworkers: 0\n"
    )
    folder = tmp_path / "set/logs/ddp-1-1"
    folder.mkdir(parents=True)
    pods = []
    for number in range(2):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        job = {
            "JOB_COMPLETION_INDEX": number,
            "POD_0": "127.0.0.1",
            "GPUS": 1,
            "GLOO_SOCKET_IFNAME": "lo",
            "PATH": path,
        }
        env = environment(**job, CONFIG=tmp_path / "a.yaml", RUN_DIR=folder)
        pods.append(subprocess.Popen(["bash", "-c", line], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True))
    for pod in pods:
        _, err = pod.communicate(timeout=300)
        assert pod.returncode == 0, err
    row = json.loads((folder / "summary.json").read_text())["row"]
    assert (row["nodes"], row["world_size"]) == (2, 2)
