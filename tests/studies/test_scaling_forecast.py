"""./bench study predict: from a set and a link file, or a preset, to a table, a chart and a sentence; what it refuses.

.venv/bin/python -m pytest tests/studies/test_scaling_forecast.py
"""

import csv
import dataclasses
import shutil

import pytest
from support import ROOT

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import LINKS_COLUMNS
from scripts.studies.allreduce.uncertain_value import UncertainValue, exact
from scripts.studies.predict.machine_models import MachineModel, UncertainLink, h100x8, read_gradients
from scripts.studies.predict.published_figures import RESNET50, published_rows
from scripts.studies.predict.report import STRONG_CAVEAT, PredictOptions, machine_model, main
from scripts.studies.predict.scaling_forecast import (
    MODEL_ERROR,
    max_efficient_devices,
    remedies,
    scaling_forecast_rows,
    summary_sentence,
)
from scripts.studies.predict.step_model import StrategyOptions
from scripts.studies.predict.timeline import Gradient

SET = sorted((ROOT / "results/published").glob("cpu2-*"))[0]
GRADIENTS = tuple(
    Gradient(f"layer{n}.0.weight", f"layer{n}.0", 10_000_000, (5 - n) / 4, 1_000_000) for n in (4, 3, 2, 1)
)


@pytest.fixture
def results(tmp_path):
    """A set with what a prediction needs, in a folder of its own."""
    folder = tmp_path / "a set"
    folder.mkdir()
    for name in ("runs.csv", "steps.csv", "windows.csv", "settings.csv", "environment.json"):
        if (SET / name).exists():
            shutil.copy(SET / name, folder)
    with open(folder / "gradients.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["name", "block", "num_bytes", "ready", "out_bytes"])
        writer.writeheader()
        writer.writerows(vars(gradient) for gradient in GRADIENTS)
    return folder


def link_file(path, rate=1e9, library="gloo"):
    row = {"path": library, "ranks": 2}
    for name, value in (("latency_s", 1e-4), ("bytes_per_s", rate), ("busy", 0.8)):
        row |= {name: value, f"{name}_low": 0.9 * value, f"{name}_high": 1.1 * value}
    path.write_text(",".join(LINKS_COLUMNS) + "\n" + ",".join(str(row[name]) for name in LINKS_COLUMNS) + "\n")
    return path


@pytest.mark.medium
def test_a_set_and_a_link_become_a_table_a_chart_and_a_sentence(results, tmp_path, capsys):
    """Protects the whole way: every strategy, weak and strong, 2 to 4,096 devices, with an interval or a reason."""
    assert main(PredictOptions(results=results, neighbours=tmp_path, link=link_file(tmp_path / "links.csv"))) == 0
    with open(results / "predict.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 5 * 2 * 12 and {row["devices"] for row in rows} == {str(2**n) for n in range(1, 13)}
    for row in rows:
        if row["why_not"]:
            most = 16 if row["strategy"] == "pipeline_parallel" else 32  # 2 stages work on 4 micro-batches
            assert row["mode"] == "strong" and int(row["devices"]) > most and not row["step_ms"]
        else:
            assert float(row["efficiency_low"]) <= float(row["efficiency"]) <= float(row["efficiency_high"]) <= 1.001
    assert (results / "charts/predict.png").stat().st_size > 10_000
    text = capsys.readouterr().out.strip().splitlines()
    assert "80 % of one device's speed" in text[-1] and "ddp" in text[-1]
    assert text[text.index("written:") - 2] == STRONG_CAVEAT and "too good" in STRONG_CAVEAT
    drawn = (results / "charts/predict.svg").read_text()
    assert "computing shrinks in proportion" in drawn and "own error is not in the bands" in drawn


@pytest.mark.medium
def test_the_network_between_nodes_may_be_given(results, tmp_path):
    """Protects the answer for a cluster whose network is known: its number moves the forecast, and is named."""
    where = {"results": results, "neighbours": tmp_path, "link": link_file(tmp_path / "links.csv")}
    assumed, chosen = (machine_model(PredictOptions(**where, between_gbit=gbit)) for gbit in (0, 100))
    for end in ("low", "value", "high"):
        times = getattr(chosen.between.bytes_per_s, end) / getattr(assumed.between.bytes_per_s, end)
        assert times == pytest.approx(10)
    assert "100 Gb/s between nodes" in chosen.name and "100 Gb/s as given" in " ".join(chosen.sources)
    assert "10 Gb/s between nodes" in assumed.name and "10 Gb/s are assumed" in " ".join(assumed.sources)


@pytest.mark.parametrize(("options", "text"), [
    ({"between_gbit": -1.0}, "--between-gbit is -1"),
    ({"between_gbit": float("nan")}, "--between-gbit is nan"),
    ({"between_gbit": 25.0, "machine": "h100x8"}, "h100x8 has a network of its own"),
])  # fmt: skip
def test_a_network_that_means_nothing_is_refused(options, text):
    with pytest.raises(UserError, match=text):
        main(PredictOptions(**options))


@pytest.mark.parametrize("machine", ["h100x8", pytest.param("v100x4", marks=pytest.mark.medium)])
@pytest.mark.medium
def test_presets_need_no_set(machine, tmp_path, capsys):
    assert main(PredictOptions(machine=machine, out=tmp_path)) == 0
    assert "NVIDIA" in capsys.readouterr().out and (tmp_path / f"predict_{machine}.csv").exists()


@pytest.mark.parametrize(("library", "contention"), [("gloo", 1.0), ("nccl", 0.1)])
def test_what_messages_take_from_computing(results, tmp_path, library, contention):
    """Neither is the `busy` of links.csv, 0.8 here. With GPUs that is the CPU's waiting, and a number is assumed. On
    CPUs the steps measured over slow links contradict it."""
    link = link_file(tmp_path / "links.csv", library=library)
    machine = machine_model(PredictOptions(results=results, neighbours=tmp_path, link=link))
    (text,) = [source for source in machine.sources if "NCCL's kernels" in source or "gloo sends" in source]
    assert machine.contention.value == contention and ("assumed" in text) is (library == "nccl")


def test_presets_say_what_is_not_their_own():
    """Protects from 480 GB/s, which no bucket's size has, and from gradients that seem to come from the GPU."""
    with open(RESNET50, newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["arch"], row["global_batch"]) == ("resnet50", "4") and "cores" in row["machine"]
    for machine in ("h100x8", "v100x4"):
        assert any("on a CPU at batch 4" in source for source in machine_model(PredictOptions(machine=machine)).sources)
    machine = machine_model(PredictOptions(machine="h100x8"))
    assert machine.within.bytes_per_s == UncertainValue(350e9, 300e9, 370e9) and "300 is assumed" in machine.sources[0]


def test_a_set_without_steps_is_refused(results, tmp_path):
    (results / "steps.csv").unlink()
    with pytest.raises(UserError, match=r"steps\.csv.*\./bench run single"):
        main(PredictOptions(results=results, neighbours=tmp_path, link=link_file(tmp_path / "links.csv")))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"stages": -2}, "--stages is -2; give 0 .* to 16"),
        ({"stages": 17}, "--stages is 17; give 0 .* to 16, the model's blocks"),
        ({"local_period": -4}, "--local-period is -4; give 1 or more"),
        ({"local_period": 0}, "--local-period is 0; give 1 or more"),
        ({"microbatches": -1}, "--microbatches is -1; give 0 .* or more"),
        ({"bucket_cap_mb": -1.0}, "--bucket-cap-mb is -1.0; give 0 .* MiB"),
        ({"bucket_cap_mb": float("nan")}, "--bucket-cap-mb is nan"),
    ],
)
def test_choices_out_of_range_are_refused(flags, says, tmp_path):
    """Protects from endless recursion, and from an efficiency of 145 that -1 micro-batches had."""
    with pytest.raises(UserError, match=says):
        main(PredictOptions(machine="h100x8", out=tmp_path, **flags))
    assert not [*tmp_path.iterdir()]


