"""The yardstick's sums against ones done by hand, and a sitting of real launches.

.venv/bin/python -m pytest tests/probe/test_yardstick.py -m "not slow"
"""

import subprocess
import sys

import numpy
import pandas
import pytest
from support import ROOT, TINY_YAML, draw_images, environment

from scripts.analysis.yardstick import first_and_last, per_launch, spreads

NOISE = {1: (-0.1, 0.0, 0.1), 2: (0.2, -0.1, -0.1)}  # of each round, by ranks
SECONDS = {1: 2.0, 2: 1.5}


def sittings(days=(0.0, 0.3)) -> pandas.DataFrame:
    """Windows whose reference meets all of their noise, the day's too, and whose reference alone meets none."""
    rows = []
    for number, day in enumerate(days):
        for ranks, noise in NOISE.items():
            for place, log in enumerate(noise):
                slower = numpy.exp(day + log)
                row = {"sitting": f"day {number}", "round": place, "ranks": ranks, "other_cores": 0.5, "steps": 4}
                row |= {"seconds": SECONDS[ranks] * slower, "reference_s": 0.7 * ranks * slower, "alone_s": 0.7}
                rows += [row | {"window": window} for window in range(2)]
    return pandas.DataFrame(rows)


def test_the_spreads_by_hand():
    """Protects the question itself: what the reference explains goes, and what it does not stays."""
    one, two, over = spreads(per_launch(sittings()))[1:]
    assert one == ("1", "2", "6", "0.50", "10.0 %", "0.0 %", "1.00 [1.00, 1.00]", "10.0 %", "")  # sd of -0.1, 0, 0.1
    assert two[4:6] == (f"{100 * 0.03**0.5:.1f} %", "0.0 %")  # of 0.2, -0.1, -0.1; the day is no launch's noise
    assert over[:3] == ("all / 1", "2", "6") and over[4] == f"{100 * numpy.std([0.3, -0.1, -0.2], ddof=1):.1f} %"


def test_a_reference_that_feels_half_of_it_by_hand():
    """Protects the warning that a slope gives: dividing by what feels the noise twice trades one noise for another."""
    windows = sittings((0.0,))
    windows["reference_s"] **= 2  # and its logarithm varies twice as much
    one = spreads(per_launch(windows))[1]
    assert one[4:7] == ("10.0 %", "10.0 %", "0.50 [0.50, 0.50]")


def test_the_last_sitting_over_the_first_by_hand():
    """Protects the day's ratio: 0.741 raw, and 1 by a reference that met the same day."""
    lines = {line[1]: line for line in first_and_last(per_launch(sittings((0.0, 5.0, 0.3))))[1:4]}
    error = 0.1 * (2 / 3) ** 0.5 * 2.776445  # Student's t of 4 degrees of freedom
    low, high = numpy.exp(-0.3 - error), numpy.exp(-0.3 + error)
    assert lines["1"][2:] == (f"0.741 [{low:.3f}, {high:.3f}]", "1.000", f"0.741 [{low:.3f}, {high:.3f}]")
    assert lines["2"][2].startswith("0.741 ") and lines["2"][3] == "1.000"
    assert lines["all / 1"][2].startswith("1.000 [")  # both met the day


def test_one_sitting_has_nothing_to_be_compared_with():
    assert [line[1] for line in first_and_last(per_launch(sittings((0.0,))))[1:]] == ["all / 1"]


def probe(*words: str):
    command = [sys.executable, "-m", "scripts.probe.yardstick", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)


def test_what_cannot_be_measured_is_refused(tmp_path):
    for words, said in (
        (("--rounds", 1), "at least 2"),
        (("--rounds", 0, "--output", tmp_path / "no"), "is not there"),
    ):
        done = probe(*words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_sitting_of_real_launches(tmp_path):
    """Protects that both layouts run in the suite's own loop, and that a window lies between its references."""
    for part, number in (("train", 16), ("val", 4)):
        draw_images(tmp_path / "data" / part, number, seed=len(part))
    (tmp_path / "tiny.yaml").write_text(f"{TINY_YAML}\ndata: {tmp_path / 'data'}\n")
    words = ("--config", tmp_path / "tiny.yaml", "--reference-steps", 1, "--output", tmp_path / "measured" / "yard.csv")
    done = probe("--rounds", 2, *words)
    assert done.returncode == 0, done.stderr
    found = pandas.read_csv(words[-1])
    assert found.groupby(["round", "ranks"]).window.apply(list).tolist() == [[0, 1]] * 4
    assert (found.steps == 2).all() and (found[["seconds", "reference_s", "alone_s"]] > 0).all(axis=None)
    assert probe("--rounds", 0, *words).stdout == done.stdout
