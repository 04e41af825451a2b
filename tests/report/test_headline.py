"""The first sentence of a report: what a set says of its strategies, for each case of a set.

.venv/bin/python -m pytest tests/report/test_headline.py
"""

import re

import pytest
from result_sets import CPU, add_runs, join_sets, write_set
from support import recorded

from benchmarks.common.rows import append_rows
from scripts.report.headline import headline
from scripts.results.result_set import load_set
from scripts.shared.strategy_list import all_strategies


def verdict_of(folder):
    """The first sentence of the set's report; one sentence, whatever the set."""
    sentence = headline(load_set(folder))[0]
    assert sentence.endswith(".") and ". " not in sentence
    return sentence


@pytest.mark.parametrize(
    ("speeds", "num_rounds", "words"),
    [
        (
            {"single": 100, "ddp": 180, "slurm": 140},
            5,
            r"In fp32, ddp is the fastest strategy, 1\.\d\d \[1\.\d\d, \d\.\d\d\] times as fast as single",
        ),
        (
            {"single": 100, "ddp": 180, "ddp_spawn": 181},
            5,
            r"In fp32, (ddp|ddp_spawn) is 1\.\d\d \[1\.\d\d, \d\.\d\d\] times as fast as single, "
            r"but no difference was seen between \1 and "
            r"(?!\1)(ddp_spawn|ddp)",
        ),
        (
            {"single": 100, "ddp": 60},
            5,
            r"In fp32, no strategy was seen to be faster than one process; the minimum detectable effect is at most "
            r"\d+ % at a nominal power of 80 %",
        ),
        (
            {"single": 100, "ddp": 180},
            3,
            r"No verdict, since 5 rounds are needed and this set has 3; the highest mean in fp32 is that of ddp, 1\S+ "
            r"images/s",
        ),
        ({"single": 100, "ddp": 180}, 1, r"No verdict, since 5 rounds are needed and this set has 1; .*"),
        ({"single": 100}, 5, r"One process ran alone, so that no strategies are compared; it trains .* images/s"),
        ({"single": 100}, 1, r"One process ran alone, so that no strategies are compared; it trains .* images/s"),
        (
            {"ddp": 180, "slurm": 140},
            5,
            r"In fp32, ddp is the fastest strategy, 1.* images/s; no run of single has its settings, so that there .*",
        ),
    ],
)
def test_the_verdict_of_each_set(tmp_path, speeds, num_rounds, words):
    """Protects the answer that most readers take away: it says what the intervals say, in which precision, how many
    strategies were not run, and that there is no verdict where intervals are missing."""
    missing = f"; {len(all_strategies()) - len(speeds)} strategies were not run" if len(speeds) > 1 else ""
    sentence = verdict_of(write_set(tmp_path / "set", speeds, num_rounds, precision="fp32"))
    assert re.fullmatch(f"{words}{missing}\\.", sentence), sentence


@pytest.mark.medium
def test_what_was_not_run_is_in_the_verdict(tmp_path):
    """Protects from "the fastest strategy" of a set in which others were never tried."""
    speeds = {name: 100 + 10 * number for number, name in enumerate(all_strategies()) if name != "zero1"}
    assert verdict_of(write_set(tmp_path / "set", speeds, 1)).endswith("; zero1 was not run.")
    speeds["zero1"] = 100
    assert "not run" not in verdict_of(write_set(tmp_path / "all", speeds, 1))


def test_settings_of_one_process_are_no_strategies(tmp_path):
    """Protects a set of `single` alone: in two precisions it is no comparison of strategies."""
    for name, precision in (("a", "fp32"), ("b", "bf16")):
        add_runs(tmp_path / name, "single", 100 if name == "a" else 130, precision=precision)
    sentence = verdict_of(join_sets(tmp_path, "a", "b"))
    assert sentence.startswith("One process ran alone, in 2 variants, so that no strategies are compared; ")


def test_other_precisions_are_named(tmp_path):
    """Protects the chart's highest bar from being called the fastest strategy: bf16 is not faster parallelism. Mutant:
    no scope."""
    for strategy, speed in (("single", 100), ("ddp", 180), ("slurm", 140)):
        add_runs(tmp_path, strategy, speed)
    add_runs(tmp_path, "ddp_amp", 300, precision="bf16")
    assert verdict_of(tmp_path).startswith("In fp32, ddp is the fastest strategy, 1.")


