"""./bench study overhead: an interval over launches, Pillow on both sides, and a real launch.

.venv/bin/python -m pytest tests/studies/test_overhead.py
"""

import csv

import numpy
import pytest

from benchmarks.common.errors import UserError
from scripts.options.study_options import OverheadOptions
from scripts.stats.intervals import geometric_mean
from scripts.studies.overhead import overhead


def test_the_interval_is_over_launches(tmp_path, monkeypatch):
    """Pairs of windows of one launch share its luck."""
    ratios, seen = [1.0, 1.1, 0.9, 1.05, 0.95], []

    def compare_loops(pairs, flags):
        seen.append((pairs, flags[-2:] == ["--decoder", "pillow"]))
        ratio = ratios[(len(seen) - 1) % 5]
        return {"images per second": [ratio * 1.001, ratio / 1.001]}

    monkeypatch.setattr(overhead, "compare_loops", compare_loops)
    for what in ("loop", "same-decoder"):
        assert overhead.main(OverheadOptions(what=what, output=tmp_path / "overhead.csv")) == 0
    assert overhead.main(OverheadOptions(fail_under=1.5)) == 1
    assert seen == 5 * [(12, False)] + 5 * [(12, True)] + 5 * [(12, False)]
    with open(tmp_path / "overhead.csv", newline="") as file:
        first, second = csv.DictReader(file)
    found = [float(first[name]) for name in ("ratio", "ci_low", "ci_high")]
    assert found == pytest.approx(geometric_mean(numpy.log(ratios))) and second["what"] == "same-decoder"
    with pytest.raises(UserError, match="--launches is 4, but must be 1 to 3"):
        overhead.main(OverheadOptions(pairs=6, launches=4))


@pytest.mark.medium
def test_a_real_launch_beside_the_bare_loop(tiny_data, tiny_config, monkeypatch, capsys):
    """Two ranks, and fewer images than all steps need."""
    for name, value in {"NPROC": "2", "NUM_GPUS": "0"}.items():
        monkeypatch.setenv(name, value)
    options = OverheadOptions(pairs=6, launches=1, config=str(tiny_config), data=str(tiny_data))
    assert overhead.main(options) == 0
    assert "suite / bare, images per second: " in capsys.readouterr().out
    with pytest.raises(UserError, match="by the bare loop with SGD"):
        overhead.compare_loops(6, ["--config", str(tiny_config), "--arch", "vit_b_16", "--image-size", "224"])
