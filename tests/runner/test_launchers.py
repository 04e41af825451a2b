"""The command lines that launchers build, and the order in which ./bench run starts them, on a recording interpreter.

    .venv/bin/python -m pytest tests/runner/test_launchers.py

Nothing trains here; tests/benchmarks/test_strategies.py runs the same launchers for real.
"""

import json
import os
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
from support import OURS, ROOT, STRATEGIES, after, asked, environment, put

from benchmarks.common.config import load_config
from benchmarks.common.run_folder import RunFolder
from scripts.runner.environment import add_packages, installed_packages
from scripts.runner.remote_hosts import remote_hosts
from scripts.runner.request import with_images
from scripts.studies.allreduce.launch_ranks import torchrun_command

TORCHRUN = ["-m", "torch.distributed.run", "--log-dir", "/dev/null", "--nproc-per-node"]
BY_TORCHRUN = ["ddp", "ddp_amp", "pipeline_parallel", "hybrid_parallel"]
IN_ONE_PROCESS = ["single", "dataparallel", "model_parallel"]


@pytest.fixture
def command(recorder, tmp_path, tiny_config, tiny_data):
    """command(strategy, flags, **environment): (words that would be run, their environment, the record's own words).

    Of a launcher that is started by hand.
    """

    def build(name: str, flags: str = "", **variables) -> tuple[list[str], dict, list[str]]:
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        ours = {"PATH": path, "RESULTS": tmp_path / "a set", "THREADS_PER_RANK": None}
        env = environment(**recorder.variables | ours | {"PASSED_ON": "scripts.runner.by_hand"} | variables)
        words = ["--config", tiny_config, "--data", tiny_data, *shlex.split(flags)]
        done = subprocess.run([ROOT / "launchers" / f"{name}.sh", *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        call = recorder.calls()[-1]
        assert call["words"][:2] == ["-m", "scripts.runner.record"]
        record, words = split(call["words"], "--") if "--" in call["words"] else (call["words"], [])
        assert RunFolder(Path(after(record, "--run")).parent).read_plan()["strategy"] == name
        return words, call["env"], record

    return build


def split(words, at):
    where = words.index(at)
    return words[:where], words[where + 1 :]


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


# --- one launcher -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "slurm"])
def test_every_launcher_passes_what_was_asked_and_nothing_else(command, recorder, tiny_config, tiny_data, name):
    """Protects who starts a launcher by hand: paths with spaces, and flags, which win; all are in run.yaml."""
    gpus = 2 if name == "apex_ddp" else 0  # it is skipped where there are none
    words, _, record = command(name, "--lr 0.2  --no-augment --limit-s 90", NUM_GPUS=gpus)
    _, flags = split(words, f"benchmarks.{name}")
    file = Path(after(record, "--run"))
    assert flags == ["--config", str(file)] and words[0] == str(recorder.python)
    assert file.parent.parent.parent.name == "a set"
    config = load_config(flags)
    assert (config.lr, config.augment, config.arch, config.limit_s) == (0.2, False, "resnet18", 90)
    assert config.data == str(tiny_data)
    plan = RunFolder(file.parent).read_plan()
    assert plan["flags"].endswith("--lr 0.2 --no-augment --limit-s 90") and plan["round"] == 1
    requested = plan["requested"]
    assert (requested["config"], requested["strategy"]) == (str(tiny_config), name)
    assert requested["fingerprint"].startswith("4-40-23-")


def test_a_flag_that_is_none_is_named(recorder, tmp_path):
    """Protects who mistypes a flag from a training with the defaults."""
    env = environment(**recorder.variables | {"PASSED_ON": "scripts.runner.by_hand", "RESULTS": tmp_path / "a set"})
    words = [ROOT / "launchers/ddp.sh", "--global-bach", "7777"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "--global-bach" in done.stderr and "global_batch" in done.stderr and not (tmp_path / "a set").exists()


ALIKE = [*BY_TORCHRUN[1:], *IN_ONE_PROCESS[1:]]  # as the first of each


@pytest.mark.parametrize(
    "name",
    [
        *(BY_TORCHRUN[0], IN_ONE_PROCESS[0], "ddp_spawn", "horovod_ddp"),
        *(pytest.param(name, marks=pytest.mark.launches) for name in ALIKE),
    ],
)
def test_ranks_and_threads(command, name):
    """Protects fairness: a rank has cores // ranks threads, said to it and to OpenMP, and one machine uses loopback."""
    for nproc in (1, 2):
        words, env, _ = command(name, NPROC=nproc)
        threads = str(max(1, num_cores() // nproc))
        assert env["THREADS_PER_RANK"] == env["OMP_NUM_THREADS"] == threads
        assert env["NPROC"] == ("1" if name in IN_ONE_PROCESS else str(nproc))
        if name not in IN_ONE_PROCESS:
            assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "lo"
        if name in BY_TORCHRUN:
            assert words[1:9] == [*TORCHRUN, str(nproc), "--rdzv-backend", "c10d"]
        elif name == "horovod_ddp":
            assert words[1:4] == ["-m", "horovod.runner.launch", "--gloo"]
            assert words[words.index("-np") :][:4] == ["-np", str(nproc), "-H", f"localhost:{nproc}"]
        else:
            assert words[1:3] == ["-m", f"benchmarks.{name}"]


@pytest.mark.parametrize(
    "variables, synthetic",
    [
        ({"NUM_GPUS": "2"}, True),
        ({"NUM_GPUS": "2", "ARGS": "--global-batch 64"}, True),
        ({"NUM_GPUS": "0"}, False),
        ({"NUM_GPUS": "2", "DATA": "/an/imagenet"}, False),
        ({"NUM_GPUS": "2", "ARGS": "--data=/an/imagenet"}, False),
        ({"NUM_GPUS": "2", "ARGS": "--loader folder"}, False),
        ({"NUM_GPUS": "2", "CONFIG": "configs/v100x4.yaml"}, False),
    ],
)
def test_gpus_without_images_train_on_synthetic_ones(monkeypatch, variables, synthetic):
    """Protects figures of GPUs from 480 images that are read again and again. Whoever names images, a loader or a
    configuration gets those. Mutant: DATA is not looked at."""
    for name in ("CONFIG", "DATA", "ARGS", "NUM_GPUS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = asked()
    config = load_config(with_images(given).flags)
    assert (config.loader == "synthetic") == synthetic and (with_images(given) != given) == synthetic


def test_torchrun_over_several_machines(command, recorder, tmp_path):
    """Protects clusters without Slurm: one id and one rendezvous for all nodes, over a real network interface."""
    words, env, _ = command("ddp", NNODES=2, NODE_RANK=1, RDZV_ENDPOINT="node1:29400", NPROC=4)
    assert words[1:7] == [*TORCHRUN, "4"] and words[words.index("-m", 3) + 1] == "benchmarks.ddp"
    over = {"--nnodes": "2", "--node-rank": "1", "--rdzv-backend": "static", "--rdzv-id": "ddp"}
    over |= {"--rdzv-endpoint": "node1:29400"}
    assert {flag: after(words, flag) for flag in over} == over
    assert "store_type=file" not in words and "GLOO_SOCKET_IFNAME" not in env and "NCCL_SOCKET_IFNAME" not in env
    env = environment(**recorder.variables | {"RESULTS": tmp_path / "a set", "NNODES": 2, "PASSED_ON": OURS})
    command = [ROOT / "launchers/ddp.sh", "--loader", "synthetic"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "RDZV_ENDPOINT is '', but must be host:port of the first node" in done.stderr


SHARED = 'for last in "$@"; do :; done; sh -c "$last"'
"""ssh to a host that sees this checkout."""


@pytest.mark.parametrize(
    ("ssh", "why"),
    [
        (SHARED, ""),
        ("exit 255", "`ssh 127.0.0.2` fails or asks a question"),
        ("exit 9", "this checkout is not on 127.0.0.2"),
    ],
)
def test_horovodrun_over_several_machines(command, tmp_path, ssh, why):
    """Protects HOSTS=a:4,b:4: as many ranks as the hosts have slots, by one interface, and nothing is asked of this
    machine. A host that cannot be reached, or lacks the checkout, is named."""
    put(tmp_path / "bin", ssh=f'echo "$@" >>"{tmp_path}/calls"\n{ssh}')
    words, env, record = command("horovod_ddp", HOSTS="localhost:4,127.0.0.2:3")
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("-o BatchMode=yes -o ConnectTimeout=5 127.0.0.2 ")
    if why:
        assert why in after(record, "--skip")
        return
    assert words[words.index("-np") :][:4] == ["-np", "7", "-H", "localhost:4,127.0.0.2:3"]
    assert words[words.index("--network-interfaces") + 1] == "lo" and "GLOO_SOCKET_IFNAME" not in env


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("localhost:4", ("", [])),
        (f"{socket.gethostname()}:1,localhost:1", ("", [])),
        ("127.0.0.3:2,127.0.0.2:2", ("lo", ["127.0.0.3", "127.0.0.2"])),
        ("known to ssh alone:1,127.0.0.2:2", ("lo", ["known to ssh alone", "127.0.0.2"])),
        ("localhost:1,known to ssh alone:1", ("", ["known to ssh alone"])),
        (f"localhost:1,{'long' * 16}:1", ("", ["long" * 16])),
    ],
)
def test_which_hosts_are_others(hosts, expected):
    """Protects a machine without an ssh server: nothing is asked of itself. Mutant: all hosts are others."""
    assert remote_hosts(hosts) == expected


def test_without_an_interpreter_the_message_says_make_setup(tmp_path):
    """Protects the first command of a stranger."""
    env = environment(PYTHON=tmp_path / "nowhere", RESULTS=tmp_path / "a set")
    done = subprocess.run([ROOT / "launchers/single.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "run: ./bench setup" in done.stderr


def test_studies_start_ranks_by_the_same_torchrun_flags(command):
    """Protects studies from ports that launchers do not open: the flags are in bash and in Python. Mutant: one of them
    without --local-addr."""
    words, env, _ = command("ddp", NPROC=2)
    of_study, variables = torchrun_command(2, "/a/folder")
    of_launcher = words[: words.index("benchmarks.ddp") - 1]
    names, study_names = (sorted(Path(word).name for word in each[1:]) for each in (of_launcher, of_study))
    assert names == study_names
    assert {name: Path(env[name]).name for name in variables} == {n: Path(text).name for n, text in variables.items()}


def test_versions_of_what_was_installed_later_are_added(tmp_path):
    """Protects a report from a library that was built after the first run; what was noted stays."""
    path, packages = tmp_path / "environment.json", installed_packages()
    path.write_text(json.dumps({"packages": packages | {"torch": "1.0", "numpy": None}}))
    add_packages(path)
    assert json.loads(path.read_text())["packages"] == packages | {"torch": "1.0"}
