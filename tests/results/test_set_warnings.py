"""What warns a reader of a set, and when it does not.

.venv/bin/python -m pytest tests/results/test_set_warnings.py
"""

import json

import pandas
import pytest
from result_sets import add_runs

from benchmarks.common.rows import read_table
from scripts.results.families import NO_COMMON_ROUNDS, ratios_to_baseline
from scripts.results.result_set import load_set
from scripts.results.set_warnings import find_warnings, warnings_by_cause

WARNED = {
    "one round": {"num_repeats": 1},
    "unsteady": {"noise": 0.3},
    "other programs took 5 % of its cores' time or more in 5 of 5 runs": {"other_cpu_pct": 20},
    "5 % of its cores' time to other guests": {"noise": 0.3, "other_cpu_pct": 0, "steal_pct": 5},
    "other processes were on its GPUs in 5 of 5 runs": {"other_gpu_processes": 1},
    "oversubscribed": {"oversubscribed": True},
    "governor was powersave": {"governor": "powersave"},
    "which no commit has": {"dirty": True},
    "could not be read": {"skipped_files": 3},
    "Pillow decoded 1.1 % of its images": {"num_by_pillow": 6},  # of 4 x 132
    "MFU over 100 %": {"flops_per_image": 1e13},
    "wait for images in 20 % of their time": {"device": "cuda"},
}


@pytest.mark.parametrize("words", WARNED)
def test_each_warning_has_its_cause(tmp_path, words):
    # The rule fires on a set with the fault, with a remedy, and on nothing else.
    facts = {"num_cores": 2, "measured_peak": {"device_name": "Test CPU", "threads": 1, "tflops": {"fp32": 0.2}}}
    (tmp_path / "environment.json").write_text(json.dumps(facts))
    results = load_set(add_runs(tmp_path, "ddp", 100, **WARNED[words]))
    found = find_warnings(results)
    assert len(found) == 1 and words in found[0] and (";" in found[0] or ":" in found[0])


def test_warnings_are_grouped_by_cause_with_a_count(tmp_path):
    """Protects the page from a sentence a strategy: of 13 nobody reads one. Each cause has its number of strategies and
    its most; what each strategy has stays below it."""
    for strategy, row in (
        ("single", {"steal_pct": 3}),
        ("ddp", {"steal_pct": 9, "other_cpu_pct": 20}),
        ("slurm", {"steal_pct": 2}),
    ):
        add_runs(tmp_path, strategy, 100, noise=0.3, **{"other_cpu_pct": 0} | row)
    add_runs(tmp_path, "horovod_ddp", 100, steal_pct=0, other_cpu_pct=0)
    results = load_set(tmp_path)
    (unsteady,) = [each for each in warnings_by_cause(results) if "unsteady" in each.summary]
    assert unsteady.summary == (
        "unsteady windows: 3 of 4 configurations; steal in all of them, up to 9 % of the cores' time: use cores of "
        "your own; other programs in 1 of them, up to 20 % of the cores' time: close them; where runs differ, "
        "take more rounds; where windows of a run do, longer ones (--window-steps)."
    )
    assert [each.partition(":")[0] for each in unsteady.details] == ["single", "ddp", "slurm"]
    assert find_warnings(results) == [text for each in warnings_by_cause(results) for text in each.sentences]


def test_a_clean_set_has_no_warnings(tmp_path):
    # A warning that is always there is read by nobody.
    (tmp_path / "environment.json").write_text('{"num_cores": 2}')
    assert find_warnings(load_set(add_runs(tmp_path, "ddp", 100, num_by_pillow=5))) == []


def test_a_busy_machine_is_recognised_by_the_time_that_others_took(tmp_path):
    """One disturbed run of ten is in the spread, two are named."""
    add_runs(tmp_path, "ddp", 100, num_repeats=10)

    def busy(others):
        table = read_table(tmp_path, "runs").assign(other_cpu_pct=others)
        table.to_csv(tmp_path / "runs.csv", index=False)
        return [text for text in find_warnings(load_set(tmp_path)) if "busy" in text]

    assert busy([12.0, *[1.0] * 9]) == [] and busy(None) == []
    (found,) = busy([12.0, 5.0, *[1.0] * 8])
    assert "in 2 of 10 runs, up to 12 %" in found


def test_strategies_of_another_day_are_named(tmp_path):
    # `make bench-ddp RESULTS=old` a week later pairs its rounds 1 to 3 with last week's, by their numbers.
    for strategy, day in (("single", 1), ("slurm", 1), ("ddp", 8)):
        add_runs(tmp_path, strategy, 100, started_at=f"2026-01-0{day}T03:04:05+00:00")
    (found,) = find_warnings(load_set(tmp_path))
    assert found.startswith("ddp: runs of another session") and "the day's effect is unknown" in found
    over = ratios_to_baseline("single", {group.label: group.sample for group in load_set(tmp_path).groups})
    assert over["ddp"].why == NO_COMMON_ROUNDS and over["slurm"].why != NO_COMMON_ROUNDS


def test_windows_that_stand_out_are_named_by_place(tmp_path):
    # hyperfine's rules: a slow first window is warm-up, a slow later one is an outlier.
    add_runs(tmp_path, "ddp", 100)
    lines = (tmp_path / "windows.csv").read_text().splitlines()

    def slowed(number):
        name, place, images, seconds, rest = lines[number].split(",")
        return ",".join((name, place, images, str(1.4 * float(seconds)), rest))

    for number, words in (
        (1, "first window is slow in 1 of 5 runs, up to 1.4 times the median"),
        (4, "1 of 25 windows far from the median"),
    ):
        changed = [slowed(n) if n == number else line for n, line in enumerate(lines)]
        (tmp_path / "windows.csv").write_text("\n".join(changed) + "\n")
        found = [text for text in find_warnings(load_set(tmp_path)) if "unsteady" not in text]
        assert len(found) == 1 and words in found[0], found


def test_throttling_is_that_of_the_gpus_that_a_run_uses(tmp_path):
    """Three more GPUs are sampled and idle."""
    results = load_set(add_runs(tmp_path, "single", 100, num_repeats=2, world_size=1))
    telemetry = results.table("telemetry")
    used = telemetry[telemetry.device == "gpu0"]
    telemetry.loc[used.index, "throttle"] = "power"
    idle = [used.assign(device=f"gpu{number}", throttle="") for number in (1, 2, 10)]
    results.tables["telemetry"] = pandas.concat([telemetry, *idle], ignore_index=True)
    (found,) = [text for text in find_warnings(results) if "held down" in text]
    assert "(power) in 100 %" in found


def test_a_clock_that_was_lower_is_named(tmp_path):
    # Of two strategies the one whose cores had less: unsteady windows by themselves do not say why.
    for name in ("single", "ddp"):
        add_runs(tmp_path, name, 100, noise=0.3, steal_pct=0, other_cpu_pct=0)
    results = load_set(tmp_path)
    telemetry = results.table("telemetry")
    telemetry["clock_mhz"] = 3000.0
    found = find_warnings(results)
    assert found and not [text for text in found if "MHz" in text]
    telemetry.loc[telemetry.run_id == "ddp-1", "clock_mhz"] = 2400.0
    (found,) = [text for text in find_warnings(results) if "MHz" in text]
    assert found.startswith("ddp: unsteady") and "2400 MHz, another's 3000" in found
