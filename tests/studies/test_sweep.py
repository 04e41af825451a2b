"""Sweeps and scaling studies: what is refused before the first run, the order, the numbers, the charts, signals.

.venv/bin/python -m pytest tests/studies/test_sweep.py
"""

import csv
import os
import subprocess

import numpy
import pytest
from support import OURS as OF_A_SUITE
from support import asked, recorded, start_bench, svg_text

from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows, read_table
from scripts.options.run_options import ScalingOptions, SweepOptions
from scripts.results.intervals import strategy_throughput
from scripts.results.result_set import load_set
from scripts.studies.scaling import chart as plot_scaling
from scripts.studies.scaling import plan as scaling_plan
from scripts.studies.scaling.analysis import scaling_points
from scripts.studies.sweep import chart as plot_sweep
from scripts.studies.sweep import field_flags
from scripts.studies.sweep import plan as sweep_plan
from scripts.studies.sweep.analysis import sweep_points

OURS = f"{OF_A_SUITE} scripts.studies.sweep.chart scripts.studies.scaling.chart"
COMMON = {
    "schema": 1,
    "status": "ok",
    "arch": "resnet18",
    "image_size": 64,
    "global_batch": 32,
    "device_name": "Test CPU",
    "device": "cpu",
    "world_size": 2,
    "threads_per_rank": 1,
    "nodes": 1,
    "parallel": True,
    "oversubscribed": False,
}


