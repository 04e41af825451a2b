"""The order in which the loader's windows are timed: a clock that falls within each launch is no cost of loading.

.venv/bin/python -m pytest tests/studies/test_loader_limit.py
"""

from types import SimpleNamespace

import hostile_generators_3
import numpy
import pytest
import torch
from hostile_audit import WINDOWS_OF_LAUNCH, false_loader_verdicts

from benchmarks import single
from benchmarks.common.config.config import Config
from scripts.studies.loaders import measure_loader_limit
from scripts.studies.loaders.loader_limit import ALONE, BOTH, TRAINING
from scripts.studies.loaders.measure_loader_limit import LAUNCHES, ROUNDS, kinds_in_order, measure


def test_a_clock_that_falls_in_each_launch_is_not_taken_for_the_cost_of_loading():
    """Protects the verdict where loading costs exactly the limit. Mutants: one order of the kinds for all rounds, with
    which two thirds of the verdicts err; of the second noise, whose fall is no line, each launch like the first."""
    rng, num_sets = numpy.random.default_rng(1), 100
    falls = hostile_generators_3.windows(rng, num_sets, LAUNCHES, WINDOWS_OF_LAUNCH, "clock falls")
    assert false_loader_verdicts(falls).mean() <= 0.12
    quiet = hostile_generators_3.windows(rng, num_sets, LAUNCHES, WINDOWS_OF_LAUNCH, "launch has a level")
    at_first = 0.1 * numpy.exp(-3 * numpy.linspace(0, 1, WINDOWS_OF_LAUNCH))
    assert false_loader_verdicts(quiet + at_first).mean() <= 0.12


@pytest.mark.parametrize("launch", [1, 2])
def test_windows_are_timed_in_the_order_of_their_launch(monkeypatch, launch):
    """Protects the simulation above, which takes this order for the real one. A batch takes 1 s and a step 10 s of a
    clock of its own, so that seconds say what was timed. Mutants: the order of the dict of works; launch 1 for all."""
    now_s = [0.0]

    def spend(seconds):
        now_s[0] += seconds

    def batches():
        while True:
            spend(1)
            yield ("images", "labels")

    strategy = SimpleNamespace(
        context=SimpleNamespace(device=torch.device("cpu")),
        loaders=SimpleNamespace(train=None),
        step=lambda images, labels: spend(10),
    )
    monkeypatch.setattr(single, "build", lambda config: strategy)
    monkeypatch.setattr(measure_loader_limit, "endless", lambda train: batches())
    monkeypatch.setattr(measure_loader_limit, "cpu_s", lambda process: now_s[0])
    monkeypatch.setattr(measure_loader_limit, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    rows = measure(Config(workers=0), launch)
    kind_of_step_s = {1: ALONE, 10: TRAINING, 11: BOTH}
    batch = rows[0]["global_batch"]
    timed = [kind_of_step_s[round(row["seconds"] * batch / row["images"])] for row in rows]
    expected = [kind for number in range(1, ROUNDS + 1) for kind in kinds_in_order(launch, number)]
    assert timed == [row["what"] for row in rows] == expected
