"""Charts and the summary table of result sets.

.venv/bin/python -m pytest tests/charts/test_plots.py
"""

import re

import numpy
import pandas
import pytest
from PIL import Image
from result_sets import CPU, add_runs, join_sets
from support import recorded, svg_text

from benchmarks.common.rows import append_rows
from scripts.charts import bars, step_chart, throughput
from scripts.charts.learning_curves import learning_chart
from scripts.charts.plot import CHARTS, DETAIL_CHARTS, PlotOptions, draw, main, run_command_line, summary_table
from scripts.charts.telemetry_chart import telemetry_chart
from scripts.results.result_set import load_set
from scripts.results.step_breakdown import step_parts


def add_row(folder, **row):
    row = CPU | {"run_id": f"{row['strategy']}-x", "repeat": 1, "acc1": None} | row
    append_rows(folder, "runs", [recorded(folder, row)])


def add_strategies(folder, **row):
    for strategy, speed in (("single", 100), ("dataparallel", 98), ("ddp", 170)):
        own = {"world_size": 1} if strategy == "single" else {"parallel": strategy == "ddp"}
        add_runs(folder, strategy, speed, num_repeats=3, **own | row)
    return folder


@pytest.mark.medium
def test_every_chart_is_drawn_in_png_and_svg(tmp_path, capsys):
    folder, output = add_strategies(tmp_path / "a set", device_name="Test CPU $5 <b> & co"), tmp_path / "out put"
    add_row(folder, strategy="apex_ddp", status="skipped", reason="needs CUDA; run it on a GPU")
    assert main(PlotOptions(results=(folder,), output=output)) == 0
    names = [f"{name}.{kind}" for name in CHARTS | DETAIL_CHARTS for kind in ("png", "svg")]
    assert sorted(path.name for path in output.iterdir()) == sorted(names)
    assert all(str(output / name) in capsys.readouterr().out for name in names[:1])
    for path in output.glob("*.png"):
        with Image.open(path) as image:
            assert image.width > 1000 and numpy.asarray(image.convert("L")).std() > 10
    text = svg_text(output / "throughput.svg")
    shown = ("Test CPU $5 <b> & co", "resnet18, 64 px, global batch 32", "3 x 5", "(not parallel)", "apex_ddp skipped")
    assert [words for words in shown if words not in text] == []


def test_other_sizes_of_image_share_no_axis(tmp_path):
    one = add_runs(tmp_path / "one", "ddp", 170, image_size=48)
    two = add_runs(tmp_path / "two", "ddp", 20, image_size=224)
    for paths, num_panels in (([one], 1), ([one, two], 2)):
        figure = throughput.throughput_chart([load_set(path) for path in paths])
        assert len(figure.axes) == num_panels + 1  # and the legend's place


def test_speedups_are_sorted_and_have_the_ideal(tmp_path):
    """The mark is at as many times `single` as there are devices, and nowhere where nothing is divided."""
    axes = throughput.speedup_chart([load_set(add_strategies(tmp_path))]).axes[0]
    assert [label.get_text().split("\n")[0] for label in axes.get_yticklabels()] == ["ddp", "dataparallel"]
    ideal = {line.get_ydata().mean(): line.get_xdata()[0] for line in axes.lines if line.get_color() == bars.IDEAL}
    assert ideal == {0: 2} and 2 < axes.get_xlim()[1] < 2.2


def test_a_speedup_over_another_precision_is_marked_at_its_bar(tmp_path):
    for part, strategy, precision in (("a", "single", "fp32"), ("b", "ddp", "fp32"), ("c", "single", "bf16")):
        add_runs(tmp_path / part, strategy, 100, precision=precision)
    add_runs(tmp_path / "d", "ddp_amp", 200, precision="bf16")
    axes = throughput.speedup_chart([load_set(join_sets(tmp_path, "a", "b", "c", "d"))]).axes[0]
    assert any("bf16 single" in label.get_text().replace("\n", " ") for label in axes.get_yticklabels())


def test_equal_curves_are_one_line_and_named(tmp_path):
    """Two strategies that learn the same are one line by epoch, and two by seconds."""
    for strategy, accuracy in (("single", 40.0), ("ddp", 40.0), ("other", 41.0)):
        add_runs(tmp_path, strategy, 100, acc1=accuracy)
    figure = learning_chart([load_set(tmp_path)])
    curves = [[line for line in axes.lines if line.get_marker() not in ("_", "None")] for axes in figure.axes[:4]]
    assert [len(lines) for lines in curves] == [2, 2, 2, 3]
    assert "single = ddp" in figure.texts[-1].get_text()


