"""Where all strategies are equally fast, how many answers have a false sentence? Seeded.

.venv/bin/python -m pytest tests/results/test_simulations.py
"""

import re

import numpy
import pandas
import pytest

from scripts.results.answer import find_answer
from scripts.results.identity import Identity
from scripts.results.intervals import FIRST_LOOK_ROUNDS, precise_enough, ratios_to_baseline
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup

NAMES = ("single", "dataparallel", "ddp_amp", "fsdp", "horovod_ddp", "hybrid_parallel", "local_sgd", "zero1", "ddp")
RUN_SD = 0.04  # of a run's log throughput; a round's own effect is as large
NOISE_OF_BASELINE = {"equal": 1.0, "four times noisier": 4.0, "four times quieter": 0.25}
ROWS = pandas.DataFrame({"status": ["ok"], "parallel": "yes", "commit": "abc"})
TABLES = {"steps": pandas.DataFrame(columns=["run_id", "rank", *(f"{name}_ms" for name in (
    "data", "copy", "forward", "backward", "exposed_comm", "wait", "optimizer", "other"))])}  # fmt: skip


def equal_strategies(rng, num_rounds, noise_of_baseline):
    rounds, groups = RUN_SD * rng.normal(size=num_rounds), []
    for name in NAMES:
        noise = RUN_SD * (noise_of_baseline if name == "single" else 1.0) * rng.normal(size=num_rounds)
        windows = [numpy.array([[float(numpy.exp(log)), 1.0]]) for log in 5 + rounds + noise]
        identity = Identity({"strategy": name}, {"device": "cuda", "precision": "fp32"})
        rows = ROWS.assign(run_id=name)
        groups.append(RunGroup(name, name, identity, rows, windows, [*range(num_rounds)], [0] * num_rounds))
    return ResultSet("set", "set", groups, {}, TABLES)


def is_false(sentences):
    """Whether one of them says that two differ, by its words or by its interval."""
    text = " ".join(sentences)
    if re.search(r"is the fastest|slower|Faster than|Slower than", text):
        return True
    ranges = re.findall(r"\[([\d.]+), ([\d.]+)\](?! images)", text)
    return any(not float(low) <= 1 <= float(high) for low, high in ranges)


def share_of_false_answers(num_rounds, noise, num_tables=60):
    rng = numpy.random.default_rng(5)
    found = [find_answer(equal_strategies(rng, num_rounds, noise)) for _ in range(num_tables)]
    sentences = [[*answer.terminal_lines, answer.verdicts_sentence] for answer in found]
    assert all("[" in " ".join(each) and "No difference separates it from" in " ".join(each) for each in sentences[:9])
    return numpy.mean([is_false(each) for each in sentences])


@pytest.mark.parametrize("noise", NOISE_OF_BASELINE)
@pytest.mark.parametrize("num_rounds", [5, 10])
def test_at_most_6_of_100_answers_have_a_false_sentence(num_rounds, noise):
    assert share_of_false_answers(num_rounds, NOISE_OF_BASELINE[noise]) <= 0.06


def test_until_does_not_stop_at_luck():
    """The interval of a set that --until has stopped covers as it says."""
    rng, covered = numpy.random.default_rng(2), []
    for logs in RUN_SD * rng.normal(size=(150, 2, 40)):
        for rounds in range(FIRST_LOOK_ROUNDS, 41):
            one, other = (dict(enumerate(row[:rounds])) for row in logs)
            ratio = ratios_to_baseline("one", {"one": one, "other": other})["other"]
            if precise_enough([ratio], 0.04):
                break
        covered.append(ratio.low <= 1 <= ratio.high)
    assert numpy.mean(covered) >= 0.9 and rounds > FIRST_LOOK_ROUNDS
