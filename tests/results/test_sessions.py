"""Sessions: an hour without runs begins another, and who ran in another than most is named.

.venv/bin/python -m pytest tests/results/test_sessions.py
"""

import pandas
import pytest

from scripts.results.sessions import measured_in_other_sessions, session_numbers


def rows(*runs):
    """runs: (hour of the start on one day, wall_s)."""
    began = [f"2026-01-02T{int(hour):02}:{60 * (hour % 1):02.0f}:00+00:00" if hour >= 0 else "" for hour, _ in runs]
    cells = {"started_at": began, "wall_s": [wall_s for _, wall_s in runs]}
    return pandas.DataFrame(cells, index=range(10, 10 + len(runs)))


@pytest.mark.parametrize(
    ("runs", "numbers"),
    [
        ([(1, 10), (1.9, 10), (2.75, 10)], [0, 0, 0]),
        ([(1, 10), (3, 10), (3.5, 10)], [0, 1, 1]),
        ([(1, 7200), (3.5, 10)], [0, 0]),  # a long run is no pause: mutant that leaves wall_s out
        ([(1, 10800), (1.5, 10), (4.5, 10)], [0, 0, 0]),  # nor is one that lasted beyond the next
        ([(5, 10), (1, 10)], [1, 0]),  # rows in any order
        ([(1, float("nan")), (-1, 10), (3, 10)], [0, 0, 1]),
        ([(-1, 10)], [0]),
        ([], []),
    ],
)
def test_an_hour_without_runs_ends_a_sitting(runs, numbers):
    found = session_numbers(rows(*runs))
    assert found.tolist() == numbers and [*found.index] == [*range(10, 10 + len(runs))]


def of(*sessions):
    return [*enumerate(sessions, 1)]


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ({}, []),
        ({"single": of(0, 0), "ddp": of(0, 0)}, []),
        ({"single": of(0, 0), "ddp": of(0, 0), "slurm": of(1, 1)}, ["slurm"]),  # added a week later
        ({"single": of(0, 0), "ddp": of(0, 1), "slurm": of(0, 0)}, ["ddp"]),  # one run again
        ({"single": of(0, 1), "ddp": of(0, 1)}, []),  # all go on: round 2 is of the next day
        ({"single": of(0, 0), "ddp": of(0, 0, 1), "slurm": of(0, 0)}, ["ddp"]),  # only one goes on
        ({"single": of(0, 1, 1), "ddp": of(0, 1, 1), "slurm": of(0, 0, 1)}, ["slurm"]),  # the same days, other rounds
    ],
)
def test_who_ran_in_another_sitting_is_named(runs, names):
    assert measured_in_other_sessions(runs) == names