@pytest.mark.medium
def test_several_sets_are_drawn_side_by_side(tmp_path):
    first, second = add_runs(tmp_path / "one", "ddp", 170), add_strategies(tmp_path / "two")
    assert main(PlotOptions(results=(first, second, first))) == 0
    text = svg_text(first / "charts" / "with-two" / "throughput.svg")
    assert {"one", "two"} <= {*text.split()} and len(re.findall(r"[35] x 5", text)) >= 4


def test_the_table_says_what_became_of_every_row(tmp_path):
    add_strategies(tmp_path)
    add_row(tmp_path, strategy="ddp", status="failed", reason="rank 1: signal 9, possibly out of memory")
    add_row(tmp_path, strategy="slurm", status="skipped", reason="no cluster")
    lines = summary_table(tmp_path).splitlines()
    ddp = next(line for line in lines if line.startswith("ddp "))
    assert "3 ok, 1 failed" in ddp and "3 runs [15 windows]" in ddp
    assert (
        "ddp failed 1 of 4: rank 1: signal 9, possibly out of memory" in lines and "slurm skipped: no cluster" in lines
    )


def test_a_mistake_is_one_line(tmp_path, capsys):
    add_row(tmp_path, strategy="slurm", status="skipped", reason="no cluster")
    (tmp_path / "file").write_text("")
    good = add_runs(tmp_path / "good", "ddp", 170)
    for words, code in (
        (["--results", str(tmp_path)], 1),
        (["--results", str(tmp_path / "none")], 2),
        (["--results", str(good), "--output", str(tmp_path / "file")], 2),
    ):
        assert run_command_line(words) == code
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_torn_lines_cost_only_themselves(tmp_path, capsys):
    add_runs(tmp_path, "ddp", 170)
    for name in ("runs", "windows", "epochs"):
        with open(tmp_path / f"{name}.csv", "a") as file:
            file.write("half,a li")
    results = load_set(tmp_path)
    assert results.groups[0].throughput.num_runs == 5 and len(results.table("epochs")) == 20
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.medium
def test_sets_without_some_columns_and_tables_still_draw(tmp_path):
    (tmp_path / "runs.csv").write_text("run_id,strategy,status,images_per_s\na,ddp,ok,170\nb,ddp,ok,171\n")
    assert [path.name for path in draw([load_set(tmp_path)], tmp_path / "charts")] == [
        "throughput.png",
        "throughput.svg",
    ]


def test_the_parts_of_a_step_stack_to_the_step(tmp_path):
    """Timed steps are not in it. A part below zero is noise, is not drawn, and a footnote names it."""
    results = load_set(add_runs(tmp_path, "ddp", 100))
    parts = step_parts(results.groups[0], results.table("steps"))
    assert len(parts) == 20 and parts.drop(columns="run_id").sum(axis=1).tolist() == [100.0] * 20
    widths = [patch.get_width() for patch in step_chart.step_chart([results]).axes[0].patches]
    assert [round(width) for width in widths] == [20, 1, 25, 40, 8, 5, 1]
    results.table("steps")["exposed_comm_ms"] = -8.0
    figure = step_chart.step_chart([results])
    assert sum(patch.get_width() for patch in figure.axes[0].patches) == pytest.approx(92)
    assert "(-8 ms)" in figure.texts[-1].get_text()


def test_the_power_of_all_gpus_is_summed_though_each_is_read_at_a_moment_of_its_own(tmp_path):
    watts = {"gpu0": [200.0, 210.0, 220.0, 230.0], "gpu1": [300.0, 310.0, None, 330.0]}
    rows = [
        {"run_id": "ddp-1", "t_s": 0.5 * (n + 1) + 0.0023 * place, "device": device, "power_w": watts[device][n]}
        for n in range(4)
        for place, device in enumerate(watts)
    ]
    results = load_set(add_runs(tmp_path, "ddp", 100, num_repeats=1, device="cuda"))
    results.tables["telemetry"] = pandas.DataFrame(rows).assign(
        util_pct=80.0, memory_used_mb=4000.0, network_mb_per_s=numpy.nan
    )
    (power,) = [axes for axes in telemetry_chart([results]).axes if axes.get_title("left").startswith("power")]
    assert power.lines[0].get_ydata().tolist() == [500.0, 520.0, 560.0]  # the third sample lacks a GPU
    assert power.lines[0].get_xdata() == pytest.approx([0.50115, 1.00115, 2.00115])
