"""A row is ok only if the run was the one that was asked for."""

import os
import shlex

import pytest
from support import run_strategy

from scripts.runner.as_planned import why_invalid

REQUESTED = {"global_batch": 32, "batch_per_device": 0, "resume": False}
REPORTED = {"ranks": 2, "devices": 2, "world_size": 2, "device": "cpu", "threads": 4, "cores": 8}
REPORTED |= {"images_per_step": 32.0, "windows": 5, "windows_that_fit": 9}
ENV = {"NPROC": "2", "THREADS_PER_RANK": "4", "NUM_CORES": "8", "NUM_GPUS": "0"}


@pytest.mark.parametrize(
    "given, words",
    [
        ({}, ""),
        ({"ranks": 1, "devices": 1, "world_size": 1}, "2 ranks were started, and one is of a group of 1"),
        ({"devices": 1}, "2 devices were to train, and 1 did"),
        ({"NUM_GPUS": "2"}, "2 GPUs were planned, and it ran on a CPU"),
        ({"threads": 1}, "a rank has 1 threads, and 4 were planned"),
        ({"cores": 1}, "the ranks may use 1 of 8 cores, and have 2 x 4 threads"),
        ({"NUM_CORES": "2", "THREADS_PER_RANK": "1", "threads": 1, "cores": 2}, ""),
        ({"NUM_CORES": "1", "THREADS_PER_RANK": "1", "threads": 1, "cores": 1}, ""),  # oversubscribed
        ({"images_per_step": 64.0}, "a step trained on 64 images, and 32 were asked for"),
        ({"global_batch": 0, "batch_per_device": 16}, ""),
        ({"windows": 4}, "4 windows were timed, and 5 were to be"),
        ({"windows": 3, "windows_that_fit": 3}, ""),
        ({"resume": True, "windows": 1}, ""),
    ],
)
def test_what_differs_is_named(given, words):
    requested, reported, env = (
        own | {name: given[name] for name in given.keys() & own.keys()} for own in (REQUESTED, REPORTED, ENV)
    )
    found = why_invalid(requested | {"windows": 5}, reported, env, num_ranks=2)
    assert words in found and bool(words) == bool(found) and ";" not in found


@pytest.mark.launches
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_on_one_core_make_the_row_invalid(tmp_path, tiny_data, tiny_config):
    """The run ended well, and gave a number: a speed of half the machine."""
    bind = "import os\nif 'LOCAL_RANK' in os.environ: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    (tmp_path / "sitecustomize.py").write_text(bind)
    words = f"--config {shlex.quote(str(tiny_config))} --data {shlex.quote(str(tiny_data))} --epochs 1"
    row = run_strategy("ddp", tmp_path / "a set", words, PYTHONPATH=tmp_path, NPROC=2)
    assert (row["status"], row["launcher_exit_code"]) == ("invalid", 1)
    assert row["reason"].startswith("not the run that was asked for: the ranks may use 1 of ")