def test_a_node_of_six_leaves_out_what_its_pipeline_cannot():
    """6 stages do not divide 8 devices: that point is left out with the reason, and the others are there."""
    blocks = tuple(Gradient(f"{n}", f"layer{n}.0", 1_000_000, (8 - n) / 8, 1000) for n in range(7, -1, -1))
    machine = simple_machine(blocks, devices_per_node=6)
    rows = [
        row
        for row in scaling_forecast_rows(machine, StrategyOptions(), [2, 6, 8])
        if row["strategy"] == "pipeline_parallel"
    ]
    assert ["6 stages do not divide 8" in row["why_not"] for row in rows] == [False, False, True] * 2


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"ready": 0.0}, "all gradients are ready at 0"),
        ({"ready": "nan"}, "layer4.0.weight has .*ready nan"),
        ({"ready": 1.5}, "ready 1.5"),
        ({"num_bytes": 0}, "num_bytes 0"),
        ({"num_bytes": ""}, "holds no gradients"),
    ],
)
def test_impossible_gradients_are_refused(columns, says, tmp_path):
    rows = [vars(gradient) | columns for gradient in GRADIENTS]
    path = tmp_path / "gradients.csv"
    path.write_text("\n".join(",".join(map(str, line)) for line in (rows[0], *(row.values() for row in rows))) + "\n")
    with pytest.raises(UserError, match=says) as refused:
        read_gradients(path)
    assert str(path) in str(refused.value) and "scripts.studies.predict.gradient_times" in str(refused.value)


