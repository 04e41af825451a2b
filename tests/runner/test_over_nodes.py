"""In one Slurm job on two nodes: which strategies span them and how, and what runs in a container. Programs on PATH
stand for Slurm, ssh and containers."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import ROOT, STRATEGIES, SYNTHETIC_YAML, after, asked, environment, put

from benchmarks.common.run_folder import RunFolder
from scripts.runner import plan
from scripts.shared import strategy_list

ON_ONE_NODE = {"single", "dataparallel", "model_parallel", "ddp_spawn"}
OTHERWISE = {"slurm", "horovod_ddp"}  # by srun and by ssh; all others by torchrun
JOB = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": 2, "SLURM_NTASKS_PER_NODE": 2}
JOB |= {"SLURM_JOB_CPUS_PER_NODE": "6(x2)", "SLURM_CPUS_PER_TASK": 3, "THREADS_PER_RANK": 3, "SLURM_CONF": "/dev/null"}


@pytest.fixture
def launched(recorder, bin_path, tmp_path, tiny_config, tiny_data):
    """launched(strategy, **environment): what a launcher runs in a job on two nodes with two tasks each: `words`, their
    environment `env`, the record's own words, and the half that was `asked`."""

    def launch(name: str, **variables) -> dict:
        ours = {"PATH": f"{bin_path}:{os.environ['PATH']}", "RESULTS": tmp_path / "a set"}
        env = environment(**recorder.variables | ours | {"PASSED_ON": "scripts.runner.by_hand"} | JOB | variables)
        words = [ROOT / "launchers" / f"{name}.sh", "--config", tiny_config, "--data", variables.get("DATA", tiny_data)]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        call = recorder.calls()[-1]
        at = call["words"].index("--") if "--" in call["words"] else len(call["words"])
        folder = RunFolder(Path(after(call["words"], "--run")).parent)
        found = {"words": call["words"][at + 1 :], "record": call["words"][:at], "env": call["env"]}
        return found | {"run_id": folder.run_id, "asked": folder.requested()}

    return launch


