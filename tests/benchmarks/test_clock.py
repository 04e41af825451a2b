"""The clock of timed windows.

.venv/bin/python -m pytest tests/benchmarks/test_clock.py
"""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.common import clock


def test_a_window_on_a_cpu_is_as_long_as_its_steps(monkeypatch):
    """Protects a real set of a busy machine from "the set contradicts itself": the process was stopped for 2 ms between
    two readings of the clock, 1 % of a short window. Mutant: the window's seconds from readings of its own."""
    readings = iter([0.0, 0.02, 0.1, 0.2, 0.25])  # of start(): two; then two steps, and stop()
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(readings)))
    window = clock.Clock([torch.device("cpu")])
    window.start()
    window.tick()
    assert window.tick() == window.num_steps == 2
    seconds, step_ms = window.stop()
    assert step_ms == pytest.approx([100, 100]) and seconds == pytest.approx(0.2)
