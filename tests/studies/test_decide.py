"""./bench decide: hours and money by hand, what is compared and refused, and when the intervals allow a decision.

.venv/bin/python -m pytest tests/studies/test_decide.py
"""

import csv
import json
import math
import re
from types import SimpleNamespace

import numpy
import pytest
from scipy.special import stdtrit
from support import recorded, svg_text

from benchmarks.common.rows import append_rows
from scripts.cli.command_table import BY_WORDS
from scripts.cli.run_command import parse
from scripts.results.families import ThroughputSample
from scripts.shared.programs import exit_code
from scripts.studies.compare.two_days import DaySpread
from scripts.studies.decide import chart, decide
from scripts.studies.decide.analysis import Family, cheapest
from scripts.studies.decide.candidates import Candidate, Interval
from scripts.studies.decide.decision_text import best_sentence

IMAGES = 90 * 1_281_167
PATTERN = (-1.0, 0.5, 1.0, -0.5, 0.0)
"""Of log throughput over the rounds, in units of `noise`: its mean is 0, so that means are known exactly."""
RUN_SD = math.sqrt(2.5 / 4)
"""Standard deviation of PATTERN."""
PRICES = ("--price", "v100=4", "--price", "a100=8", "--price", "h100=16")


def add_machine(folder, speeds, seed=0, noise=0.005, num_rounds=5, asked=None, **columns):
    """The set of a machine with eight GPUs. speeds: images/s by strategy, or (images/s, columns of its rows alone)."""
    folder.mkdir(parents=True)
    rng = numpy.random.default_rng([seed, len(folder.name), *folder.name.encode()])
    for strategy, given in speeds.items():
        speed, own = given if isinstance(given, tuple) else (given, {})
        orders = noise * rng.permutation(numpy.resize(PATTERN, num_rounds))
        for repeat, log in enumerate(orders, start=1):
            row = {
                "schema": 2, "run_id": f"{repeat}-{strategy}", "strategy": strategy, "status": "ok", "repeat": repeat,
                "arch": "resnet50", "image_size": 224, "global_batch": 256, "loader": "folder", "device": "cuda",
                "device_name": folder.name.upper(), "world_size": 1 if strategy == "single" else 8, "nodes": 1,
                "threads_per_rank": 4, "precision": "fp32", "torch": "2.15.0", "commit": "abc", "parallel": True,
                "started_at": f"2026-11-21T0{repeat}:00:00+00:00",
            } | columns | own  # fmt: skip
            append_rows(folder, "runs", [recorded(folder, row, **(asked or {}))])
            rate = speed * math.exp(log)
            windows = [{"run_id": row["run_id"], "window": n, "images": 512, "seconds": 512 / rate} for n in range(3)]
            append_rows(folder, "windows", windows)
    return folder


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Three machines: the H100 is the fastest, and at PRICES the cheapest."""
    folder = tmp_path_factory.mktemp("sets")
    add_machine(folder / "v100", {"single": 60, "ddp": 400, "ddp_amp": (900, {"precision": "fp16"})})
    add_machine(folder / "a100", {"single": 130, "ddp": 1000, "ddp_amp": (2000, {"precision": "bf16"})})
    add_machine(folder / "h100", {"single": 320, "ddp": 2500, "ddp_amp": (5000, {"precision": "bf16"})})
    return [folder / name for name in ("v100", "a100", "h100")]


@pytest.fixture
def run(capsys, tmp_path):
    """The command as it is typed, with its exit code, what it prints, the rows of decide.csv and the JSON. Its chart
    takes most of the time, and is drawn where a test looks at it."""

    def run_words(*words, draws=False):
        options = parse(BY_WORDS["decide"], [*map(str, words), "--output", str(tmp_path / "out")])
        found = {}
        with pytest.MonkeyPatch.context() as patch:
            if not draws:
                patch.setattr(decide, "save_chart", lambda *_: [])
            code = exit_code(lambda: decide.main(options, found))
        streams, path = capsys.readouterr(), tmp_path / "out" / "decide.csv"
        rows = [*csv.DictReader(path.open())] if path.exists() else []
        last = (streams.out.splitlines() or [""])[-1]
        return SimpleNamespace(code=code, out=streams.out, err=streams.err, last=last, rows=rows, found=found)

    return run_words


def sentence_of(*words):
    """The decision, without a table or a chart: (whether it is one, its sentence)."""
    answer = decide.find_answer(parse(BY_WORDS["decide"], [*map(str, words)]))
    return answer.cheap.is_sure, best_sentence(answer.cheap, answer.fast)


def row_of(done, machine, strategy):
    (row,) = [row for row in done.rows if (row["machine"], row["strategy"]) == (machine, strategy)]
    return {name: float(text) if re.fullmatch(r"[\d.e+-]+", text) else text for name, text in row.items()}


# --- figures ------------------------------------------------------------------------------------------------------


def test_hours_and_money_by_hand(run, sets):
    """Protects whoever rents by these figures. By hand: images over images/s, an hour's price times hours, Student's t
    over five runs. Mutants: 60 for 3600; the baseline's epoch; one machine's price for all."""
    done = run(*sets, *PRICES, "--day-sd", "1%")
    assert len(done.rows) == 9
    factor = math.exp(stdtrit(4, 0.975) * 0.005 * RUN_SD / math.sqrt(5))
    for machine, price, rate in (("v100", 4, 400), ("a100", 8, 1000), ("h100", 16, 2500)):
        row = row_of(done, machine, "ddp")
        hours = IMAGES / rate / 3600
        assert row["images_per_s"] == pytest.approx(rate) and row["images_per_s_high"] == pytest.approx(rate * factor)
        for name, value in (("hours", hours), ("money", price * hours)):
            ends = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
            assert ends == pytest.approx([value, value / factor, value * factor])
        assert (row["num_runs"], row["money_per_hour"], row["joules_per_image"]) == (5, price, "")


def test_every_machine_of_a_run_is_paid_for(run, tmp_path):
    """Protects a cluster's bill. Mutant: nodes left out."""
    sets = [add_machine(tmp_path / name, {"ddp": (100, {"nodes": nodes})}) for name, nodes in (("a", 1), ("b", 2))]
    done = run(*sets, "--price", "3")
    a, b = (row_of(done, name, "ddp") for name in ("a", "b"))
    assert b["money"] == pytest.approx(2 * a["money"]) and b["hours"] == pytest.approx(a["hours"])


