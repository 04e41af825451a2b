"""Charts and table from synthetic CSV: nothing measured is dropped, nothing is unlabelled, nothing is a traceback."""

import contextlib
import re
import subprocess
import sys

import numpy
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support import ROOT, recorded, svg_text

from benchmarks.common.store.columns import TABLES
from benchmarks.common.store.results import append_rows
from benchmarks.common.system.errors import UserError
from scripts.charts import bars, throughput
from scripts.charts import plot as plot_results
from scripts.charts.figures import axis_limits
from scripts.charts.learning_curves import learning_chart
from scripts.charts.plot import PlotOptions, draw, main, run_command_line, summary_table
from scripts.charts.telemetry_chart import telemetry_chart
from scripts.sets.result_set import load_set
from scripts.stats.intervals import Estimate

COMMON = {
    "schema": 1,
    "arch": "resnet18",
    "image_size": 64,
    "global_batch": 32,
    "loader": "folder",
    "device": "cpu",
    "device_name": "Test CPU $5 <b> & co",
    "world_size": 2,
}


def write_set(folder, speeds, num_repeats=3, num_windows=5, num_epochs=2, **columns):
    """A set with noise of 2 % between and within runs; strategies named in `speeds` (images/s)."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng(0)
    runs, windows, epochs = [], [], []
    for repeat in range(1, num_repeats + 1):
        for strategy, speed in speeds.items():
            run_id = f"{repeat}-{strategy}"
            speed = speed * numpy.exp(0.02 * rng.normal())
            row = {
                **COMMON,
                "run_id": run_id,
                "strategy": strategy,
                "status": "ok",
                "repeat": repeat,
                "parallel": strategy != "dataparallel",
                "images_per_s": speed,
                "acc1": 40.0,
                "peak_memory_mb": 900.0 + repeat,
            } | columns
            runs.append(recorded(folder, row))
            windows += [
                {"run_id": run_id, "window": n, "images": 224, "seconds": 224 / speed / numpy.exp(0.02 * rng.normal())}
                for n in range(num_windows)
            ]
            if num_windows:
                own = windows[-num_windows:]
                runs[-1]["images_per_s"] = 224 * num_windows / sum(window["seconds"] for window in own)
            epochs += [
                {
                    "run_id": run_id,
                    "epoch": n,
                    "phase": phase,
                    "seconds": 5.0,
                    "images": 480,
                    "acc1": row["acc1"] * (1 + n) / num_epochs,
                    "loss": 2.3 / (1 + n),
                }
                for n in range(num_epochs)
                for phase in ("train", "val")
            ]
    append_rows(folder, "runs", runs)
    append_rows(folder, "windows", windows)
    append_rows(folder, "epochs", epochs)
    return folder


def add_run(folder, **row):
    row = {**COMMON, "run_id": row["strategy"] + "-x", "repeat": 1, **row}
    append_rows(folder, "runs", [recorded(folder, row)])


@pytest.mark.medium
def test_the_command_draws_every_chart_in_png_and_svg(tmp_path):
    # The real command, in a path with a space; --output is honoured and no temporary file is left.
    folder = write_set(tmp_path / "a set", {"single": 100, "dataparallel": 98, "ddp": 170})
    add_run(folder, strategy="apex_ddp", status="skipped", reason="needs CUDA; run it on a GPU")
    output = tmp_path / "out put"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.charts.plot", "--results", folder, "--output", output],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [f"{name}.{kind}" for name in plot_results.CHARTS for kind in ("png", "svg")]
    assert sorted(path.name for path in output.iterdir()) == sorted(names)
    assert all(str(output / name) in done.stdout for name in names) and done.stderr == ""
    for name in plot_results.CHARTS:
        with Image.open(output / f"{name}.png") as image:
            assert image.width > 1000 and numpy.asarray(image.convert("L")).std() > 10
    text = svg_text(output / "throughput.svg")
    for words in (
        "Test CPU $5 <b> & co",
        "2 ranks",
        "resnet18, 64 px, global batch 32",
        "n: runs x timed windows of each",
        "3 x 5",
        "(not parallel)",
        "apex_ddp skipped: needs CUDA; run it on a GPU",
    ):
        assert words in text, words


@pytest.mark.medium
def test_epoch_seconds_say_whether_they_were_measured(tmp_path):
    # Only a training epoch over all of ImageNet from files is a measurement; the published series stays apart.
    folder = write_set(tmp_path / "a", {"ddp": 170}, num_epochs=0)
    whole = [
        {"run_id": f"{n}-ddp", "epoch": 0, "phase": "train", "seconds": 1000.0 + n, "images": 1_281_152}
        for n in (1, 2, 3)
    ]
    draw([load_set(folder)], tmp_path / "before")
    append_rows(folder, "epochs", whole)
    draw([load_set(folder)], tmp_path / "after")
    before, after = (svg_text(tmp_path / name / "epoch_seconds.svg") for name in ("before", "after"))
    assert "] worked out" in before and "] measured" not in before
    assert "1,002 " in after and "] measured" in after and "worked out" not in after
    for text in (before, after):
        assert "OTHER HARDWARE, 4 Tesla V100-PCIe" in text and "4,138.3" in text


@pytest.mark.parametrize("column", [{"loader": "synthetic"}, {"global_batch": 8}])
def test_an_epoch_that_is_no_whole_imagenet_is_not_called_measured(tmp_path, column):
    # Synthetic images are no ImageNet, and with batches of 8 an epoch that lacks 15 images lacks one batch too many.
    folder = write_set(tmp_path, {"ddp": 170}, num_epochs=0, **column)
    append_rows(
        folder,
        "epochs",
        [
            {"run_id": f"{n}-ddp", "epoch": 0, "phase": "train", "seconds": 1000.0, "images": 1_281_152}
            for n in (1, 2, 3)
        ],
    )
    assert "worked out" in throughput._epoch_bar(load_set(folder), load_set(folder).groups[0], 0).cells[2]


def test_other_sizes_of_image_share_no_axis(tmp_path):
    """Protects a reader who compares lengths: 48 px, 224 px and the published figures have scales of their own."""
    one = write_set(tmp_path / "one", {"single": 90, "ddp": 170}, image_size=48, num_epochs=0)
    two = write_set(tmp_path / "two", {"ddp": 20}, image_size=224, num_epochs=0)
    for sets, num_panels in (([one], 1), ([one, two], 2)):
        loaded = [load_set(path) for path in sets]
        rates, epoch = (chart(loaded) for chart in (throughput.throughput_chart, throughput.epoch_chart))
        assert len(rates.axes) == num_panels + 1  # and the legend's place
        ours, published = epoch.axes[:num_panels], epoch.axes[num_panels]
        assert [len(axes.get_yticks()) for axes in ours] == [2, 1][:num_panels]
        assert "224 px" in published.get_xlabel() and "48 px" in ours[0].get_xlabel()
        assert published.get_xlim()[1] != ours[0].get_xlim()[1]


def test_speedups_are_sorted_and_have_the_ideal(tmp_path):
    """The fastest first; a mark at as many times `single` as there are devices, and none where nothing is divided."""
    folder = write_set(tmp_path, {"single": 100, "dataparallel": 98, "pipeline": 120, "ddp": 170})
    rows = pandas.read_csv(folder / "runs.csv", dtype=str, keep_default_na=False)
    rows.loc[rows.strategy == "single", "world_size"] = "1"
    rows.to_csv(folder / "runs.csv", index=False)
    axes = throughput.speedup_chart([load_set(folder)]).axes[0]
    names = [label.get_text().split("\n")[0] for label in axes.get_yticklabels()]
    assert names == ["ddp", "pipeline", "dataparallel"]
    ideal = {line.get_ydata().mean(): line.get_xdata()[0] for line in axes.lines if line.get_color() == bars.IDEAL}
    assert ideal == {0: 2, 1: 2} and 2 < axes.get_xlim()[1] < 2.2


def test_a_speedup_over_another_precision_is_marked_at_its_bar(tmp_path):
    """Protects who reads the chart alone: 1.11 of ddp_amp is not over the bar of fp32 `single`. Mutant: a footnote."""
    for name, speeds, precision in (
        ("fp32", {"single": 100, "ddp": 170}, "fp32"),
        ("bf16", {"single": 150, "ddp_amp": 200}, "bf16"),
    ):
        rng = numpy.random.default_rng(1)
        for strategy, speed in speeds.items():
            for repeat in range(1, 6):
                row = COMMON | {"run_id": f"{name}-{strategy}-{repeat}", "strategy": strategy, "status": "ok"}
                row |= {
                    "repeat": repeat,
                    "images_per_s": speed * numpy.exp(0.02 * rng.normal()),
                    "precision": precision,
                }
                asked = {"precision": "fp32"} if strategy == "ddp_amp" else {}  # it makes bf16 of it by itself
                append_rows(tmp_path, "runs", [recorded(tmp_path, row, **asked)])
    axes = throughput.speedup_chart([load_set(tmp_path)]).axes[0]
    names = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert sorted(names) == ["ddp", "ddp_amp (over bf16 single)"]


def test_speedups_are_sorted_by_themselves():
    """Mutant: the order of throughput, in which what is over a faster baseline comes first."""
    values = {"over bf16": 0.9, "ddp": 1.2, "pipeline": 1.1}
    made = [bars.Bar(name, value, None, None, [], ("", "", ""), True, 0) for name, value in values.items()]
    assert [bar.label for bar in throughput._fastest_first(made)] == ["ddp", "pipeline", "over bf16"]


def test_equal_curves_are_one_line_and_named(tmp_path):
    """Two strategies that learn the same are one line by epoch, and two by seconds."""
    folder = write_set(tmp_path, {"single": 100, "ddp": 170, "other": 90})
    table = (folder / "epochs.csv").read_text()
    (folder / "epochs.csv").write_text(re.sub(r"(?m)^(\d-other,.*),20,", r"\1,21,", table))
    figure = learning_chart([load_set(folder)])
    curves = [[line for line in axes.lines if line.get_marker() not in ("_", "None")] for axes in figure.axes[:4]]
    assert [len(lines) for lines in curves] == [2, 2, 2, 3]
    assert "the same: single = ddp." in figure.texts[-1].get_text()
    assert "single (n = 1 seed, 3 runs)" in [text.get_text() for text in figure.axes[4].get_legend().get_texts()]


@pytest.mark.medium
def test_several_sets_are_drawn_side_by_side(tmp_path, capsys):
    first, second = write_set(tmp_path / "one", {"ddp": 170}), write_set(tmp_path / "two", {"single": 90, "ddp": 80})
    assert main(PlotOptions(results=(first, second, first))) == 0
    folder = first / "charts" / "with-two"
    text = svg_text(folder / "speedup.svg")
    assert "without ok runs of single, so not shown: one" in text
    assert len(re.findall(r"3 x 5", svg_text(folder / "throughput.svg"))) == 4  # beside three bars, and what n is
    assert "one: resnet18" in capsys.readouterr().out


@pytest.mark.parametrize("num_strategies", [1, pytest.param(11, marks=pytest.mark.medium)])
@pytest.mark.parametrize("num_repeats, num_windows", [(1, 1), pytest.param(2, 3, marks=pytest.mark.medium)])
def test_few_or_many_bars_and_samples(tmp_path, num_strategies, num_repeats, num_windows):
    speeds = {f"strategy_{n}": 90.0 + n for n in range(num_strategies)}
    folder = write_set(tmp_path, speeds, num_repeats, num_windows)
    paths = draw([load_set(folder)], tmp_path / "charts")
    text = svg_text(tmp_path / "charts" / "throughput.svg")
    assert len(paths) == 8  # no single, so no speed-up
    assert text.count(f"{num_repeats} x {num_windows}") == num_strategies + 1  # and what n is
    assert ("no interval: one run" in text) == (num_repeats == 1)


@pytest.mark.medium
def test_a_ratio_of_three_rounds_says_why_it_has_no_interval(tmp_path):
    """Protects the footnote: three rounds are not one. Mutant: the sentence of one run in every chart."""
    draw([load_set(write_set(tmp_path, {"single": 100, "ddp": 170}, num_repeats=3))], tmp_path / "charts")
    text = svg_text(tmp_path / "charts" / "speedup.svg")
    assert "no interval: fewer than 5 rounds" in text and "no interval: one run" not in text


def test_the_table_says_what_became_of_every_row(tmp_path):
    folder = write_set(tmp_path, {"single": 100, "ddp": 170}, num_repeats=5, oversubscribed=True)
    add_run(folder, strategy="ddp", status="failed", reason="rank 1: signal 9, possibly out of memory")
    add_run(folder, strategy="slurm", status="skipped", reason="no cluster")
    add_run(folder, strategy="fsdp", status="ok")
    lines = summary_table(folder).splitlines()
    ddp = next(line for line in lines if line.startswith("ddp "))
    assert "5 ok, 1 failed" in ddp and "5 runs [25 windows]" in ddp and "40.0" in ddp
    assert re.search(r" 1\.\d\d +\[1\.\d\d, 1\.\d\d\]", ddp)
    assert "ddp failed 1 of 6: rank 1: signal 9, possibly out of memory" in lines
    assert "slurm skipped: no cluster" in lines
    assert "fsdp is ok but has neither windows nor images_per_s" in lines


def test_no_ok_row_is_a_sentence_and_exit_1(tmp_path, capsys):
    add_run(tmp_path, strategy="slurm", status="skipped", reason="no cluster")
    assert main(PlotOptions(results=(tmp_path,))) == 1
    streams = capsys.readouterr()
    assert "slurm skipped: no cluster" in streams.out and "no ok rows" in streams.err


def test_an_empty_folder_and_a_missing_one(tmp_path, capsys):
    assert main(PlotOptions(results=(tmp_path,))) == 1
    assert run_command_line(["--results", str(tmp_path / "none")]) == 2
    assert "error: " in capsys.readouterr().err


def test_an_unwritable_output_is_a_users_error(tmp_path, capsys):
    folder = write_set(tmp_path / "a", {"ddp": 170})
    (tmp_path / "file").write_text("")
    assert run_command_line(["--results", str(folder), "--output", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("error: cannot write charts")


def test_torn_lines_cost_only_themselves(tmp_path, capsys):
    folder = write_set(tmp_path, {"ddp": 170})
    for name in ("runs", "windows", "epochs"):
        with open(folder / f"{name}.csv", "a") as file:
            file.write("half,a li")
    results = load_set(folder)
    assert results.groups[0].throughput.num_runs == 3 and len(results.table("epochs")) == 12
    assert capsys.readouterr().err.count("not a whole row") == 3


@pytest.mark.medium
def test_older_sets_without_some_columns_and_tables_still_draw(tmp_path):
    (tmp_path / "runs.csv").write_text("run_id,strategy,status,images_per_s\na,ddp,ok,170\nb,ddp,ok,171\n")
    draw([load_set(tmp_path)], tmp_path / "charts")
    assert "hardware unknown" in svg_text(tmp_path / "charts" / "throughput.svg")


CELLS = st.one_of(
    st.sampled_from(
        [
            "ok",
            "failed",
            "single",
            "ddp",
            "yes",
            "no",
            "train",
            "val",
            "a",
            "b",
            "0",
            "1",
            "32",
            "1e300",
            "-1",
            "nan",
            "inf",
            "'=1",
            "$x^",
            "\x01",
            "<script>",
            "résumé 漢字",
        ]
    ),
    st.floats(allow_nan=False).map(str),
    st.text(st.characters(blacklist_characters='\n\r",', blacklist_categories=("Cs",)), max_size=8),
)


def test_an_interval_of_two_runs_does_not_squeeze_the_memory_chart():
    """Protects its points: two runs of 48 and 133 images/s have an interval to 55,371. Mutant: the axis takes all."""
    bottom, top = axis_limits([Estimate(100.0, 90.0, 110.0, 2, 10), Estimate(80.0, 0.1, 55_371.0, 2, 10)])
    assert 110 < top < 200 and bottom < 0.1
    assert axis_limits([Estimate(100.0, None, None, 1, 5)]) == (92.0, 108.0)


@pytest.mark.slow
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_no_csv_is_a_traceback_and_no_good_row_is_dropped(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("random")
    for table in ("runs", "windows", "epochs"):
        columns = data.draw(st.lists(st.sampled_from(TABLES[table]), min_size=1, max_size=12, unique=True))
        rows = data.draw(st.lists(st.lists(CELLS, min_size=len(columns), max_size=len(columns)), max_size=6))
        (folder / f"{table}.csv").write_text("\n".join(map(",".join, [columns, *rows])) + "\n", encoding="utf-8")
    sets = [load_set(write_set(folder / "good", {"ddp": 170}, num_repeats=2, num_epochs=1))]
    assert "2 ok" in summary_table(sets[0])
    with contextlib.suppress(UserError):  # a number that no run has is refused, in a line
        sets.insert(0, load_set(folder))
        assert summary_table(sets[0])
    for chart in plot_results.CHARTS.values():
        figure = chart(sets)
        if figure:
            figure.savefig(folder / "chart.svg")
            assert chart is throughput.speedup_chart or "ddp" in svg_text(folder / "chart.svg")


def test_the_power_of_all_gpus_is_summed_where_each_gpu_has_a_moment_of_its_own(tmp_path):
    """Protects the panels of all GPUs. GPUs with energy counters are read some ms apart, so no two rows of a sample
    have one t_s. Mutant: rows of one t_s are a sample, which draws a zigzag between the single GPUs."""
    folder = write_set(tmp_path / "set", {"ddp": 100.0}, num_repeats=1, device="cuda")
    watts = {"gpu0": [200.0, 210.0, 220.0, 230.0], "gpu1": [300.0, 310.0, None, 330.0]}
    rows = [
        {"run_id": "1-ddp", "t_s": 0.5 * (n + 1) + 0.0023 * place, "device": device, "power_w": watts[device][n]}
        | {"memory_used_mb": 4000.0, "util_pct": 80.0 + 10 * place}
        for n in range(4)
        for place, device in enumerate(watts)
    ]
    append_rows(folder, "telemetry", rows)
    figure = telemetry_chart([load_set(folder)])
    drawn = {axes.get_title("left"): axes.lines[0] for axes in figure.axes if axes.lines}
    power, memory, use = (
        drawn[title] for title in ("power, W, all GPUs", "GPU memory, GB, all GPUs", "GPU, %, mean of GPUs")
    )
    assert power.get_ydata().tolist() == [500.0, 520.0, 560.0]  # the third sample lacks a GPU
    assert power.get_xdata() == pytest.approx([0.50115, 1.00115, 2.00115])
    assert memory.get_ydata().tolist() == [8.0] * 4 and use.get_ydata().tolist() == [85.0] * 4


def test_no_matplotlibrc_changes_a_chart():
    """Protects the user's files: with `text.usetex: True`, names of a foreign set went to LaTeX, which can read files
    into the chart. And all users have equal charts. Mutant: the user's values left as they are."""
    program = (
        "from matplotlib import rcParams, rcParamsDefault; "
        "rcParams.update({'text.usetex': True, 'lines.linewidth': 9.0}); "
        "from scripts.charts import figures; "
        "print(rcParams['text.usetex'], rcParams['lines.linewidth'] == rcParamsDefault['lines.linewidth'])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
