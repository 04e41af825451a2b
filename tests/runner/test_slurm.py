"""./bench slurm, and the job that it submits, with programs on PATH that stand for Slurm. The real cluster is in
tests/test_slurm_local.py."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fault_runs import until
from support import ONE_RUN, ROOT, environment, few_fast, put

from benchmarks.common.config import Config
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.runner import processes

TWO_NODES = ("--nodes", "2", "--tasks-per-node", "4")


@pytest.fixture
def submitted(bin_path, tmp_path, tiny_data):
    """submitted(*words, **variables): ./bench slurm as it ended, the words of sbatch, and the job's environment."""
    put(bin_path, sbatch=f'printf "%s\\0" "$@" >"{tmp_path}/words"; env -0 >"{tmp_path}/env"; echo 7')

    def submit(*words: str, **variables) -> tuple[subprocess.CompletedProcess, list[str], dict]:
        env = environment(SETUP="no", PATH=f"{bin_path}:{os.environ['PATH']}", THREADS_PER_RANK=None, **variables)
        named = ["--results", tmp_path / "a set", "--data", tiny_data]
        command = [sys.executable, ROOT / "bench", "slurm", *words, *named]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        if not (tmp_path / "words").exists():
            return done, [], {}
        recorded = [(tmp_path / name).read_text().split("\0")[:-1] for name in ("words", "env")]
        return done, recorded[0], dict(each.split("=", 1) for each in recorded[1])

    return submit