def test_whole_epochs_are_taken_where_they_were_run(run, tmp_path):
    """Protects from hours of timed windows where hours were measured: these epochs take twice as long."""
    sets = [add_machine(tmp_path / name, {"ddp": 100}) for name in ("a", "b")]
    seconds = 2 * 1_281_167 / 100
    rows = [
        {"run_id": f"{n}-ddp", "epoch": 0, "phase": "train", "images": 1_281_167, "seconds": seconds * (1 + n / 1000)}
        for n in range(1, 6)
    ]
    append_rows(sets[0], "epochs", rows)
    done = run(*sets, "--price", "1")
    a, b = (row_of(done, name, "ddp") for name in ("a", "b"))
    assert (a["is_measured"], b["is_measured"]) == ("yes", "no")
    assert a["hours"] == pytest.approx(2 * 1.003 * b["hours"], rel=1e-5) and "computed from images/s" in done.out


# --- decisions ----------------------------------------------------------------------------------------------------


def test_a_machine_that_is_cheapest_and_fastest_is_taken(run, sets):
    """Mutant: an interval of the lowest of nine that does not say so."""
    done = run(*sets, *PRICES, "--day-sd", "1%")
    assert done.code == 0 and done.last.startswith("Take h100 with ddp_amp: 90 epochs cost ")
    assert done.last.endswith("less money and less time than on any other machine.")
    assert "picking; of the lowest of 9 the true cost may be higher; no other day or machine is in them)" in done.last
    assert "At equal settings h100 is the cheapest with single and ddp." in done.out
    assert [row["machine"] for row in done.rows if row["best_of_machine"] == "yes"] == ["v100", "a100", "h100"]
    assert [row["strategy"] for row in done.rows if row["best_of_machine"] == "yes"] == ["ddp_amp"] * 3


