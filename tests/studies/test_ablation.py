"""`./bench study ablation`: what its runs are asked, and how a set's runs become ratios, intervals, lines and a chart.

.venv/bin/python -m pytest tests/studies/test_ablation.py
"""

import csv
import math
import shutil

import numpy
import pytest
from support import recorded

from benchmarks.common.config import FIELDS
from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows
from scripts.results.families import ratios_to_baseline
from scripts.results.result_set import load_set
from scripts.runner import plan
from scripts.studies.ablation import chart as report
from scripts.studies.ablation import plan as ablation_plan
from scripts.studies.ablation.analysis import (
    ALL_TOGETHER,
    BASELINE_OPTION,
    CORES_OVER_RANKS,
    OPTIONS,
    option_name,
    option_results,
)


@pytest.fixture
def planned(make_request, tmp_path, monkeypatch):
    """planned(**variables): the runs of the first rounds, on four cores."""
    monkeypatch.setattr("benchmarks.common.machine.num_cores", lambda: 4)

    def make(**variables) -> list[plan.Run]:
        strategy = variables.pop("STRATEGY", "ddp")
        return ablation_plan.plan_runs(make_request(**{"REPEATS": 1} | variables), strategy)

    return make


def test_each_run_is_the_baseline_and_one_option(planned):
    """Protects "one at a time": a run that differs in more, or in nothing, would be worth something else."""
    runs = planned()
    named = [option_name(run.requested) for run in runs]
    unread = ["packed images"]  # of synthetic images
    assert sorted([*named, *unread]) == sorted([BASELINE_OPTION, ALL_TOGETHER, *(option.name for option in OPTIONS)])
    by_name = dict(zip(named, runs, strict=True))
    base = by_name[BASELINE_OPTION].requested
    for option in (option for option in OPTIONS if option.name not in unread):
        asked = by_name[option.name].requested
        assert {name for name in asked if asked[name] != base[name]} == option.on.keys()
        assert by_name[option.name].requested == base | {
            n: 2 if v == CORES_OVER_RANKS else v for n, v in option.on.items()
        }
    skipped = {name for name, run in by_name.items() if run.skip}
    assert skipped == {
        "cudnn.benchmark", "CUDA graphs (and compile)", "fast decoder", "a loader process", "a batch copied ahead"
    }  # fmt: skip
    fitted = plan.skip_what_does_not_fit(runs)  # the reasons survive the look for memory
    assert [run.skip for run in fitted] == [run.skip for run in runs]
    together = by_name[ALL_TOGETHER].requested
    assert together["fused"] and together["memory_format"] == "channels_last" and together["loader"] == "synthetic"
    assert not together["cuda_graphs"] and not together["cudnn_benchmark"]
    assert len({run.key for run in runs}) == len(runs)


@pytest.mark.parametrize("gpus, flags, loader", [("1", "", "synthetic"), ("1", "--loader folder", "folder")])
def test_on_a_gpu_the_baseline_waits_for_no_decoder(planned, tmp_path, gpus, flags, loader):
    """Protects ratios on GPUs from all reading 1: one process with Pillow takes longer than the step."""
    (tmp_path / "files.yaml").write_text("loader: folder\nglobal_batch: 4\n")
    runs = planned(CONFIG=tmp_path / "files.yaml", ARGS=flags, NUM_GPUS=gpus, NPROC="1")
    assert {run.requested["loader"] for run in runs if option_name(run.requested) == BASELINE_OPTION} == {loader}
    skipped = {option_name(run.requested): run.skip for run in runs}
    assert ("--loader folder" in skipped["fast decoder"]) == (loader == "synthetic")


@pytest.mark.parametrize(
    "flags, images", [pytest.param("", 1, marks=pytest.mark.medium), ("--batch-per-device 16", 16)]
)
def test_a_small_gpu_gets_fewer_images(planned, tmp_path, monkeypatch, capsys, flags, images):
    """Protects a GPU of 6 GB: 256 images did not fit, all rows were skipped, and nothing was compared. A batch that the
    user named stays. Mutants: the configuration's batch; the note of each plan."""
    monkeypatch.setenv("GPU_MEMORY_GB", "2")
    (tmp_path / "large.yaml").write_text("loader: synthetic\nbatch_per_device: 16\nimage_size: 448\narch: resnet50\n")
    variables = {"CONFIG": tmp_path / "large.yaml", "ARGS": flags, "NUM_GPUS": "1", "NPROC": "1", "STRATEGY": "single"}
    ablation_plan.fitting_batch.cache_clear()
    for _ in range(2):
        runs = planned(**variables)
    (found,) = {run.requested["batch_per_device"] for run in runs if option_name(run.requested) == BASELINE_OPTION}
    num_notes = capsys.readouterr().err.count("instead of 16, which do not fit")
    assert (found < 16 and num_notes == 1) if images == 1 else (found == 16 and num_notes == 0)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    return tmp_path_factory.mktemp("ablation") / "a set"


