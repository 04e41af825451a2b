"""A row is ok only if the run was the one that was asked for."""

import pytest

from scripts.runner.as_planned import why_invalid

REPORTED = {"ranks": 2, "devices": 2, "world_size": 2, "device": "cpu", "threads": 4}
ENV = {"NPROC": "2", "THREADS_PER_RANK": "4", "NUM_GPUS": "0"}


@pytest.mark.parametrize(
    "given, words",
    [
        ({}, ""),
        ({"ranks": 1, "devices": 1, "world_size": 1}, "2 ranks were started, and each trains by itself: --nproc 1"),
        ({"devices": 1}, "2 devices were to train, and 1 did"),
        ({"NUM_GPUS": "2"}, "2 GPUs were planned, and it ran on a CPU"),
        ({"threads": 1}, "a rank has 1 threads, and 4 were planned"),
    ],
)
def test_what_differs_is_named(given, words):
    reported, env = (own | {name: given[name] for name in given.keys() & own.keys()} for own in (REPORTED, ENV))
    found = why_invalid(reported, env, num_ranks=2)
    assert words in found and bool(words) == bool(found) and ";" not in found
