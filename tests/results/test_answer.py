"""What the terminal says of a set: the table, and the answer in at most four lines.

.venv/bin/python -m pytest tests/results/test_answer.py
"""

import json
import re

import pytest
from result_sets import CPU, add_runs, join_sets, write_set
from support import recorded

from benchmarks.common.rows import append_rows
from scripts.results.answer import find_answer, terminal_text
from scripts.results.result_set import load_set


def lines_of(folder):
    return find_answer(load_set(folder)).terminal_lines


SPEED, TIMES = "in fp#: # [#, #] images/s.", "X is # [#, #] x single."


@pytest.mark.parametrize(
    ("speeds", "num_rounds", "lines"),
    [
        ({"ddp": 180, "zero1": 140}, 5, [f"X is the fastest {SPEED}", "All others in fp# are slower.", TIMES]),
        (
            {"ddp": 180, "zero1": 180.5},
            5,
            [
                f"X has the highest mean {SPEED}",
                "No difference separates it from X. All others in fp# are slower.",
                TIMES,
            ],
        ),
        (
            {"ddp": 180},
            3,
            [f"X has the highest mean {SPEED}", "Which is faster is said from # rounds on (--repeats #).", TIMES],
        ),
        ({}, 1, ["Only single has a time that can be ranked: # images/s."]),
    ],
)
def test_the_answer_of_each_set(tmp_path, speeds, num_rounds, lines):
    found = lines_of(write_set(tmp_path / "set", {"single": 100} | speeds, num_rounds, precision="fp32"))
    assert [re.sub(r"\d+(\.\d+)?", "#", re.sub("ddp|zero1", "X", line)) for line in found] == lines


def test_ways_to_start_one_training_are_one_family(tmp_path):
    """None is called faster than another, or left out of a list."""
    for strategy, speed in (("single", 100), ("ddp", 150), ("ddp_spawn", 170), ("slurm", 165), ("zero1", 120)):
        add_runs(tmp_path, strategy, speed)
    results = load_set(tmp_path)
    first, second, *_ = find_answer(results).report_sentences
    assert first.startswith("ddp (also ddp_spawn, slurm) is the fastest in fp32: 15")
    assert second.count("ddp_spawn") == 1


def test_one_process_on_all_cores_is_a_baseline_too(tmp_path):
    """ddp beats `single`, and one process with all threads beats ddp."""
    for name, strategy, speed, row in (
        ("a", "single", 100, {"world_size": 1}),
        ("b", "single", 180, {"world_size": 1, "threads_per_rank": 2}),
        ("c", "ddp", 140, {}),
    ):
        add_runs(tmp_path / name, strategy, speed, **row)
    folder = join_sets(tmp_path, "a", "b", "c")
    (folder / "environment.json").write_text('{"num_cores": 2}')
    fastest, others, over, *_ = lines_of(folder)
    assert fastest.startswith("single, all cores is the fastest") and others == "All others in fp32 are slower."
    assert re.match(r"single, all cores is 1\.8\d \[", over)


def test_other_precisions_are_named_and_not_ranked(tmp_path):
    """bf16 is not faster parallelism."""
    for name, strategy, speed, row in (
        ("a", "single", 100, {"world_size": 1}),
        ("b", "single", 200, {"world_size": 1, "precision": "bf16"}),
        ("c", "ddp", 180, {}),
        ("d", "ddp_amp", 300, {"precision": "bf16"}),
        ("e", "zero1", 150, {}),
    ):
        add_runs(tmp_path / name, strategy, speed, **row)
    found = lines_of(join_sets(tmp_path, *"abcde"))
    assert found[0].startswith("ddp is the fastest in fp32") and "In another precision: ddp_amp is 1." in found[2]


def test_where_the_step_goes_is_said_of_the_fastest_and_of_ddp(tmp_path):
    for strategy, speed in (("single", 100), ("ddp", 150), ("zero1", 180)):
        add_runs(tmp_path, strategy, speed)
    said = "compute 70 %, loader 20 %, exposed communication 8 %"
    assert lines_of(tmp_path)[-1] == f"A step of zero1: {said}; of ddp: {said}."


def test_the_terminal_shows_a_set_of_sixteen_on_one_screen(tmp_path):
    """Table, answer, failures by cause, and one line a kind of warning."""
    for number in range(14):
        add_runs(tmp_path, f"own_{number}", 100 + 10 * number, energy_j_per_image=0.5, other_cpu_pct=20, steal_pct=3)
    add_runs(tmp_path, "single", 90, world_size=1)
    for strategy in ("apex_ddp", "horovod_ddp"):
        row = {"run_id": strategy, "strategy": strategy, "status": "skipped", "reason": "not installed"}
        append_rows(tmp_path, "runs", [recorded(tmp_path, CPU | row)])
    (tmp_path / "environment.json").write_text(json.dumps({"num_cores": 2}))
    text = terminal_text(load_set(tmp_path))
    lines = text.splitlines()
    assert len(lines) <= 60 and "skipped: apex_ddp, horovod_ddp: not installed" in lines
    assert [line.split()[0] for line in lines[2:5]] == ["strategy", "own_13", "own_12"]
    assert "J/image" in lines[2] and "2 ranks" in lines[3]
    assert sum(line.startswith("warning: ") for line in lines) == 2
    row = next(line for line in lines if line.startswith("own_13"))
    assert re.search(r"2\.\d\d \[.*?\]", row)[0] in text.split("own_13 is ")[-1], "a pair has one interval"


def test_a_set_without_a_time_says_so(tmp_path):
    append_rows(tmp_path, "runs", [recorded(tmp_path, CPU | {"run_id": "a", "strategy": "ddp", "status": "failed"})])
    assert terminal_text(load_set(tmp_path)).splitlines()[2:] == [
        "No run has a throughput.", "", "failed: ddp: no reason was recorded",
    ]  # fmt: skip
