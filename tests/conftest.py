"""The fixtures of all tests, and a limit, so that a test which hangs fails, and the others still run.

Fixtures import what they need: the process that starts pytest-xdist's workers reads this file, too.
"""

import os
import shutil
import signal
import typing
from pathlib import Path

import pytest
from preloaded.interpreter import choose, share

if typing.TYPE_CHECKING:
    from support import Recorder

    from scripts.runner.request import Request

LIMIT_S = 1800  # of one test, with the fixtures that it is the first to need


def pytest_configure(config):
    if getattr(config.option, "numprocesses", None):  # of pytest-xdist, before it starts them
        share()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    def late(*_):
        raise TimeoutError(f"{item.nodeid} did not end in {LIMIT_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    choose(is_real=item.get_closest_marker("real_interpreter") is not None)


@pytest.fixture(scope="session", autouse=True)
def wait_for_no_disk():
    """97 % of the time that a set of results takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(os, "sync", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread_and_no_gpu():
    """What support.py sets when it is imported, for every test."""
    import support  # noqa: F401


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """4 classes that a model can learn; tests only read it."""
    from support import NUM_TRAIN, NUM_VAL, draw_images

    folder = tmp_path_factory.mktemp("data") / "tiny images"
    draw_images(folder / "train", NUM_TRAIN, seed=0)
    draw_images(folder / "val", NUM_VAL, seed=1)
    return folder


@pytest.fixture
def own_data(tiny_data, tmp_path) -> Path:
    """A copy of tiny_data that a test may spoil."""
    return Path(shutil.copytree(tiny_data, tmp_path / "own images"))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> Path:
    """The configuration of runs on tiny_data."""
    from support import TINY_YAML

    path = tmp_path_factory.mktemp("config") / "tiny config.yaml"
    path.write_text(TINY_YAML)
    return path


@pytest.fixture(scope="module")
def small_model():
    """In the place of ResNet-18, of which a step takes 40 ms and a checkpoint 90 MB."""
    import torchvision
    from support import SmallModel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.models, "resnet18", SmallModel)
        yield


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """A copy of the suite, for tests of ./bench run, which sets results/latest."""
    from support import ROOT

    folder = tmp_path_factory.mktemp("clone") / "a checkout"
    for part in ("benchmarks", "configs", "launchers", "scripts"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "bench", folder)
    for launcher in (folder / "launchers").iterdir():
        launcher.chmod(0o644)  # an archive may have lost the right to be executed
    return folder


@pytest.fixture
def recorder(tmp_path) -> "Recorder":
    from support import Recorder

    folder = tmp_path / "stub folder"
    folder.mkdir()
    return Recorder(folder)


MACHINE = "NPROC HOSTS NNODES NODE_RANK THREADS_PER_RANK SLURM_JOB_NUM_NODES SLURM_NTASKS_PER_NODE".split()

SCONTROL = """
case "$*" in
"show hostnames "*) printf '%s\\n' node1 node2 ;;
"show node node1 -o") echo "NodeName=node1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=node1 Version=23" ;;
"show job "*) echo " JobId=7 JobState=COMPLETED Reason=None ExitCode=0:0" ;;
esac
"""


@pytest.fixture
def make_request(monkeypatch, tmp_path):
    """make_request(**options): of `./bench run single ddp --repeats 2`, with a small configuration, and options in
    capitals."""
    from support import SYNTHETIC_YAML, asked, bench_words

    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)

    def read(**options) -> "Request":
        ours = {"CONFIG": tmp_path / "own.yaml", "NUM_GPUS": 0, "STRATEGIES": "single ddp", "REPEATS": 2}
        num_ranks = options.pop("NPROC", None)
        _, variables = bench_words("", **ours | options)
        variables |= {"NPROC": num_ranks} if num_ranks is not None else {}
        for name in MACHINE:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        return asked(**{name: value for name, value in (ours | options).items() if name not in variables})

    return read


@pytest.fixture
def bin_path(tmp_path) -> Path:
    """A PATH's first folder: Slurm on two nodes of 8 cores, and an ssh."""
    from support import put

    sinfo = """[ "${SINFO:-up}" = up ] || exit 1
        case $* in
          *--partition*) echo "short 8 ${GRES:-(null)}" ;;
          *) echo "debug 2 gpu:9"; echo "batch* 8+ ${GRES:-(null)}" ;;
        esac"""
    ssh = '[ "${SSH:-yes}" = yes ]'
    put(tmp_path / "bin", sinfo=sinfo, scontrol=SCONTROL, ssh=ssh, srun="echo usage")
    return tmp_path / "bin"
