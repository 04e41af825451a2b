"""The command lines that launchers build, by hand and over machines, on a recording interpreter: nothing trains."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from support import ROOT, after, asked, environment, few_fast, put

from benchmarks.common.config import load_config
from benchmarks.common.run_folder import RunFolder
from scripts.runner.request import with_images
from scripts.studies.allreduce.launch_ranks import torchrun_command

TORCHRUN = ["-m", "torch.distributed.run", "--log-dir", "/dev/null", "--nproc-per-node"]


@pytest.fixture
def command(recorder, tmp_path, tiny_config, tiny_data):
    """command(strategy, flags, **environment): (words that would be run, their environment, the record's own words)."""

    def build(name: str, flags: str = "", **variables) -> tuple[list[str], dict, list[str]]:
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        ours = {"PATH": path, "RESULTS": tmp_path / "a set", "THREADS_PER_RANK": None}
        env = environment(**recorder.variables | ours | {"PASSED_ON": "scripts.runner.by_hand"} | variables)
        words = ["--config", tiny_config, "--data", tiny_data, *shlex.split(flags)]
        done = subprocess.run([ROOT / "launchers" / f"{name}.sh", *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        call = recorder.calls()[-1]
        assert call["words"][:2] == ["-m", "scripts.runner.record"]
        at = call["words"].index("--") if "--" in call["words"] else len(call["words"])
        return call["words"][at + 1 :], call["env"], call["words"][:at]

    return build


@pytest.mark.parametrize("name", few_fast(["ddp", "single", "ddp_spawn", "horovod_ddp"], {0}))
def test_a_launcher_by_hand_passes_on_what_was_asked(command, recorder, tiny_config, tiny_data, name):
    """Paths with spaces, and flags, which win; all are in run.yaml. A rank has cores // ranks threads, and one machine
    uses loopback."""
    words, env, record = command(name, "--lr 0.2  --no-augment --limit-s 90", NPROC=2)
    folder = RunFolder(Path(after(record, "--run")).parent)
    assert words[0] == str(recorder.python) and folder.results.name == "a set"
    assert words[-3:] == [f"benchmarks.{name}", "--config", str(folder.plan)]
    config = load_config(words[-2:])
    assert (config.lr, config.augment, config.arch, config.limit_s) == (0.2, False, "resnet18", 90)
    plan = folder.read_plan()
    assert plan["flags"].endswith("--lr 0.2 --no-augment --limit-s 90") and plan["round"] == 1
    requested = plan["requested"]
    assert (requested["config"], requested["data"]) == (str(tiny_config), str(tiny_data))
    assert requested["strategy"] == name and requested["fingerprint"].startswith("4-40-23-")
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert env["THREADS_PER_RANK"] == env["OMP_NUM_THREADS"] == threads
    assert env["NPROC"] == ("1" if name == "single" else "2")
    if name != "single":
        assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "lo"
    if name == "ddp":
        assert words[1:9] == [*TORCHRUN, "2", "--rdzv-backend", "c10d"]
        of_study, variables = torchrun_command(2, "/a/folder")  # studies start ranks by the same flags
        names, study_names = (sorted(Path(word).name for word in each[1:]) for each in (words[:-4], of_study))
        assert names == study_names
        assert {each: Path(env[each]).name for each in variables} == {
            n: Path(text).name for n, text in variables.items()
        }
    elif name == "horovod_ddp":
        assert words[words.index("-np") :][:4] == ["-np", "2", "-H", "localhost:2"]


@pytest.mark.launches
def test_a_flag_that_is_none_is_named(recorder, tmp_path):
    env = environment(**recorder.variables | {"PASSED_ON": "scripts.runner.by_hand", "RESULTS": tmp_path / "a set"})
    words = [ROOT / "launchers/ddp.sh", "--global-bach", "7777"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "--global-bach" in done.stderr and "global_batch" in done.stderr and not (tmp_path / "a set").exists()


def test_without_an_interpreter_the_message_says_what_to_run(tmp_path):
    env = environment(PYTHON=tmp_path / "nowhere", RESULTS=tmp_path / "a set")
    done = subprocess.run([ROOT / "launchers/single.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "run: ./bench setup" in done.stderr


@pytest.mark.parametrize(
    "variables, synthetic",
    [
        ({"NUM_GPUS": "2"}, True),
        ({"NUM_GPUS": "0"}, False),
        ({"NUM_GPUS": "2", "DATA": "/an/imagenet"}, False),
        ({"NUM_GPUS": "2", "ARGS": "--loader folder"}, False),
        ({"NUM_GPUS": "2", "CONFIG": "configs/v100x4.yaml"}, False),
    ],
)
def test_gpus_without_images_train_on_synthetic_ones(monkeypatch, variables, synthetic):
    """Else figures of GPUs would be from 480 images that are read again and again."""
    for name in ("CONFIG", "DATA", "ARGS", "NUM_GPUS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (load_config(with_images(asked()).flags).loader == "synthetic") == synthetic


@pytest.mark.launches
def test_torchrun_over_several_machines(command):
    """Without Slurm: one id and one rendezvous for all nodes, over a real network interface."""
    words, env, _ = command("ddp", NNODES=2, NODE_RANK=1, RDZV_ENDPOINT="node1:29400", NPROC=4)
    assert words[1:7] == [*TORCHRUN, "4"]
    over = {"--nnodes": "2", "--node-rank": "1", "--rdzv-backend": "static", "--rdzv-id": "ddp"}
    over |= {"--rdzv-endpoint": "node1:29400"}
    assert {flag: after(words, flag) for flag in over} == over
    assert "store_type=file" not in words and "GLOO_SOCKET_IFNAME" not in env and "NCCL_SOCKET_IFNAME" not in env


ROUTES = {
    "getent": 'echo "$2 STREAM $2"',
    "ip": 'case $4 in here) echo "local $4 dev lo" ;; *) echo "$4 via 10.0.0.1 dev eth7 src 10.0.0.9" ;; esac',
}
"""Programs that know a host `here`, which is this machine, and others."""


@pytest.mark.launches
@pytest.mark.parametrize(
    ("ssh", "why"),
    [
        ('for last in "$@"; do :; done; sh -c "$last"', ""),  # the host sees this checkout
        ("exit 9", "this checkout is not on there"),
    ],
)
def test_horovodrun_over_several_machines(command, tmp_path, ssh, why):
    """As many ranks as HOSTS has slots, by one interface; nothing is asked of this machine."""
    put(tmp_path / "bin", ssh=f'echo "$@" >>"{tmp_path}/calls"\n{ssh}', **ROUTES)
    words, env, record = command("horovod_ddp", HOSTS="here:4,there:3")
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("-o BatchMode=yes -o ConnectTimeout=5 there ")
    if why:
        assert why in after(record, "--skip")
        return
    assert words[words.index("-np") :][:4] == ["-np", "7", "-H", "here:4,there:3"]
    assert after(words, "--network-interfaces") == "eth7" and "GLOO_SOCKET_IFNAME" not in env