def test_efficiency_by_hand():
    """64 images at 6,400 images/s are 10 ms; a link that takes 10 ms for 40 MB, all of it exposed: 50 %."""
    late = (Gradient("all", "layer1.0", 40_000_000, 1.0),)
    machine = simple_machine(late)
    rows = scaling_forecast_rows(machine, StrategyOptions(), [2])
    weak, strong = (row for row in rows if row["strategy"] == "ddp")
    assert weak["efficiency"] == pytest.approx(0.5, rel=1e-2) and weak["exposed_ms"] == pytest.approx(10, rel=1e-2)
    # half the images: 5 ms of computing, but for the update, and the same exchange: 15 ms where 5 would be ideal
    assert strong["step_ms"] == pytest.approx(15, rel=2e-2) and strong["efficiency"] == pytest.approx(1 / 3, rel=2e-2)


def test_waiting_for_the_slowest_is_not_communication():
    """10 ms of computing, 10 of exchange; the later of 2 devices is 0.5642 of 1 ms behind the mean."""
    machine = simple_machine((Gradient("all", "layer1.0", 40_000_000, 1.0),), spread=0.1)
    row = next(row for row in scaling_forecast_rows(machine, StrategyOptions(), [2]) if row["strategy"] == "ddp")
    assert row["exposed_ms"] == pytest.approx(10, rel=1e-2) and row["waits_ms"] == pytest.approx(0.5642, rel=1e-3)
    assert row["step_ms"] == pytest.approx(20.5642, rel=1e-2)


SIMPLE_BANDWIDTH = exact(4e9)  # bytes/s


def simple_machine(gradients, spread=0.0, between_bytes_per_s=SIMPLE_BANDWIDTH, **changes) -> MachineModel:
    """The structure of an H100 node with numbers for a calculation by hand: no latency, 4 GB/s, no contention."""
    machine = h100x8(gradients, exact(6400.0), 64)
    return dataclasses.replace(
        machine,
        within=UncertainLink(exact(0.0), SIMPLE_BANDWIDTH),
        between=UncertainLink(exact(0.0), between_bytes_per_s),
        contention=exact(0.0),
        has_trees=False,
        step=dataclasses.replace(machine.step, spread=exact(spread)),
        **changes,
    )


def test_the_sentence_says_how_many_and_what_would_raise_it():
    """Protects the answer from the table: the number is where efficiency falls below 80 %, and a change raises
    it. And from a flat fact about 4,096 devices: it is the model's, whose own error no interval holds."""
    machine = simple_machine(GRADIENTS, between_bytes_per_s=UncertainValue(2e8, 1e8, 4e8))
    rows = scaling_forecast_rows(machine, StrategyOptions())
    most = max_efficient_devices(rows, "ddp")
    below = [row for row in rows if row["strategy"] == "ddp" and row["mode"] == "weak" and row["efficiency"] < 0.8]
    assert below and most == min(row["devices"] for row in below) // 2
    found, text = (
        remedies(machine, StrategyOptions(), [2, 4, 8, 16, 32]),
        summary_sentence(machine, rows, StrategyOptions()),
    )
    assert [number for _, number in found] == sorted((number for _, number in found), reverse=True)
    assert (f"up to {most:,} devices" in text or "one device only" in text) and ("would raise it in the model" in text)
    quick = dataclasses.replace(machine, within=UncertainLink(exact(0.0), exact(1e13)))
    above = summary_sentence(quick, scaling_forecast_rows(quick, StrategyOptions(), [2]), StrategyOptions(), [2])
    assert "stays above" in above, above
    for each in (text, above):
        assert each.startswith("By the model of 8 x H100 ") and each.endswith(MODEL_ERROR)


def test_published_figures_have_an_error_each():
    rows = published_rows()
    assert {row["published"] for row in rows} == {6.72, 6.93, 0.90, 0.898, 3.48}
    assert all(
        row["why"] and row["source"] and row["error"] == row["predicted"].value / row["published"] - 1 for row in rows
    )