@pytest.mark.medium
def test_without_the_days_spread_nothing_is_decided(run, sets):
    """Protects the rule of two days, and says what would decide: a spread just below the one that is named decides, one
    just above does not. Mutants: no verdict becomes one; the runs' part left out; one pair of days for three sets."""
    done = run(*sets, *PRICES)
    assert done.code == 3 and done.last.startswith("No decision on cost: it is not known how much a machine's speed")
    assert "there is no decision" in done.out and "day-to-day sd: unknown; to decide, give" in done.out
    named = float(re.search(r"were known \(--day-sd\) to be below ([\d.]+) %; one measured from a few", done.last)[1])
    assert 1 < named < 50
    below, above = (sentence_of(*sets, *PRICES, "--day-sd", f"{sd:.2f}%") for sd in (named - 0.05, named + 0.15))
    assert (below[0], above[0]) == (True, False) and "does not lie above 1" in above[1]


def test_costs_that_are_alike_allow_no_decision(run, sets):
    """Protects from the cheaper mean. Here an hour of the H100 costs as much more as it is faster."""
    done = run(*sets[1:], "--price", "a100=8", "--price", "h100=20.01", "--day-sd", "1%")
    assert done.code == 3 and done.last.startswith("No decision on cost: the interval of h100 with ")
    assert "a100 with ddp_amp has the lowest mean cost" in done.last and "h100 with ddp_amp is the fastest" in done.last
    assert "At equal settings there is no decision, since their intervals do not lie apart" in done.out


def test_the_cheapest_need_not_be_the_fastest(run, sets):
    """Protects who has money or time, not both: the sentence gives either, and both are on the frontier."""
    done = run(*sets[1:], "--price", "a100=8", "--price", "h100=32", "--day-sd", "1%")
    assert done.code == 0
    assert re.match(r"Take a100 with ddp_amp for the lowest cost: .*; h100 with ddp_amp is the fastest: ", done.last)
    ringed = [(row["machine"], row["strategy"]) for row in done.rows if row["on_frontier"] == "yes"]
    assert ringed == [("a100", "ddp_amp"), ("h100", "ddp_amp")]


@pytest.mark.medium
def test_equal_machines_are_seldom_called_cheaper():
    """Protects the promise of 1 in 20, with the best picked after looking, on three machines of four strategies each,
    whose days differ by 2 %. Mutants: only the best of each machine compared, as one pair; the day left out."""
    rng, wrong, num_tries = numpy.random.default_rng(5), 0, 150
    for _ in range(num_tries):
        candidates = []
        for machine, day in zip("abc", 0.02 * rng.normal(size=3), strict=True):
            for _ in range(4):
                logs = day + 0.01 * rng.normal(size=5)
                hours = Interval(math.exp(-logs.mean()), None, None)
                candidates.append(Candidate(machine, None, 1.0, hours, False, ThroughputSample(logs, [1, 2, 3, 4, 5])))
        wrong += cheapest(candidates, Family(48, 3, DaySpread(0.02))).is_sure
    assert wrong / num_tries <= 0.05


# --- equal settings, and what is refused --------------------------------------------------------------------------


def test_only_equal_resolved_settings_are_compared(run, sets):
    """Protects from bf16 on one machine against fp16 on another. Mutants: requested settings alone; resolved names that
    differ allowed."""
    done = run(*sets, *PRICES, "--day-sd", "1%")
    equal = {(row["machine"], row["strategy"]) for row in done.rows if row["equal_settings"] == "yes"}
    assert equal == {(machine, name) for machine in ("v100", "a100", "h100") for name in ("single", "ddp")}
    (line,) = [text for text in done.out.splitlines() if text.startswith("Left out at equal settings: ")]
    assert line == "Left out at equal settings: ddp_amp (precision fp16 on v100 and bf16 on a100)."


