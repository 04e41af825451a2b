"""What warns a reader of a set, and when it does not.

.venv/bin/python -m pytest tests/results/test_set_warnings.py
"""

import pandas
import pytest
from result_sets import add_runs, change

from scripts.results.result_set import load_set
from scripts.results.set_warnings import drift_fraction, find_warnings

WARNED = {
    "few rounds: ddp ran in fewer than 3": {"num_repeats": 2},
    "busy neighbour: other programs took 5 % of the cores' time or more in 5 of 5 runs": {"other_cpu_pct": 20},
    "steal: other guests of the host took 1 %": {"steal_pct": 5},
    "busy GPUs: other processes were on the GPUs of ddp": {"other_gpu_processes": 1},
    "oversubscribed: ddp": {"oversubscribed": True},
    "frequency governor: clocks of the cores follow the load (powersave)": {"governor": "powersave"},
    "local changes: no commit has the code that ran": {"dirty": True},
}


@pytest.mark.parametrize("words", WARNED)
def test_each_kind_has_one_line_with_its_remedy(tmp_path, words):
    """And nothing else is said of the set. The remedy follows the semicolon."""
    row = {"noise": 0.01} | WARNED[words]
    found = [each.line for each in find_warnings(load_set(add_runs(tmp_path, "ddp", 100, **row)))]
    assert len(found) == 1 and found[0].startswith(words) and "; " in found[0]


def test_a_clean_set_has_no_warnings(tmp_path):
    assert find_warnings(load_set(add_runs(tmp_path, "ddp", 100))) == []


def test_drift_is_what_all_strategies_share(tmp_path):
    """A strategy that lacks rounds is no drift."""
    for name, speed, num_rounds in (("single", 100, 6), ("ddp", 200, 6), ("zero1", 400, 2)):
        add_runs(tmp_path, name, speed, num_repeats=num_rounds, noise=0.001)
    assert abs(drift_fraction(load_set(tmp_path))) < 0.01

    def slow_down(windows):
        late = windows.run_id.str.extract(r"-(\d)$")[0].astype(int) > 4
        return windows.assign(seconds=windows.seconds.astype(float).where(~late, 2 * windows.seconds.astype(float)))

    change(tmp_path, "windows", slow_down)
    (found,) = [each for each in find_warnings(load_set(tmp_path)) if each.kind == "drift"]
    assert "50 % slower" in found.line


def test_one_disturbed_run_of_ten_is_in_the_spread_and_two_are_named(tmp_path):
    add_runs(tmp_path, "ddp", 100, num_repeats=10)

    def kinds(others):
        change(tmp_path, "runs", lambda runs: runs.assign(other_cpu_pct=others))
        return [each.line for each in find_warnings(load_set(tmp_path))]

    assert kinds(["12", *["1"] * 9]) == [] and kinds("") == []
    (found,) = kinds(["12", "5", *["1"] * 8])
    assert "in 2 of 10 runs, up to 12 %" in found


def test_strategies_of_another_day_are_named(tmp_path):
    """`make bench-ddp RESULTS=old` a week later pairs its rounds with last week's by their numbers."""
    for strategy, day in (("single", 1), ("slurm", 1), ("ddp", 8)):
        add_runs(tmp_path, strategy, 100, started_at=f"2026-01-0{day}T03:04:05+00:00")
    (found,) = [each for each in find_warnings(load_set(tmp_path)) if each.kind == "another session"]
    assert found.text.startswith("ddp ran over an hour")


def test_throttling_is_that_of_the_gpus_that_a_run_uses(tmp_path):
    """Three more GPUs are sampled and idle."""
    results = load_set(add_runs(tmp_path, "single", 100, num_repeats=3, world_size=1))
    telemetry = results.table("telemetry")
    used = telemetry[telemetry.device == "gpu0"]
    telemetry.loc[used.index, "throttle"] = "power"
    idle = [used.assign(device=f"gpu{number}", throttle="") for number in (1, 2, 10)]
    results.tables["telemetry"] = pandas.concat([telemetry, *idle], ignore_index=True)
    (found,) = find_warnings(results)
    assert found.text == "in up to 100% of the samples of single (power)"
