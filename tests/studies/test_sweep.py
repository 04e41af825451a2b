"""Sweeps: what is refused before the first run, which runs are points, their numbers, table, chart and section."""

import csv
import dataclasses
import subprocess

import numpy
import pytest
from support import OURS as OF_A_SUITE
from support import recorded, start_bench

from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows, read_table
from scripts.results.intervals import strategy_throughput
from scripts.results.result_set import load_set
from scripts.studies.options import SweepOptions
from scripts.studies.sweep import chart, plan, points
from scripts.studies.sweep.each_option import ALL_TOGETHER, BASELINE_POINT, OPTIONS
from scripts.studies.sweep.section import SECTION

OURS = f"{OF_A_SUITE} scripts.studies.sweep.chart"
CPU = {
    "status": "ok", "arch": "resnet18", "image_size": 64, "global_batch": 32, "device_name": "Test CPU",
    "device": "cpu", "world_size": 2, "threads_per_rank": 1, "nodes": 1, "parallel": True, "oversubscribed": False,
}  # fmt: skip


@pytest.fixture
def planned(make_request, monkeypatch):
    """planned(strategy, options, **variables): the runs of a round, by the label of their point, on four cores."""
    monkeypatch.setattr("benchmarks.common.machine.num_cores", lambda: 4)

    def make(strategy: str = "ddp", options: SweepOptions | None = None, **variables) -> dict:
        request, options = make_request(**variables), options or SweepOptions(each_option=True)
        found = plan.find_points(request, options, strategy, plan.name_of_key(options))
        return {run.variant: run for run in plan.plan_points(request, strategy, found)}

    return make


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "dpp", "key": "bucket_cap_mb", "values": ("1",)}, ["'dpp'", "did you mean ddp"]),
        ({"key": "bucket_cap_mb", "values": ("1", "-1")}, ["-1", "at least 0"]),
        ({"key": "global_batch", "values": ("8", "9")}, ["9", "2 ranks", "--global-batch 8"]),
        ({"key": "ranks", "values": ("1", "3")}, ["3 ranks", "--values"]),
        ({"key": "cut", "values": ("3",)}, ["ddp does not read cut"]),
        ({"key": "workers", "values": ("1",), "to": "2"}, ["--to", "the points are 1"]),
        ({"each_option": True, "key": "workers"}, ["--each-option"]),
    ],
)
def test_a_mistake_is_named_before_anything_is_made(make_request, tmp_path, options, words):
    request = make_request(NPROC="2")  # which sets the variables of the machine
    given = {"config": tmp_path / "own.yaml", "results": tmp_path / "set", "nproc": request.ranks_here} | options
    with pytest.raises(UserError) as caught:
        plan.main(SweepOptions(**given), ["--loader", "synthetic"])
    assert all(word in str(caught.value) for word in words), caught.value
    assert not (tmp_path / "set").exists()


def test_each_option_is_the_first_point_and_one_option(planned):
    runs = planned()
    assert [*runs] == [BASELINE_POINT, *(option.name for option in OPTIONS), ALL_TOGETHER]
    base = runs[BASELINE_POINT].requested
    for option in OPTIONS:
        asked = runs[option.name].requested
        own = option.on | ({"threads_per_rank": 2} if option.own_threads else {})
        assert {name: asked[name] for name in asked if asked[name] != base[name]} == own
    assert {name for name, run in runs.items() if run.skip} >= {"cudnn.benchmark", "CUDA graphs (and compile)"}
    together = runs[ALL_TOGETHER].requested
    assert together["fused"] and together["bucket_cap_mb"] == 100 and not together["cuda_graphs"]
    assert "static_graph" not in planned("single", NPROC="1")


def test_ranks_share_a_batch_or_have_as_many_images_each(planned):
    """All have the threads of a rank among the most."""
    words = {"key": "ranks", "values": ("4", "1", "2")}
    for weak, batches in ((False, [8, 8, 8]), (True, [2, 4, 8])):
        runs = planned("ddp", SweepOptions(weak=weak, **words), ARGS="--global-batch 8").values()
        shapes = [(run.requested["ranks"], run.config.global_batch) for run in runs]
        assert shapes == [*zip([1, 2, 4], batches, strict=True)]
        assert {run.variables["THREADS_PER_RANK"] for run in runs} == {"1"}


def test_a_pipelines_bubble_is_measured(planned):
    (run,) = planned("pipeline_parallel", SweepOptions(key="microbatches", values=("2",)), NPROC="2").values()
    assert run.config.account_steps > 0 and run.config.epochs == 1