def test_what_belongs_to_a_machine_may_differ(run, tmp_path):
    """Protects the comparison itself: no two machines have equal devices, cores and versions."""
    a = add_machine(tmp_path / "a", {"ddp": 100}, torch="2.10.0", asked={"workers": "auto"})
    of_slurm = {"partition": "h100", "gpus_per_node": "8", "cpus_per_task": "12"}
    b = add_machine(tmp_path / "b", {"ddp": 200}, world_size=4, threads_per_rank=12, commit="def", asked=of_slurm)
    done = run(a, b, "--price", "1")
    assert {row["equal_settings"] for row in done.rows} == {"yes"}
    assert "Versions differ at equal settings: torch (2.10.0; 2.15.0), commit (abc; def)." in done.out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": "resnet18"}, "differ in model (a: resnet50; b: resnet18)"),
        ({"image_size": 160}, "differ in image size (a: 224 px; b: 160 px)"),
        ({"loader": "synthetic"}, "differ in data (a: 2 classes"),
        ({"asked": {"fingerprint": "9-9-9-abc"}}, "b: 9 classes, 9 training and 9 validation images"),
    ],
)
def test_unequal_work_is_refused(run, tmp_path, changes, words):
    """Protects from hours of two trainings that nobody would choose between. One line, with what to do."""
    a = add_machine(tmp_path / "a", {"ddp": 100})
    b = add_machine(tmp_path / "b", {"ddp": 200}, **changes)
    done = run(a, b, "--price", "1")
    (error,) = [text for text in done.err.splitlines() if text.startswith("error: ")]
    assert done.code == 2 and words in error and "measure" in error and done.out == "" and not done.rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--price", "a=1"], "b has no price; give that of one machine for one hour: --price b=2.50"),
        (["--price", "a=1", "--price", "bb=2"], "did you mean b?"),
        (["--price", "a=1", "--price", "b=cheap"], "'cheap' is no price"),
        (["--price", "1", "--day-sd", "2"], "a percentage such as 5%"),
        (["--price", "1", "--strategy", "fsdp"], "has no timed run of fsdp; it has ddp"),
    ],
)
def test_mistakes_are_sentences(run, tmp_path, words, message):
    sets = [add_machine(tmp_path / name, {"ddp": 100}) for name in ("a", "b")]
    done = run(*sets, *words)
    assert done.code == 2 and message in done.err and done.out == ""


def test_one_set_is_no_choice(run, sets):
    for words in ([sets[0]], [sets[0], sets[0]]):
        done = run(*words, "--price", "1")
        assert done.code == 2 and "give two sets or more" in done.err


# --- chart, JSON --------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_the_chart_can_be_read_without_colours(run, sets, tmp_path):
    """Protects a print in black and white: a filling and a line for each machine, a marker for each strategy, units,
    prices and the number of runs. Mutant: one filling for all."""
    run(*sets, *PRICES, "--day-sd", "1%", draws=True)
    text = svg_text(tmp_path / "out" / "decide.svg")
    for words in ("hours of 90 epochs", "cost, in the currency of the prices", "h100: 16.0 an hour; n = 5 runs",
                  "at equal settings", "Pareto frontier", "Take h100 with ddp_amp"):  # fmt: skip
        assert words in text, words
    styles = [chart._machine_style(number) for number in range(4)]
    for key in ("fillstyle", "linestyle", "color"):
        assert len({style[key] for style in styles}) == 4
    assert (tmp_path / "out" / "decide.png").stat().st_size > 10_000


def test_json_has_all_figures(run, sets):
    found = run(*sets, *PRICES, "--day-sd", "1%").found
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["cheapest"] == {"machine": "h100", "strategy": "ddp_amp", "is_sure": True}
    assert len(again["choices"]) == 9 and {*again["choices"][0]} == {*decide.DECIDE_COLUMNS}
    assert again["day_sd"] == 0.01 and again["decision"].startswith("Take h100")