def add_runs(folder, strategy, images_per_s, num_repeats=5, noise=0.02, asked=None, **row):
    """Runs of one setting with three windows each; noise is that of log throughput, between runs.

    asked: fields of their recorded settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng([int(images_per_s), len(strategy)])  # rounds that do not drift
    for repeat in range(1, num_repeats + 1):
        run_id = f"{strategy}-{repeat}-{len(read_table(folder, 'runs'))}"
        speed = images_per_s * float(numpy.exp(noise * rng.normal()))
        whole = {**COMMON, "run_id": run_id, "strategy": strategy, "repeat": repeat, **row}
        append_rows(folder, "runs", [recorded(folder, whole, **(asked or {}))])
        windows = [{"run_id": run_id, "window": n, "images": 64, "seconds": 64 / speed} for n in range(3)]
        append_rows(folder, "windows", windows)


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def launch(checkout, name, **variables):
    """Run ./bench study <name> of the copied checkout: it sets results/latest."""
    keywords = {"capture_output": True, "text": True, "timeout": 300}
    return start_bench(checkout, f"study {name}", subprocess.run, **variables, **keywords)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ("STRATEGY=dpp KEY=bucket_cap_mb VALUES=1", ["'dpp'", "did you mean ddp"]),
        ("STRATEGY=ddp KEY=bucket_cap_mb VALUES=1,-1", ["-1", "at least 0"]),
        ("STRATEGY=ddp_amp KEY=precision VALUES=bf16,fp15", ["fp15", "did you mean fp16"]),
        ("STRATEGY=ddp KEY=global_batch VALUES=8,9", ["9", "2 ranks", "--global-batch 8"]),
        ("STRATEGY=ddp KEY=bucket_cap_mb VALUES=", ["--values", "./bench study sweep"]),
        ("STRATEGY=single,ddp KEY=workers VALUES=1", ["one strategy", "'single ddp'"]),
        ("STRATEGY=ddp RANKS=1,3 NUM_GPUS=0", ["3 ranks", "--global-batch 30", "--ranks"]),
        ("STRATEGY=ddp RANKS=2,2", ["two numbers or more"]),
        ("STRATEGY=ddp RANKS=1,8", ["8 ranks", "2 GPUs", "lower --ranks"]),
    ],
)
def test_a_mistake_is_named_with_what_to_do(monkeypatch, tmp_path, variables, words):
    # Every value is checked, not only the first; a wrong name comes with the nearest one. A comma is a space here.
    user_variables = dict(word.split("=") for word in variables.split())
    for name, text in {"NPROC": "2", "NUM_GPUS": "2", "ARGS": "--loader synthetic", **user_variables}.items():
        monkeypatch.setenv(name, text.replace(",", " "))
    with pytest.raises(UserError) as caught:
        study, options = (scaling_plan, ScalingOptions) if "RANKS" in user_variables else (sweep_plan, SweepOptions)
        fields = {name.lower(): text.replace(",", " ") for name, text in user_variables.items() if name != "NUM_GPUS"}
        for name in {"values", "ranks"} & fields.keys():
            fields[name] = tuple(fields[name].split())
        study.plan_runs(asked(), options(**fields))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.medium
def test_a_sweep_is_interleaved_and_does_only_what_is_missing(checkout, recorder, tmp_path, tiny_data, tiny_config):
    # Round 1 of all values and the baseline, then round 2; the user's own flags come along; a second call runs what has
    # no ok row.
    variables = {
        "RESULTS": tmp_path / "a set",
        "DATA": tiny_data,
        "CONFIG": tiny_config,
        "NPROC": 2,
        "STRATEGY": "ddp",
        "KEY": "bucket-cap-mb",
        "VALUES": "25 1",
        "REPEATS": 2,
        "ARGS": "--seed 3",
    }
    done = launch(checkout, "sweep", **variables | recorder.variables | {"PASSED_ON": OURS})
    assert done.returncode == 0, done.stderr
    rows = read_table(tmp_path / "a set", "runs").query("repeat > 0")
    options = ["--seed 3", "--seed 3 --bucket-cap-mb 1", "--seed 3 --bucket-cap-mb 25"]
    assert list(rows.repeat) == [1, 1, 1, 2, 2, 2] and sorted(rows.options[:3]) == sorted(rows.options[3:]) == options
    assert list(rows.options[:3]) != list(rows.options[3:]) and set(rows[rows.options == options[0]].strategy) == {
        "single"
    }
    started = [load_config(call["words"][-2:]) for call in recorder.calls() if "benchmarks.ddp" in call["words"]]
    assert {(config.seed, config.bucket_cap_mb) for config in started} == {(3, 25), (3, 1)}
    again = variables | recorder.variables | {"PASSED_ON": OURS, "VALUES": "25 5 1", "REPEATS": 2}
    assert launch(checkout, "sweep", **again).returncode == 0
    rows = read_table(tmp_path / "a set", "runs").query("repeat > 0")
    assert list(rows.options[6:]) == ["--seed 3 --bucket-cap-mb 5"] * 2
    points = read_csv(tmp_path / "a set" / "sweep.csv")
    assert [(row["key"], row["value"], row["num_runs"]) for row in points] == [
        ("bucket_cap_mb", value, "2") for value in ("1", "5", "25")
    ]


@pytest.mark.medium
def test_scaling_gives_every_rank_the_same_threads(checkout, recorder, tmp_path, tiny_data, tiny_config):
    # Strong and weak runs, the one that is both only once, and THREADS_PER_RANK as for the most ranks.
    variables = {
        "RESULTS": tmp_path / "s",
        "DATA": tiny_data,
        "CONFIG": tiny_config,
        "STRATEGY": "ddp",
        "RANKS": "4 1 2",
        "REPEATS": 1,
        "THREADS_PER_RANK": None,
    }
    passed_on = OURS.replace("scripts.studies.scaling.chart", "")  # what stands for a run does not know its world size
    launch(checkout, "scaling", **variables | recorder.variables | {"PASSED_ON": passed_on})
    started = [call for call in recorder.calls() if "benchmarks.ddp" in call["words"]]
    shapes = [(int(call["env"]["NPROC"]), load_config(call["words"][-2:]).global_batch) for call in started]
    assert sorted(shapes) == [(1, 2), (1, 8), (2, 4), (2, 8), (4, 8)]
    alone = [call for call in recorder.calls() if "benchmarks.single" in call["words"]]
    batches = [load_config(call["words"][-2:]).global_batch for call in alone]
    assert sorted(batches) == [2, 8]
    assert {call["env"]["THREADS_PER_RANK"] for call in alone} == {started[0]["env"]["THREADS_PER_RANK"]}
    threads = max(1, len(os.sched_getaffinity(0)) // 4)
    assert {call["env"]["THREADS_PER_RANK"] for call in started} == {str(threads)}


@pytest.mark.medium
def test_a_real_sweep_goes_on_after_a_value_that_fails(checkout, tmp_path, tiny_data, tiny_config):
    # SyncBatchNorm refuses a CPU: that run fails, the next are measured, the chart says what is missing, exit 1.
    results = tmp_path / "real sweep"
    results.mkdir()
    (results / "environment.json").write_text("{}")  # else it is described, which takes seconds
    done = launch(
        checkout,
        "sweep",
        RESULTS=results,
        DATA=tiny_data,
        CONFIG=tiny_config,
        STRATEGY="single",
        KEY="norm",
        VALUES="sync batch group",
        REPEATS=1,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    rows = read_table(results, "runs").query("repeat > 0")
    assert list(rows.status) == ["ok", "failed", "ok"]  # in the first round of three the last is first
    points = {row["value"]: row for row in read_csv(results / "sweep.csv")}
    assert sorted(points) == ["batch", "group"] and points["batch"]["ci_low"] == ""
    expected = rows[rows.options.str.contains("group")].images_per_s.item()
    assert float(points["group"]["images_per_s"]) == pytest.approx(expected, rel=1e-6)
    text = svg_text(results / "charts" / "sweep_single_norm.svg")
    assert "failed" in text and "n = 1" in text and "one round" in text


@pytest.mark.slow
def test_a_real_scaling_study_ends_in_efficiency(checkout, tmp_path, tiny_data, tiny_config):
    # The whole way from RANKS to scaling.csv, on real ranks, in a set whose path has a space.
    results = tmp_path / "real scaling"
    done = launch(
        checkout, "scaling", RESULTS=results, DATA=tiny_data, CONFIG=tiny_config, STRATEGY="ddp", RANKS="1 2", REPEATS=1
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_csv(results / "scaling.csv")
    assert [(row["mode"], row["ranks"], row["global_batch"]) for row in rows] == [
        ("strong", "1", "8"),
        ("strong", "2", "8"),
        ("weak", "1", "4"),
        ("weak", "2", "8"),
    ]
    for first, second in (rows[:2], rows[2:]):
        ratio = float(second["images_per_s"]) / float(first["images_per_s"])
        assert float(second["efficiency"]) == pytest.approx(ratio / 2, rel=1e-6)
    assert (results / "charts" / "scaling_ddp.png").exists()


@pytest.mark.medium
def test_sweep_numbers_are_those_of_the_statistics(tmp_path):
    # Each value's line is total images over total seconds with the bootstrap interval, values in order of number.
    for value, speed in (("25", 110), ("1", 100), ("5", 140)):
        add_runs(tmp_path, "ddp", speed, asked={"bucket_cap_mb": float(value)})
    add_runs(tmp_path, "zero1", 70, asked={"bucket_cap_mb": 5.0})
    add_runs(tmp_path, "single", 50)  # the baseline, which has no buckets
    points = sweep_points(load_set(tmp_path), "ddp", "bucket_cap_mb")
    assert list(points) == ["1", "5", "25"]
    assert plot_sweep.main(plot_sweep.SweepChartOptions(tmp_path, "ddp", "bucket_cap_mb")) == 0
    assert plot_sweep.main(plot_sweep.SweepChartOptions(tmp_path, "zero1", "bucket_cap_mb")) == 0
    rows = read_csv(tmp_path / "sweep.csv")
    assert [(row["strategy"], row["value"]) for row in rows] == [
        ("ddp", "1"),
        ("ddp", "5"),
        ("ddp", "25"),
        ("zero1", "5"),
    ]
    expected = strategy_throughput(points["5"].windows_of_runs)
    got = [float(rows[1][name]) for name in ("images_per_s", "ci_low", "ci_high")]
    assert got == pytest.approx([expected.value, expected.low, expected.high], rel=1e-6)
    text = svg_text(tmp_path / "charts" / "sweep_ddp_bucket_cap_mb.svg")
    assert text.count("n = 5") == 4 and "95 % interval" in text and "dashed: single: 49.9" in text


@pytest.mark.parametrize(
    ("strategy", "key", "values"),
    [("ddp", "workers", (1, 2)), ("horovod_ddp", "compression", ("none", "fp16"))],
)
def test_a_sweep_starts_at_zero_with_the_baseline(tmp_path, strategy, key, values):
    # A line joins numbers and no categories; the baseline is that of the set, else of the set around it.
    around = tmp_path / "set"
    inside = around / "sweeps"
    for number, value in enumerate(values):
        add_runs(inside, strategy, 100 + number, asked={key: value})
    results = load_set(inside)
    bare = plot_sweep.sweep_chart(results, strategy, key, sweep_points(results, strategy, key))
    assert "without single" in bare.texts[-1].get_text()
    add_runs(around, "single", 60, asked={key: values[0]}, world_size=1)
    figure = plot_sweep.sweep_chart(results, strategy, key, sweep_points(results, strategy, key))
    axes, reported = figure.axes[0], figure.texts[-1].get_text()
    joined = [line for line in axes.lines if line.get_linestyle() == "-" and line.get_marker() == "None"]
    assert axes.get_ylim()[0] == 0 and len(joined) == (key == "workers")
    if key == "compression":
        assert "dashed: single of the set around this one" in reported and "2 ranks" in figure.get_suptitle()


def test_a_sweep_is_the_runs_that_are_alike_in_all_else(tmp_path):
    # Two sweeps of one strategy in one set share the default run; a value measured on another model is in neither.
    for fields in ({}, {"bucket_cap_mb": 1.0}, {"bucket_cap_mb": 5.0}, {"workers": 0}, {"workers": 2}):
        add_runs(tmp_path, "ddp", 100 + len(fields) + sum(fields.values()), num_repeats=1, asked=fields)
    add_runs(tmp_path, "ddp", 50, num_repeats=1, asked={"bucket_cap_mb": 9.0, "norm": "group"})
    results = load_set(tmp_path)
    assert list(sweep_points(results, "ddp", "bucket_cap_mb")) == ["0", "1", "5"]
    assert list(sweep_points(results, "ddp", "workers")) == ["0", "2", "4"]


def test_two_settings_of_one_value_are_refused(tmp_path):
    # Points of other settings must not be mixed into one curve, nor one silently dropped.
    add_runs(tmp_path, "ddp", 100, asked={"bucket_cap_mb": 1.0})
    add_runs(tmp_path, "ddp", 200, asked={"bucket_cap_mb": 1.0}, arch="resnet50")
    with pytest.raises(UserError, match="several settings"):
        sweep_points(load_set(tmp_path), "ddp", "bucket_cap_mb")


def test_a_sweep_without_ok_rows_says_why(tmp_path, capsys):
    # Exit 1, and the failed run's own reason on stderr.
    append_rows(
        tmp_path, "runs", [{**COMMON, "run_id": "a", "strategy": "ddp", "status": "failed", "reason": "planted"}]
    )
    assert plot_sweep.main(plot_sweep.SweepChartOptions(tmp_path, "ddp", "bucket_cap_mb")) == 1
    assert "planted" in capsys.readouterr().err


@pytest.mark.medium
def test_efficiency_is_throughput_a_rank_over_that_of_the_fewest(tmp_path):
    # Known speeds: weak scaling is ideal, strong loses half on 4 ranks. The first of a mode has no interval.
    for ranks, batch, speed in ((1, 32, 100), (2, 32, 160), (4, 32, 200), (1, 8, 50), (2, 16, 100)):
        add_runs(
            tmp_path,
            "ddp",
            speed,
            noise=0.002,
            world_size=ranks,
            global_batch=batch,
            oversubscribed=ranks == 4,
            options=f"--global-batch {batch}",
        )
    for batch, speed in ((32, 125), (8, 50)):
        add_runs(tmp_path, "single", speed, noise=0.002, global_batch=batch)
    modes = scaling_points(load_set(tmp_path), "ddp")
    assert [(point.num_devices, round(point.efficiency, 2)) for point in modes["strong"]] == [
        (1, 1),
        (2, 0.8),
        (4, 0.5),
    ]
    assert [(point.num_devices, round(point.efficiency, 2)) for point in modes["weak"]] == [(1, 1), (2, 1), (4, 1)]
    assert plot_scaling.main(plot_scaling.StudyChartOptions(tmp_path, "ddp")) == 0
    rows = read_csv(tmp_path / "scaling.csv")
    assert [row["oversubscribed"] for row in rows] == ["no", "no", "yes", "no", "no", "yes"]
    assert [row["efficiency_ci_low"] == "" for row in rows] == [True, False, False, True, False, False]
    assert [round(float(row["over_single"]), 2) for row in rows] == [0.8, 0.64, 0.4, 1, 1, 1]
    assert all(float(row["over_single_ci_low"]) < float(row["over_single"]) for row in rows)
    drawn = svg_text(tmp_path / "charts" / "scaling_ddp.svg")
    assert "oversubscribed" in drawn and "64 % of single" in drawn.replace("(", "").replace(")", "")


def test_scaling_over_single_is_of_one_precision(tmp_path):
    """Protects `study scaling --strategy ddp_amp`: its ratio was over fp32 `single`, and nothing said so. Mutants: the
    precision not compared; the baseline planned as it is for ddp."""
    for ranks, speed in ((1, 150), (2, 250)):
        row = {"world_size": ranks, "precision": "bf16", "asked": {"precision": "bf16"}}
        add_runs(tmp_path, "ddp_amp", speed, **row)
    add_runs(tmp_path, "single", 100, world_size=1, precision="fp32", asked={})
    assert {point.over_single for point in scaling_points(load_set(tmp_path), "ddp_amp")["strong"]} == {None}
    add_runs(tmp_path, "single", 125, world_size=1, precision="bf16", asked={"precision": "bf16"})
    first, second = scaling_points(load_set(tmp_path), "ddp_amp")["strong"]
    assert first.over_single.value == pytest.approx(150 / 125, rel=0.05)
    assert second.over_single.value == pytest.approx(250 / 125, rel=0.05)


def test_one_number_of_ranks_shows_no_scaling(tmp_path, capsys):
    # Exit 1 with a sentence, and {} for the report, which leaves the chart out.
    add_runs(tmp_path, "ddp", 100)
    assert scaling_points(load_set(tmp_path), "ddp") == {}
    assert plot_scaling.main(plot_scaling.StudyChartOptions(tmp_path, "ddp")) == 1
    assert "two numbers of devices" in capsys.readouterr().err


def test_boolean_values_become_flags():
    # A boolean field takes no value on a command line.
    assert field_flags.value_flags("augment", "yes") == ["--augment"]
    assert field_flags.value_flags("copy_stream", "no") == ["--no-copy-stream"]
    with pytest.raises(UserError, match="yes or no"):
        field_flags.value_flags("augment", "2")


def test_a_baseline_that_has_the_option_too_stands_at_each_value(tmp_path):
    # Protects x single of a sweep over workers, lr, ...: each value has the baseline of the same one.
    for value, alone, several in ((0, 100, 120), (1, 90, 130)):
        add_runs(tmp_path, "single", alone, asked={"workers": value})
        add_runs(tmp_path, "ddp", several, asked={"workers": value})
    results = load_set(tmp_path)
    figure = plot_sweep.sweep_chart(results, "ddp", "workers", sweep_points(results, "ddp", "workers"))
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "_" and len(line.get_xdata()) == 1]
    bases = [group.throughput.value for group in results.timed_groups_of("single")]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks] == [*zip((0, 1), bases, strict=True)]
    assert "long dash: single with the same value" in figure.texts[-1].get_text().replace("\n", " ")
