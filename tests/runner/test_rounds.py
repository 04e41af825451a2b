"""How runs follow one another: their order, what warms the machine, --until and --budget, seeds."""

import collections
import dataclasses
import itertools
import json
import re

import numpy
import pytest
from support import finish

from benchmarks.common import machine
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.rows import WARM_UP
from scripts.results.accuracy import top1_accuracy
from scripts.results.result_set import load_set
from scripts.runner import plan, rounds
from scripts.runner.round_order import run_order, timed_part


def planned(request) -> list[plan.Run]:
    return rounds.planned_runs(plan.name_runs(plan.plan_strategies(request)), request)


# --- the order and the names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_runs", [1, 2, 9, 10, 13])
def test_every_run_has_every_place_and_every_forerunner_equally_often(num_runs):
    rows = [run_order(num_runs, number) for number in range(1, num_runs * (1 + num_runs % 2) + 1)]
    assert all(sorted(row) == [*range(num_runs)] for row in rows)
    for place in range(num_runs):
        assert {*collections.Counter(row[place] for row in rows).values()} == {len(rows) // num_runs}
    pairs = collections.Counter(pair for row in rows for pair in itertools.pairwise(row))
    assert num_runs == 1 or ({*pairs.values()} == {1 + num_runs % 2} and len(pairs) == num_runs * (num_runs - 1))


def test_the_order_is_the_rounds_own_and_is_recorded(make_request, tmp_path):
    """A set that is resumed keeps it, whatever is left; the place reaches the launcher."""
    names = {"STRATEGIES": "single dataparallel ddp ddp_spawn", "REPEATS": 4}
    runs = planned(make_request(**names))
    orders = [[run.strategy for run in runs if run.round == number] for number in (1, 2, 3, 4)]
    assert len({*map(tuple, orders)}) == 4 and [run.position for run in runs] == [1, 2, 3, 4] * 4
    assert planned(make_request(**names | {"REPEATS": 2})) == runs[:8]
    assert plan.create_run_folder(runs[5], tmp_path)[0].read_plan()["position"] == 2


def test_runs_have_the_names_of_their_bars(make_request, tmp_path):
    """Who looks from a line of the log to the chart finds one name for one run."""
    results = tmp_path / "a set"
    runs = planned(make_request(STRATEGIES="", REPEATS=1, NPROC=2))
    finish(runs, results, images_per_s=1.0)
    (results / "environment.json").write_text(json.dumps({"num_cores": machine.num_cores()}))
    assert {run.name for run in runs} == {group.label for group in load_set(results).groups}
    assert {"single", "single, bf16", "ddp"} <= {run.name for run in runs}


# --- the warm-up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "num_train", "expected"),
    [
        ({"epochs": 9, "steps": 15, "warmup_steps": 5, "windows": 5, "window_steps": 4}, 480, (2, 15)),
        ({"epochs": 90, "global_batch": 256, "warmup_steps": 50, "windows": 10, "window_steps": 20}, 10**6, (1, 271)),
        ({"epochs": 4, "warmup_steps": 5}, 0, (1, 116)),  # synthetic: an epoch of ImageNet's length
        ({"epochs": 4, "batch_per_device": 8, "global_batch": 0, "windows": 1}, 480, (1, 30)),
    ],
)
def test_the_timed_part_holds_all_windows_and_little_else(fields, num_train, expected):
    config = Config(**fields, account_steps=7, checkpoint_dir="x", checkpoint_steps=3)
    short = timed_part(config, f"4-{num_train}-9-x" if num_train else "", 2)
    assert (short.epochs, short.steps, short.account_steps, short.checkpoint_dir) == (*expected, 0, "")


def test_a_warm_up_counts_nowhere(make_request, tmp_path):
    runs, results = planned(make_request()), tmp_path / "a set"
    finish(runs, results)
    before = [(group.label, len(group.rows)) for group in load_set(results).groups]
    finish([dataclasses.replace(rounds.warm_up_runs(runs)[0], strategy="single")], results, WARM_UP)
    assert [(group.label, len(group.rows)) for group in load_set(results).groups] == before
    assert plan.remaining_runs(runs, results) == []


def test_one_run_alone_has_no_warm_up_and_one_beside_others_has(make_request, tmp_path):
    only, results = {"STRATEGIES": "single", "REPEATS": 1}, tmp_path / "a set"
    alone = planned(make_request(**only))
    assert rounds.is_only_run(alone, make_request(**only))
    assert not rounds.is_only_run(alone, make_request(**only, BUDGET="9h"))
    finish(planned(make_request(STRATEGIES="ddp", REPEATS=1)), results)
    assert not rounds.is_only_run(alone, make_request(**only, RESULTS=results))


# --- --until and --budget ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"UNTIL": "5"}, "--until is .* must be a percentage such as 5%"),
        ({"UNTIL": "0%"}, "--until is .* no number of rounds reaches"),
        ({"BUDGET": "20"}, "--budget is .* must be a time such as 90s, 20m or 1.5h"),
        ({"UNTIL": "5%", "STRATEGIES": "ddp"}, "needs two strategies"),
        ({"BUDGET": "5m", "NNODES": 2}, "give --repeats"),
        ({"SEEDS": 3}, "--seeds 3 needs a round for each seed; give --repeats 3 or more, not 2"),
    ],
)
def test_what_no_rounds_can_do_is_refused(make_request, variables, words):
    with pytest.raises(UserError, match=words):
        chosen = make_request(**variables)
        rounds.check_rounds(plan.plan_strategies(chosen), chosen)