@pytest.fixture
def measured(planned, made_once, tmp_path):
    """A copy of a set of ten rounds in which bf16 is half as fast again, compile was skipped, and the rest is equal."""
    if not made_once.exists():
        write_set(planned, made_once)
    return shutil.copytree(made_once, tmp_path / "a set")


def write_set(planned, results, seed=0, **variables):
    noise = numpy.random.default_rng(seed)
    results.mkdir()
    for run in planned(REPEATS=10, **variables):
        name = option_name(run.requested)
        row = {"run_id": f"{name}-{run.round}", "strategy": run.strategy, "repeat": run.round, "world_size": 2}
        row |= {"nodes": 1, "threads_per_rank": run.requested["threads_per_rank"], "status": "ok"}
        row |= {"images_per_s": 100 * (1.5 if name == "bf16" else 1) * math.exp(0.01 * noise.standard_normal())}
        if run.skip or name == "torch.compile":
            row |= {"status": "skipped", "reason": run.skip or "no compiler", "images_per_s": None}
        own = {key: value for key, value in run.requested.items() if key in FIELDS}
        append_rows(results, "runs", [recorded(results, row, **own)])


@pytest.mark.medium
def test_ratios_are_the_familys(measured):
    """Protects the claim "together": intervals are the family's over the baseline, and what was skipped has none."""
    results = load_set(measured)
    options = {option.name: option for option in option_results(results, "ddp")}
    samples = {name: option.group.sample for name, option in options.items() if option.group}
    assert [*options] == [BASELINE_OPTION, *(option.name for option in OPTIONS), ALL_TOGETHER]
    family = ratios_to_baseline(BASELINE_OPTION, samples)["bf16"]
    bounds = (options["bf16"].ratio.low, options["bf16"].ratio.high)
    assert bounds == pytest.approx((family.low, family.high))
    assert options["bf16"].ratio.verdict == "faster" and options["bf16"].ratio.low > 1.4
    assert options["fused optimizer"].ratio.verdict == "no difference seen"
    assert options["torch.compile"].why_not == "no compiler" and options["torch.compile"].ratio is None
    assert options["cudnn.benchmark"].why_not == "needs a GPU"


@pytest.mark.medium
def test_the_study_is_a_table_a_file_and_a_chart(measured, capsys):
    """Protects what people see: a line an option, also of those that were not run, with n and intervals."""
    assert report.main(report.StudyChartOptions(measured, "ddp")) == 0
    text = capsys.readouterr().out
    assert "bf16" in text and "no compiler" in text
    with open(measured / "ablate.csv", newline="") as file:
        rows = {row["option"]: row for row in csv.DictReader(file)}
    assert rows["bf16"]["num_runs"] == "10" and float(rows["bf16"]["ratio_low"]) > 1.4
    assert rows["cudnn.benchmark"] | {"about": "", "date": ""} == rows["cudnn.benchmark"] | {"about": "", "date": ""}
    assert rows["cudnn.benchmark"]["why_not"] == "needs a GPU" and rows["cudnn.benchmark"]["ratio"] == ""
    assert {path.name for path in (measured / "charts").iterdir()} == {"ablate_ddp.png", "ablate_ddp.svg"}


@pytest.mark.medium
def test_two_studies_in_one_set_are_refused(measured, planned):
    """Protects a ratio from a baseline of another model."""
    for run in planned(ARGS="--norm group"):
        row = {"run_id": f"other-{run.requested_hash}", "strategy": "ddp", "repeat": 1, "world_size": 2, "nodes": 1}
        row |= {"threads_per_rank": run.requested["threads_per_rank"], "status": "ok", "images_per_s": 1.0}
        own = {key: value for key, value in run.requested.items() if key in FIELDS}
        append_rows(measured, "runs", [recorded(measured, row, **own)])
    with pytest.raises(UserError, match=r"in several settings: ddp.*norm batch.*norm group"):
        option_results(load_set(measured), "ddp")