def test_the_highest_mean_of_several_precisions_names_its_own(tmp_path):
    """Protects from "the highest mean" of a set whose bf16 runs have a higher one."""
    for name, strategy, speed, row in (
        ("a", "single", 100, {"world_size": 1}),
        ("b", "ddp", 140, {}),
        ("c", "model_parallel", 180, {"world_size": 1, "threads_per_rank": 2}),
        ("d", "ddp_amp", 300, {"precision": "bf16"}),
    ):
        add_runs(tmp_path / name, strategy, speed, **row)
    sentence = verdict_of(join_sets(tmp_path, "a", "b", "c", "d"))
    assert sentence.startswith("ddp is faster than single; the highest mean in fp32 is that of model_parallel; ")


@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ({"ddp": 140}, "In fp32, ddp is faster than {single}, but slower than {best}"),
        ({"ddp": 140, "slurm": 140}, "In fp32, ddp and slurm are faster than {single}, but slower than {best}"),
        ({"ddp": 179}, "In fp32, ddp is faster than {single}, but no difference was seen between ddp and {best}"),
        (
            {"ddp": 179, "slurm": 179},
            "In fp32, ddp and slurm are faster than {single}, but no difference was seen between them and {best}",
        ),
        (
            {"ddp": 140, "zero1": 60, "slurm": 179},
            "In fp32, ddp and slurm are faster than {single}; of these, ddp is slower than {best}, and no difference "
            "was seen between {best} and slurm",
        ),
        (
            {"ddp": 140, "ddp_spawn": 141, "fsdp": 142, "zero1": 143, "slurm": 179},
            "In fp32, 5 strategies are faster than {single}; of these, 4 are slower than {best}, and no difference was "
            "seen between {best} and slurm",
        ),
    ],
)
def test_one_process_on_all_cores_is_not_passed_over(tmp_path, speeds, words):
    """Protects who has a faster way: ddp beats `single`, and one process with all threads beats ddp. The sentence says
    how many are slower than it, and for how many no difference was seen; it said "not seen to be faster" of both."""
    for name, strategy, speed, row in (
        ("a", "single", 100, {"world_size": 1}),
        ("b", "single", 180, {"world_size": 1, "threads_per_rank": 2}),
        *((strategy, strategy, speed, {}) for strategy, speed in speeds.items()),
    ):
        add_runs(tmp_path / name, strategy, speed, **row)
    folder = join_sets(tmp_path, "a", "b", *speeds)
    groups = sorted(
        (group for group in load_set(folder).groups if group.strategy == "single"),
        key=lambda group: group.timed_throughput.value,
    )
    single, best = (group.label for group in groups)
    sentence = verdict_of(folder).partition("; 1")[0]
    assert sentence == words.format(single=single, best=best)


def ended(folder, strategy, status, number=1):
    for repeat in range(number):
        row = {"run_id": f"{strategy}-{status}-{repeat}", "strategy": strategy, "status": status, "reason": "planted"}
        append_rows(folder, "runs", [recorded(folder, CPU | row)])


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ({"apex_ddp": "skipped"}, "; apex_ddp was skipped and 13 strategies were not run."),
        ({"fsdp": "failed"}, "; fsdp has no time and 13 strategies were not run."),
        (
            {"apex_ddp": "skipped", "slurm": "skipped", "fsdp": "timeout"},
            "; apex_ddp and slurm were skipped, fsdp has no time and 11 strategies were not run.",
        ),
        (dict.fromkeys("abcd", "failed"), "; 4 strategies have no time and 14 strategies were not run."),
    ],
)
def test_strategies_without_a_time_are_in_the_verdict(tmp_path, ends, words):
    """Protects a reader from "the fastest strategy" of a set in which half of them failed."""
    folder = write_set(tmp_path / "set", {"single": 100, "ddp": 180})
    for strategy, status in ends.items():
        ended(folder, strategy, status)
    assert words in verdict_of(folder)


def test_no_comparison_is_no_want_of_rounds(tmp_path):
    """Protects a sweep: groups of other batches are not compared, and more rounds would not help."""
    for name, strategy, batch in (("a", "single", 32), ("b", "ddp", 64)):
        add_runs(tmp_path / name, strategy, 100, global_batch=batch)
    sentence = verdict_of(join_sets(tmp_path, "a", "b"))
    assert sentence.startswith("No verdict, since no two strategies ran with the same settings; ")