def test_a_launcher_spans_the_nodes_that_the_plan_has(monkeypatch):
    for variable in ("HOSTS", "NNODES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    for name in STRATEGIES:
        text = (ROOT / "launchers" / f"{name}.sh").read_text().splitlines()
        found = [word for word in ("over_loopback", "set_torchrun_command") if word in text]
        one_node = name in ON_ONE_NODE
        assert found == ([] if name in OTHERWISE else ["over_loopback" if one_node else "set_torchrun_command"]), name
        assert strategy_list.total_ranks_and_nodes(name, 4) == ((4, 1) if one_node else (8, 2)), name


@pytest.mark.launches
def test_torchrun_is_started_on_every_node(launched):
    """Each knows its place, and meets the others at the first. Its ranks may use all cores of their node."""
    run = launched("ddp")
    step, torchrun = run["words"][: run["words"].index("bash")], run["words"][run["words"].index("-m") :]
    assert step[0] == "srun" and {"--kill-on-bad-exit=1", "--cpu-bind=none"} <= {*step}
    for flag, value in (("--nodes", "2"), ("--ntasks", "2"), ("--ntasks-per-node", "1"), ("--cpus-per-task", "6")):
        assert after(step, flag) == value
    assert after(step, "--job-name") == run["run_id"]
    assert "PET_NODE_RANK=$SLURM_NODEID" in run["words"][run["words"].index("node") - 1]
    for flag, value in (("--nnodes", "2"), ("--nproc-per-node", "2"), ("--rdzv-backend", "static")):
        assert after(torchrun, flag) == value
    assert re.fullmatch(r"10\.0\.0\.1:2\d{4}", after(torchrun, "--rdzv-endpoint"))
    assert run["env"]["NPROC"] == run["env"]["NODES"] == "2" and "RENDEZVOUS_FILE" not in run["env"]
    assert "GLOO_SOCKET_IFNAME" not in run["env"]  # nodes cannot talk over loopback
    assert (run["asked"]["ranks"], run["asked"]["nodes"]) == (4, 2)


@pytest.mark.launches
def test_srun_starts_all_tasks_and_ranks_meet_at_the_first_node(launched):
    """Ranks of one node meet in a file of its /tmp, and nothing listens beyond loopback."""
    run = launched("slurm")
    words, env = run["words"], run["env"]
    assert words[0] == "srun" and after(words, "--ntasks") == "4" and after(words, "--cpus-per-task") == "3"
    assert "--cpu-bind=none" in words and env["MASTER_ADDR"] == "10.0.0.1" and env["MASTER_PORT"].isdecimal()
    assert "RENDEZVOUS_FILE" not in env and "GLOO_SOCKET_IFNAME" not in env
    run = launched("slurm", SLURM_JOB_NUM_NODES=1, SLURM_JOB_CPUS_PER_NODE=6)
    words, env = run["words"], run["env"]
    assert after(words, "--nodes") == "1" and after(words, "--cpus-per-task") == "3" and "MASTER_ADDR" not in env
    assert env["RENDEZVOUS_FILE"] == f"/tmp/ranks-7-{run['run_id']}" and env["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.launches
def test_horovod_spans_nodes_by_ssh_or_is_skipped(launched, bin_path):
    route = "echo 10.0.0.1 dev eth7 src 10.0.0.9"
    put(bin_path, getent='echo "$2 STREAM"', ip=f'[ "$4" = node1 ] && echo local node1 dev lo || {route}')
    run = launched("horovod_ddp", SLURM_NTASKS_PER_NODE=4)
    assert after(run["words"], "--network-interfaces") == "eth7"
    assert after(run["words"], "-H") == "node1:4,node2:4" and after(run["words"], "-np") == "8"
    skipped = launched("horovod_ddp", SSH="no")
    assert skipped["words"] == [] and "`ssh node2` fails or asks a question" in after(skipped["record"], "--skip")
    assert (skipped["asked"]["ranks"], skipped["asked"]["nodes"]) == (4, 2)
    assert "HOSTS=node0:8" in after(launched("horovod_ddp", NNODES=2, RDZV_ENDPOINT="a:29400")["record"], "--skip")


def test_the_one_rank_that_fp16_is_measured_by_stays_on_one_node(monkeypatch, tmp_path):
    """It is no run of one rank on each node."""
    (tmp_path / "a.yaml").write_text(SYNTHETIC_YAML.replace("global_batch: 4", "global_batch: 8"))
    variables = {"SLURM_JOB_NUM_NODES": 2, "NUM_GPUS": 4, "CONFIG": tmp_path / "a.yaml", "STRATEGIES": "single ddp_amp"}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("scripts.shared.gpus.min_compute_capability", lambda: (7, 0))
    runs = [run for run in plan.plan_strategies(asked()) if run.strategy == "ddp_amp"]
    found = sorted((run.requested["ranks"], run.requested["nodes"], run.variables["NODES"]) for run in runs)
    assert found == [(1, 1, "1"), (8, 2, "2")]


# --- containers ---------------------------------------------------------------------------------------------------


@pytest.mark.launches
def test_apptainer_runs_the_scripts_of_every_node(launched, tmp_path, tiny_data):
    """With the folders that a run needs, and the GPUs."""
    image = {"CONTAINER": "/images/torch.sif", "PACKED": tmp_path / "packed images"}
    words = launched("single", **image)["words"]
    assert words[:2] == ["apptainer", "exec"] and "--nv" not in words
    mounted = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]
    assert mounted == [str(ROOT), str(tmp_path / "a set"), str(tiny_data), str(image["PACKED"])]
    assert words[words.index("/images/torch.sif") :][:4] == ["/images/torch.sif", "python3", "-m", "benchmarks.single"]
    run = launched("ddp", NUM_GPUS=2, **image)
    assert run["words"][0] == "srun" and "--nv" in run["words"] and run["asked"]["container"] == image["CONTAINER"]
    inner = run["words"][run["words"].index("node") + 1 :]
    assert inner[0] == "apptainer" and after(inner, "python3") == "-m"


@pytest.mark.launches
def test_pyxis_takes_the_image_in_sruns_own_words(launched, tmp_path, tiny_data):
    """One process needs a step of its own, too."""
    images = shutil.copytree(tiny_data, tmp_path / "images")
    for name, tasks in (("ddp", "2"), ("single", "1")):
        folders = {"PACKED": "/packed/größe", "RESULTS": tmp_path / "set", "DATA": images}
        words = launched(name, CONTAINER="nvcr.io#nvidia/pytorch:25.01-py3", **folders)["words"]
        assert words[0] == "srun" and after(words, "--ntasks") == tasks
        assert after(words, "--container-image") == "nvcr.io#nvidia/pytorch:25.01-py3"
        mounts = ",".join(f"{path}:{path}" for path in (ROOT, tmp_path / "set", images, "/packed/größe"))
        assert after(words, "--container-mounts") == mounts and after(words, "--container-workdir") == str(ROOT)
        assert "python3" in words and "apptainer" not in words
    assert after(words, "--relative") == "0"  # the first node