def test_one_job_is_submitted_for_all(submitted, tmp_path):
    """A task has its share of the cores of a node, of which the default partition's have 8. A job that starts again
    finds the same set and the same words."""
    done, words, env = submitted("single", "ddp", *TWO_NODES, "--time-min", "30", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    shape = {"--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=2", "--time=30"}
    assert shape <= {*words} and not any("--gres" in word or "--partition" in word for word in words)
    for_run = words[words.index("launchers/slurm_job.sh") + 1 :]
    assert for_run[:2] == ["single", "ddp"] and for_run[for_run.index("--repeats") + 1] == "3"
    assert env["RESULTS"] == str(tmp_path / "a set") and Path(env["RESULTS"]).is_dir()


@pytest.mark.launches
def test_a_plan_is_printed_with_what_a_cluster_demands_and_nothing_is_submitted(submitted, tmp_path):
    """On a login node: the runs of the nodes, not of this machine, and no folder. The words can be pasted."""
    demanded = "--account='lab 7;id' --qos=long --exclusive"
    gpus = ("--nodes", "2", "--gpus-per-node", "2", "--partition", "short", f"--sbatch={demanded}")
    done, words, _ = submitted("single", "ddp", *gpus, "--plan", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    sbatch, *runs = done.stdout.splitlines()
    shape = {"--gres=gpu:2", "--nodes=2", "--ntasks-per-node=2", "--partition=short"}
    assert shape | {*shlex.split(demanded)} <= {*shlex.split(sbatch)}
    assert "  round 1  ddp" in runs and "with ranks 2 or 4, threads_per_rank 4, " in runs[-1]
    assert words == [] and not (tmp_path / "a set").exists()


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    few_fast(
        [
            ([], {"SLURM_JOB_ID": "3"}, "this is in Slurm job 3"),
            ([], {"SINFO": "down"}, "no Slurm cluster answers sinfo"),
            (["--gpus-per-node", "2", "--tasks-per-node", "1"], {}, "--tasks-per-node 1 does not match 2 GPUs a node"),
            ([], {"GRES": "gpu:a100:4(S:0-1)"}, "nodes have gpu:a100:4(S:0-1); say how many: --gpus-per-node 4"),
            (["--nodes", "2", "--tasks-per-node", "3"], {}, "is not a multiple of 6 ranks"),
        ],
        {4},
    ),
)
def test_a_mistake_is_reported_before_anything_waits_in_the_queue(submitted, tmp_path, words, variables, message):
    done, submitted_words, _ = submitted(*words, **variables)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert submitted_words == [] and not (tmp_path / "a set").exists()


SAVED = "interrupted,SIGTERM to the launcher; a checkpoint of step 3 of epoch 0 was saved"


@pytest.mark.parametrize(
    ("is_first", "first_row", "last_row", "requeued"),
    [
        (True, "ok,", "interrupted,SIGTERM", True),
        (False, "interrupted,", SAVED, True),
        (False, "interrupted,", "interrupted,SIGTERM", False),
        (False, "warm-up,", "interrupted,SIGTERM", False),
    ],
)
def test_near_the_time_limit_the_job_goes_back_into_the_queue_if_it_got_anywhere(
    tmp_path, is_first, first_row, last_row, requeued
):
    """The loop hears SIGTERM, and its row of the run in progress comes before the job ends. The first job of a set has
    no runs.csv yet."""
    bench = f"""trap 'echo "c,ddp,{last_row},1" >>"$RESULTS/runs.csv"; exit 143' TERM
        [ -e "$RESULTS/runs.csv" ] || echo run_id,strategy,status,reason >"$RESULTS/runs.csv"
        echo "b,single,{first_row},1" >>"$RESULTS/runs.csv"; touch "$RESULTS/began"; while :; do sleep 0.1; done"""
    put(tmp_path, bench=bench)
    scontrol = f'echo "$@" >>"{tmp_path}/scontrol-calls"'
    put(tmp_path / "bin", scontrol=scontrol, sleep='case $1 in 60) ;; *) exec /bin/sleep "$@" ;; esac')
    if not is_first:
        (tmp_path / "runs.csv").write_text("run_id,strategy,status,reason\na,single,ok,,1\n")
    nodes = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_SUBMIT_DIR": tmp_path}
    env = environment(PATH=f"{tmp_path}/bin:{os.environ['PATH']}", RESULTS=tmp_path, **nodes)
    script = ROOT / "launchers/slurm_job.sh"
    job = subprocess.Popen([script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until((tmp_path / "began").exists, "the loop runs", 20)
    job.send_signal(signal.SIGUSR1)
    out, err = job.communicate(timeout=20)
    assert job.returncode == 143 and (tmp_path / "runs.csv").read_text().endswith(f"c,ddp,{last_row},1\n")
    assert "job 7 runs on node[1-2]" in out
    if requeued:
        assert (tmp_path / "scontrol-calls").read_text() == "requeue 7\n" and err == ""
    else:
        assert not (tmp_path / "scontrol-calls").exists() and "raise --time-min" in err


def test_steps_that_a_killed_srun_left_are_ended(monkeypatch, tmp_path):
    """Ranks on another node, where no process of this one finds them; by their name, so that no other step of the job
    is ended."""
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


@pytest.mark.real_interpreter  # signals
def test_a_run_that_ends_with_its_job_is_interrupted_and_did_not_fail(tmp_path):
    """Slurm signals all processes of a job at once: the ranks may end before their record hears of it."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    folder.write_plan(Config(), {"strategy": "ddp", "ranks": 1, "nodes": 1, "threads_per_rank": 1} | ONE_RUN)
    ends = ["bash", "-c", "(sleep 0.4; kill -TERM $PPID) & exit 143"]
    command = [sys.executable, "-m", "scripts.runner.record", "--run", folder.plan, "--", *ends]
    env = environment(SLURM_JOB_ID=7)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 143, done.stderr
    (row,) = read_table(tmp_path, "runs").itertuples()
    assert row.status == "interrupted" and "SIGTERM" in row.reason


def test_the_network_of_several_nodes_is_a_setting_of_the_run(tmp_path):
    """A cluster may fall back to Ethernet."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    folder.write_plan(Config(), {"strategy": "ddp", "ranks": 2, "nodes": 2, "threads_per_rank": 1} | ONE_RUN)
    folder.write_summary({"row": {"images_per_s": 1.0}, "met": {"torch": "2"}})
    says = 'echo "n1:5:9 [0] NCCL INFO Using network IB" >"${NCCL_DEBUG_FILE/\\%h-\\%p/n1-5}"; [ $NCCL_DEBUG = INFO ]'
    command = [sys.executable, "-m", "scripts.runner.record", "--run", folder.plan, "--", "bash", "-c", says]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert folder.resolved()["network"] == "IB"