# --- what the runs of a set are ---------------------------------------------------------------------------------------


def add_runs(folder, strategy, images_per_s, num_rounds=5, noise=0.02, asked=None, **row) -> str:
    """Runs of one point; returns the hash of what they requested. noise: of log throughput, between rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, settings = numpy.random.default_rng(int(images_per_s)), ""
    for repeat in range(1, num_rounds + 1):
        run_id = f"{strategy}-{repeat}-{len(read_table(folder, 'runs'))}"
        speed = images_per_s * float(numpy.exp(noise * rng.normal()))
        whole = recorded(folder, CPU | {"run_id": run_id, "strategy": strategy, "repeat": repeat, **row}, **asked or {})
        settings = whole["settings"]
        append_rows(folder, "runs", [whole])
        windows = [{"run_id": run_id, "window": n, "images": 64, "seconds": 64 / speed} for n in range(3)]
        append_rows(folder, "windows", windows)
    return str(read_table(folder, "settings").set_index("settings").asked_hash[settings])


def add_sweep(folder, strategy, key, speeds, **fields) -> points.Sweep:
    planned = {str(value): add_runs(folder, strategy, speed, asked={key: value}) for value, speed in speeds.items()}
    sweep = points.Sweep(strategy, key, next(iter(planned)), False, "", planned, **fields)
    points.record_sweep(folder, sweep)
    return sweep


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.launches
def test_points_have_the_sets_numbers_and_no_sweep_replaces_another(tmp_path, capsys):
    add_sweep(tmp_path, "ddp", "bucket_cap_mb", {25.0: 110, 1.0: 100, 5.0: 140})
    add_sweep(tmp_path, "zero1", "bucket_cap_mb", {1.0: 70, 5.0: 77})
    add_runs(tmp_path, "ddp", 500, asked={"bucket_cap_mb": 5.0}, arch="resnet50")  # no point
    results = load_set(tmp_path)
    ddp, _ = points.load_sweeps(tmp_path)
    measured = {point.label: point for point in points.find_result(results, ddp).timed}
    assert [*measured] == ["1.0", "5.0", "25.0"]  # ratios are over the first that was named
    first, five = measured["25.0"].group, measured["5.0"].group
    logs = [numpy.log(strategy_throughput([run]).value) for run in five.windows_of_runs]
    base = [numpy.log(strategy_throughput([run]).value) for run in first.windows_of_runs]
    assert measured["5.0"].ratio.value == pytest.approx(numpy.exp(numpy.mean(logs) - numpy.mean(base)))
    assert measured["5.0"].ratio.verdict == "faster" and measured["25.0"].ratio is None
    assert chart.main(chart.SweepChartOptions(tmp_path)) == 0
    rows = read_csv(tmp_path / "sweep.csv")
    assert [(row["strategy"], row["point"]) for row in rows] == [
        *(("ddp", label) for label in ("1.0", "5.0", "25.0")), ("zero1", "1.0"), ("zero1", "5.0")
    ]  # fmt: skip
    assert "140" in capsys.readouterr().out
    charts = {path.stem for path in (tmp_path / "charts").iterdir()}
    assert charts == {"sweep_ddp_bucket_cap_mb", "sweep_zero1_bucket_cap_mb"} == {*SECTION.figures(results)}
    assert [table.title for table in SECTION.tables(results)] == [
        "Sweep of ddp: bucket_cap_mb", "Sweep of zero1: bucket_cap_mb"
    ]  # fmt: skip


def test_a_point_that_was_not_run_says_why_and_new_values_join(tmp_path):
    sweep = add_sweep(tmp_path, "ddp", "norm", {"batch": 100, "group": 90})
    failed = {"run_id": "f", "strategy": "ddp", "repeat": 1, "status": "failed", "reason": "planted"}
    row = recorded(tmp_path, CPU | failed, norm="sync")
    append_rows(tmp_path, "runs", [row])
    settings = read_table(tmp_path, "settings").set_index("settings")
    again = dataclasses.replace(sweep, points={"sync": str(settings.asked_hash[row["settings"]])})
    points.record_sweep(tmp_path, again)
    (joined,) = points.load_sweeps(tmp_path)
    found = points.find_result(load_set(tmp_path), joined)
    assert [point.label for point in found.timed] == ["batch", "group"] and found.untimed == {"sync": "planted"}
    assert len(chart.sweep_chart(found).axes[0].patches) == 2  # words: a bar a point


def test_efficiency_and_the_sum_for_more_ranks_by_hand(tmp_path):
    """100 images/s of one rank; gradients of 1 MB take 1 ms between 2 ranks, and 1.5 ms between 4."""
    hashes = {}
    for ranks, speed in ((1, 100), (2, 160), (4, 200)):
        asked = {"global_batch": 32}
        hashes[str(ranks)] = add_runs(tmp_path, "ddp", speed, noise=0.001, asked=asked, world_size=ranks)
    exchange = points.Exchange(10**6, 1e9)
    sweep = points.Sweep("ddp", points.RANKS, "1", False, "", hashes, exchange)
    points.record_sweep(tmp_path, sweep)
    found = points.find_result(load_set(tmp_path), sweep)
    assert [round(found.efficiency(point), 2) for point in found.timed] == [1.0, 0.8, 0.5]
    assert exchange.seconds(2) == pytest.approx(1e-3) and exchange.seconds(4) == pytest.approx(1.5e-3)
    assert found.summed_speed(4) == pytest.approx(32 / (0.08 + 0.0015), rel=0.01)
    weak = dataclasses.replace(found, sweep=dataclasses.replace(sweep, weak=True))
    assert weak.summed_speed(4) == pytest.approx(4 * 32 / (0.32 + 0.0015), rel=0.01)
    lines = {line.get_linestyle() for line in chart.sweep_chart(found).axes[0].lines}
    assert {"--", ":", "-"} <= lines


def test_the_measured_bubble_stands_beside_that_of_equal_stages(tmp_path):
    met = {"num_stages": 2, "num_microbatches": 4, "num_shards": 1}
    requested = add_runs(tmp_path, "pipeline_parallel", 100, 1, asked={"microbatches": 4} | met)
    (run_id,) = read_table(tmp_path, "runs").run_id
    step = {"run_id": run_id, "step": 9, "step_ms": 100, "data_ms": 0, "copy_ms": 0, "optimizer_ms": 0, "other_ms": 0}
    step |= {"forward_ms": 25, "backward_ms": 50, "wait_ms": 25}
    append_rows(tmp_path, "steps", [step | {"rank": rank} for rank in (0, 1)])
    sweep = points.Sweep("pipeline_parallel", "microbatches", "4", False, "", {"4": requested})
    found = points.find_result(load_set(tmp_path), sweep)
    assert found.timed[0].bubble == pytest.approx((0.25, 1 / 5))  # (p - 1) / (m + p - 1)
    assert "bubble 25 %, in theory 20 %" in points.table(found)
    assert chart.sweep_chart(found).axes[1].get_ylabel().startswith("bubble")


# --- for real -----------------------------------------------------------------------------------------------------


@pytest.mark.launches
def test_a_sweep_takes_turns_and_does_only_what_is_missing(checkout, recorder, tmp_path, tiny_data, tiny_config):
    results = tmp_path / "a set"
    variables = {
        "RESULTS": results, "DATA": tiny_data, "CONFIG": tiny_config, "NPROC": 2, "STRATEGY": "ddp",
        "KEY": "bucket-cap-mb", "VALUES": "25 1", "REPEATS": 2, "ARGS": "--seed 3", "PASSED_ON": OURS,
    }  # fmt: skip
    keywords = {"capture_output": True, "text": True, "timeout": 300}
    done = start_bench(checkout, "study sweep", subprocess.run, **recorder.variables | variables, **keywords)
    assert done.returncode == 0, done.stderr
    rows = read_table(results, "runs").query("repeat > 0")
    first, second = ([*rows.options[rows.repeat == number]] for number in (1, 2))
    assert sorted(first) == sorted(second) == ["--seed 3 --bucket-cap-mb 1.0", "--seed 3 --bucket-cap-mb 25.0"]
    assert first != second
    started = [load_config(call["words"][-2:]) for call in recorder.calls() if "benchmarks.ddp" in call["words"]]
    assert {(config.seed, config.bucket_cap_mb) for config in started} == {(3, 25), (3, 1)}
    more = recorder.variables | variables | {"VALUES": "25 5 1"}
    assert start_bench(checkout, "study sweep", subprocess.run, **more, **keywords).returncode == 0
    rows = read_table(results, "runs").query("repeat > 0")
    assert [*rows.options[4:]] == ["--seed 3 --bucket-cap-mb 5.0"] * 2
    assert [row["point"] for row in read_csv(results / "sweep.csv")] == ["1", "5", "25"]
