"""./bench study loaders: rates beside torchvision's, and whether loading is the limit."""

import subprocess

import pandas
import pytest
from support import start_bench
from test_sweep import add_runs

from benchmarks.common.rows import read_table
from scripts.results.intervals import RatioEstimate
from scripts.results.result_set import load_set
from scripts.studies.loaders.limit import FILE, NO_LOADING, PLAIN, describe_limit, limit_sentence
from scripts.studies.loaders.measure import rates_of
from scripts.studies.loaders.section import SECTION
from scripts.studies.sweep import points


def test_ratios_are_to_torchvisions_loader_and_paired_by_round():
    """A round slows all alike, so that pairs know the ratio well."""
    days = [1.0, 1.1, 0.9, 1.05, 1.0]
    taken = {
        name: [(rate * day + number % 2, 1.0) for number, day in enumerate(days)]
        for name, rate in {PLAIN: 100, "ours": 380}.items()
    }
    ours = rates_of(taken, 2).set_index("loader").loc["ours"]
    assert ours.times_plain == pytest.approx(3.8, abs=0.02) and ours.n == 5
    assert ours.times_high - ours.times_low < 0.2 < ours.high - ours.low and ours.per_core == ours.images_per_s / 2


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.6, 0.8, "is the limit"), (0.97, 1.02, "is not the limit"), (0.9, 0.99, "not decided"), (None, None, "not dec")],
)
def test_the_limit_is_said_by_the_whole_interval(low, high, words):
    assert words in limit_sentence("ddp", RatioEstimate(0.95, low, high, 5))


def test_a_set_says_the_limit_and_the_cores_that_a_loader_needs(tmp_path):
    """300 images/s without loading; 100 a core by Pillow, 1000 by nvimgcodec."""
    hashes = {
        name: add_runs(tmp_path, "ddp", speed, asked={"loader": name})
        for name, speed in ((NO_LOADING, 300), ("folder", 200))
    }
    points.record_sweep(tmp_path, points.Sweep("ddp", "loader", NO_LOADING, False, "", hashes))
    rates = {"ours, pillow": 100, "ours, nvimgcodec": 1000, PLAIN: 90}
    rows = [{"loader": name, "cores": 2, "n": 5, "images_per_s": 2 * each} for name, each in rates.items()]
    frame = pandas.DataFrame(rows).assign(low=None, high=None, times_plain=None, times_low=None, times_high=None)
    frame.assign(per_core=frame.images_per_s / 2).to_csv(tmp_path / FILE, index=False)
    limit, cores = describe_limit(load_set(tmp_path))
    assert limit.startswith("the loader is the limit: with loading ddp keeps 6")
    assert cores.endswith("takes cores: 3 with pillow, 1 with nvimgcodec; here are 2 cores")
    (table,) = SECTION.tables(load_set(tmp_path))
    assert len(table.rows) == 3 and "the limit" in table.text


@pytest.mark.launches
def test_the_whole_command_trains_on_all_ranks_with_and_without_loading(checkout, tmp_path, tiny_data, tiny_config):
    (results := tmp_path / "set").mkdir()
    (results / "environment.json").write_text("{}")
    given = {"RESULTS": results, "DATA": tiny_data, "CONFIG": tiny_config, "NPROC": 2, "REPEATS": 2}
    words = "study loaders --window-s 0.05"
    done = start_bench(checkout, words, subprocess.run, **given, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not decided whether the loader is the limit: with loading ddp keeps" in done.stdout
    rows = read_table(results, "runs").query("repeat > 0")
    assert sorted(rows.loader) == ["folder"] * 2 + ["synthetic"] * 2 and {*rows.world_size} == {2}
    rates = pandas.read_csv(results / FILE)
    assert {*rates.loader} >= {PLAIN, "ours, pillow"} and (rates.images_per_s > 0).all()
