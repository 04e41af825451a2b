"""The charts of a result set, and what ./bench plot does.

.venv/bin/python -m pytest tests/charts/test_plots.py
"""

import numpy
import pytest
from PIL import Image
from result_sets import CPU, add_runs, join_sets
from support import recorded, svg_text

from benchmarks.common.rows import append_rows
from scripts.charts import bars, learning_curves, step_chart, telemetry_chart, throughput
from scripts.charts.plot import CHARTS, run_command_line
from scripts.results.result_set import load_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three strategies, one of which divides nothing, and a second baseline on all cores."""
    folder = tmp_path_factory.mktemp("sets") / "a set"
    for strategy, speed, more in (
        ("single", 100, {"world_size": 1}),
        ("dataparallel", 98, {"parallel": False}),
        ("ddp", 170, {}),
    ):
        add_runs(folder, strategy, speed, device_name="Test CPU $5 <b> & co", **more)
    return folder


@pytest.mark.launches
def test_every_chart_is_drawn_with_its_finding(folder, tmp_path, capsys):
    words = ["--results", str(folder), "--output", str(tmp_path), "--format", "png", "svg"]
    assert run_command_line(words) == 0
    assert f"charts: {tmp_path}" in capsys.readouterr().out
    assert {path.stem for path in tmp_path.iterdir()} == {*CHARTS}
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as image:
            assert image.width == 1400 and numpy.asarray(image.convert("L")).std() > 10
    text = svg_text(tmp_path / "speedup.svg")
    assert "ddp is 1.7" in text and "Test CPU $5 <b> & co" in text and "5 runs of 5 windows" in text


def test_the_speedup_chart_has_the_ideal_and_the_baselines(folder):
    """Bars from the fastest down; the ideal where work is divided, at as many times `single` as there are devices."""
    axes = throughput.speedup_chart(load_set(folder)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ddp", "dataparallel (on one device)"]
    ideal = {
        line.get_ydata().mean(): line.get_xdata()[0] for line in axes.lines if line.get_color() == bars.IDEAL["color"]
    }
    assert ideal == {0: 2} and 1 in [line.get_xdata()[0] for line in axes.lines]


def test_one_process_on_all_cores_comes_last_however_fast(tmp_path):
    for part, strategy, threads in (("a", "single", 1), ("b", "single", 2), ("c", "ddp", 1)):
        add_runs(tmp_path / part, strategy, 100 * threads, threads_per_rank=threads)
    axes = throughput.throughput_chart(load_set(join_sets(tmp_path, "a", "b", "c"))).axes[0]
    assert axes.get_yticklabels()[-1].get_text().startswith("single, ")


def test_equal_curves_are_one_line_and_a_running_training_has_one_so_far(tmp_path):
    for strategy, accuracy in (("single", 40.0), ("ddp", 40.0), ("other", 41.0)):
        add_runs(tmp_path, strategy, 100, acc1=accuracy)
    append_rows(tmp_path, "epochs", [{"run_id": "zero1-1", "epoch": 0, "phase": "val", "loss": 2.0, "acc1": 30.0}])
    figure = learning_curves.learning_chart(load_set(tmp_path))
    assert [text.get_text() for text in figure.legends[0].texts] == ["single = ddp", "other", "zero1-1, so far"]
    assert "41.0 % (other)" in figure.get_suptitle()


@pytest.mark.launches
def test_published_times_stand_beside_a_set_of_their_settings_only(folder, tmp_path, capsys):
    own = add_runs(tmp_path / "own", "ddp", 1000, config="configs/v100x4.yaml")
    assert run_command_line(["--results", str(own), "--beside", "v100x4"]) == 0
    assert (own / "charts/beside_v100x4.png").exists()
    capsys.readouterr()
    assert run_command_line(["--results", str(folder), "--beside", "v100x4"]) == 2
    assert "was not measured with configs/v100x4.yaml" in capsys.readouterr().err


def test_a_mistake_is_one_line(folder, tmp_path, capsys):
    skipped = CPU | {"run_id": "slurm-x", "strategy": "slurm", "status": "skipped", "reason": "no cluster"}
    append_rows(tmp_path, "runs", [recorded(tmp_path, skipped)])
    (tmp_path / "file").write_text("")
    for words, code in (
        (["--results", str(tmp_path)], 1),
        (["--results", str(tmp_path / "none")], 2),
        (["--results", str(folder), "--output", str(tmp_path / "file")], 2),
    ):
        assert run_command_line(words) == code
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_parts_of_a_step_stack_to_the_step(tmp_path):
    """Timed steps are not in it. A part below zero is noise, and is not drawn."""
    results = load_set(add_runs(tmp_path, "ddp", 100))
    widths = [patch.get_width() for patch in step_chart.step_chart(results).axes[0].patches]
    assert [round(width) for width in widths] == [20, 1, 25, 40, 8, 5, 1]
    results.table("steps")["exposed_comm_ms"] = -8.0
    widths = [patch.get_width() for patch in step_chart.step_chart(results).axes[0].patches]
    assert sum(widths) == pytest.approx(92)


def test_a_panel_of_the_machine_is_as_high_as_its_highest_line(tmp_path):
    for strategy in ("single", "ddp"):
        add_runs(tmp_path, strategy, 100)
    results = load_set(tmp_path)
    telemetry = results.table("telemetry")
    telemetry.loc[telemetry.run_id.str.startswith("ddp"), "util_pct"] = 90.0
    assert telemetry_chart.telemetry_chart(results).axes[0].get_ylim()[1] > 90
