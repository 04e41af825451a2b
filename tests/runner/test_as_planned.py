"""A row is ok only if the run was the one that was asked for.

.venv/bin/python -m pytest tests/runner/test_as_planned.py
"""

import dataclasses
import os
import shlex
import textwrap

import pytest
from support import run_strategy

from scripts.runner.as_planned import Planned, Reported, differences

PLANNED = Planned(ranks=2, threads=4, cores=8, gpus=0, global_batch=32, batch_per_device=0, windows=5)
REPORTED = Reported(
    ranks=2, devices=2, world_size=2, device="cpu", threads=4, cores=8, images_per_step=32.0, windows=5,
    windows_that_fit=9,
)  # fmt: skip


@pytest.mark.parametrize(
    "planned, reported, words",
    [
        ({}, {}, []),
        ({}, {"ranks": 1, "devices": 1, "world_size": 1}, ["2 ranks were started, and one is of a group of 1"]),
        ({}, {"devices": 1}, ["2 devices were to train, and 1 did"]),
        ({"gpus": 2}, {}, ["2 GPUs were planned, and it ran on a CPU"]),
        ({}, {"threads": 1}, ["a rank has 1 threads, and 4 were planned"]),
        ({}, {"cores": 1}, ["the ranks may use 1 of 8 cores, and have 2 x 4 threads"]),
        ({"ranks": 4, "threads": 1, "cores": 2}, {"ranks": 4, "threads": 1, "cores": 2}, []),  # oversubscribed
        ({}, {"images_per_step": 64.0}, ["a step trained on 64 images, and 32 were asked for"]),
        ({"global_batch": 0, "batch_per_device": 16}, {}, []),
        ({}, {"windows": 4}, ["4 windows were timed, and 5 were to be"]),
        ({}, {"windows": 3, "windows_that_fit": 3}, []),
        ({"windows": 0}, {"windows": 1}, []),  # resumed
        ({}, {"threads": 1, "cores": 1}, ["1 threads", "1 of 8 cores"]),
    ],
)
def test_what_differs_is_named(planned, reported, words):
    found = differences(dataclasses.replace(PLANNED, **planned), dataclasses.replace(REPORTED, **reported))
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True))


ON_ONE_CORE = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
ALONE = """
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
os.environ["RENDEZVOUS_FILE"] += os.environ["LOCAL_RANK"]
"""


@pytest.mark.launches
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize(
    "plant, why",
    [
        (ON_ONE_CORE, "the ranks may use 1 of "),
        (ALONE, "2 ranks were started, and one is of a group of 1"),
    ],
    ids=["on one core", "each alone"],
)
def test_ranks_that_trained_otherwise_make_the_row_invalid(tmp_path, tiny_data, tiny_config, plant, why):
    """Both ended well, and gave a number: a speed of half the machine, and one of a single rank."""
    lines = f"import os\nif 'LOCAL_RANK' in os.environ:\n{textwrap.indent(plant.strip(), '    ')}\n"
    (tmp_path / "sitecustomize.py").write_text(lines)
    words = f"--config {shlex.quote(str(tiny_config))} --data {shlex.quote(str(tiny_data))} --epochs 1"
    row = run_strategy("ddp", tmp_path / "a set", words, PYTHONPATH=tmp_path, NPROC=2)
    assert (row["status"], row["launcher_exit_code"]) == ("invalid", 1)
    assert row["reason"].startswith("not the run that was asked for: ") and why in row["reason"]