def test_nodes_of_torchrun_continue_no_set(make_request, tmp_path):
    """The first node alone has the rows: the others would begin again at round 1."""
    chosen = make_request(NNODES=2, STRATEGIES="ddp", RESULTS=tmp_path / "a set")
    runs = plan.plan_strategies(chosen)
    rounds.check_rounds(runs, chosen)
    finish(runs, tmp_path / "a set")
    with pytest.raises(UserError, match=r"with NNODES no set can be continued: .* give each node a new --results"):
        rounds.check_rounds(runs, chosen)


def play(chosen: plan.Request, results, sd: float = 0.1, most: int = 60, status: str = "ok") -> list[int]:
    """The rounds that are run where throughput has such an sd, in no time."""
    chosen = dataclasses.replace(chosen, results=results)
    runs = plan.name_runs(plan.plan_strategies(chosen))
    left, ran = plan.remaining_runs(rounds.planned_runs(runs, chosen), results), []
    results.mkdir(exist_ok=True)
    for of_round in rounds.generate_rounds(left, runs, chosen, results):
        for run in of_round:
            rate = 100 * float(numpy.exp(sd * numpy.random.default_rng([run.round, *run.strategy.encode()]).normal()))
            finish([run], results, WARM_UP if run.round == 0 else status, images_per_s=rate, wall_s=10.0)
        ran.append(of_round[0].round)
        assert len(ran) <= most
    return ran


@pytest.mark.launches
def test_until_adds_rounds_until_the_family_is_narrow_and_resumes(make_request, tmp_path, capsys):
    """No earlier than the rule allows, no later, and the same when resumed."""
    chosen = make_request(STRATEGIES="single dataparallel ddp", REPEATS=2, UNTIL="5%")
    ran = play(chosen, tmp_path / "a set", 0.04)
    output = capsys.readouterr().out.splitlines()
    assert ran == [*range(len(ran))] and 6 < len(ran) < 25
    assert output[0] == "--until 5% is not reached: no half-width is known after 2 rounds"
    reached = re.fullmatch(r"--until 5% is reached: .* ([\d.]+)% after (\d+) rounds", output[-1])
    assert 2 < float(reached[1]) <= 5 and int(reached[2]) == len(ran) - 1
    rows = (tmp_path / "a set" / "runs.csv").read_text().splitlines(keepends=True)
    assert play(chosen, tmp_path / "a set", 0.04) == []  # all is done, and nothing is warmed
    (tmp_path / "a set" / "runs.csv").write_text("".join(rows[: 1 + 1 + 3 * 5 + 1]))  # in the middle of round 6
    assert play(chosen, tmp_path / "a set", 0.04) == [0, *range(6, len(ran))]


def test_a_budget_alone_fills_itself_with_whole_rounds(make_request, tmp_path, monkeypatch, capsys):
    """After the first, no round is begun that would not end in time, whatever --repeats says."""
    chosen, clock = make_request(STRATEGIES="ddp", REPEATS=5, BUDGET="35s"), [0.0]
    monkeypatch.setattr(rounds.time, "monotonic", lambda: clock[0])
    real = finish

    def slow(runs, *args, **kwargs):
        clock[0] += 10
        real(runs, *args, **kwargs)

    monkeypatch.setitem(globals(), "finish", slow)
    assert play(chosen, tmp_path / "a set") == [0, 1, 2]  # 10 s each, the warm-up too: a third would end at 40 s
    assert capsys.readouterr().out.startswith("--budget 35s: another round, of about 10 s, does not fit")


@pytest.mark.parametrize("variables", [{"BUDGET": "9h"}, {"UNTIL": "5%"}])
def test_what_cannot_run_is_not_run_for_ever(make_request, tmp_path, capsys, variables):
    chosen = make_request(STRATEGIES="single ddp", **variables)
    assert play(chosen, tmp_path / "a set", status="skipped") == [0, 1, 2]
    assert "no run of round 2 was timed" in capsys.readouterr().out


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_seeds_are_one_setting_whose_rounds_take_them_in_turn(make_request, tmp_path):
    """n = 3 of one group; single seeds are groups of their own."""
    results = tmp_path / "a set"
    runs = planned(make_request(STRATEGIES="ddp", REPEATS=4, SEEDS=3, ARGS="--seed 5"))
    assert [run.config.seed for run in runs] == [5, 6, 7, 5] == [run.requested["seed"] for run in runs]
    assert len({run.requested_hash for run in runs}) == 1
    for run in runs:
        acc1 = 50.0 + run.config.seed
        finish([run], results, acc1=acc1, val_samples=100, images_per_s=1.0, train_loss=run.config.seed)
    (group,) = load_set(results).groups
    assert (len(group.windows_of_runs), top1_accuracy(group).num_seeds) == (4, 3)
    one = planned(make_request(STRATEGIES="ddp", REPEATS=1, ARGS="--seed 5"))
    assert plan.remaining_runs(one, results) == one
    assert plan.remaining_runs(runs, results) == []
