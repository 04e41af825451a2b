"""The fixtures of all tests: a small folder of real photographs, a checkout of their own, a recording interpreter, and
a limit, so that a test which hangs fails, and the others still run."""

import shutil
import signal
from pathlib import Path

import pytest
from support import NUM_TRAIN, NUM_VAL, ROOT, TINY_YAML, Recorder, draw_images

LIMIT_S = 1800  # of one test, with the fixtures that it is the first to need


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


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """train/ and val/ with 4 classes that a model can learn; tests only read it. Its path has a space."""
    folder = tmp_path_factory.mktemp("data") / "tiny images"
    draw_images(folder / "train", NUM_TRAIN, seed=0)
    draw_images(folder / "val", NUM_VAL, seed=1)
    return folder


@pytest.fixture
def own_data(tiny_data, tmp_path) -> Path:
    """A copy of tiny_data that a test may spoil."""
    return Path(shutil.copytree(tiny_data, tmp_path / "own images"))


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> Path:
    """The configuration of runs on tiny_data."""
    path = tmp_path_factory.mktemp("config") / "tiny config.yaml"
    path.write_text(TINY_YAML)
    return path


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """A copy of the suite for tests of all.sh, which sets results/latest. Its path has a space, too."""
    folder = tmp_path_factory.mktemp("clone") / "a checkout"
    for part in ("benchmarks", "configs", "launchers", "scripts"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def recorder(tmp_path) -> Recorder:
    folder = tmp_path / "stub folder"
    folder.mkdir()
    return Recorder(folder)
