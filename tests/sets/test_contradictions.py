"""Sets whose tables contradict themselves: told of with their lines, and no verdict is drawn from them.

.venv/bin/python -m pytest tests/sets/test_contradictions.py
"""

import functools
import json
import os
import re
import shutil
from pathlib import Path

import pandas
import pytest

from benchmarks.common.store.results import read_table
from benchmarks.common.store.safe_cells import format_cell
from benchmarks.common.system.errors import UserError
from scripts.pages.headline import headline
from scripts.sets.result_set import load_set
from scripts.studies.compare import compare
from scripts.studies.power import rounds_needed

REAL = Path(__file__).parents[1] / "fixtures/scaling_set"  # 15 ok runs and a warm-up, of single and ddp


@pytest.fixture
def own(tmp_path):
    """A real set of few runs, to be changed."""
    return shutil.copytree(REAL, tmp_path / "own", ignore=shutil.ignore_patterns("charts"))


def change(folder, table, made):
    path = folder / f"{table}.csv"
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
    made(frame).to_csv(path, index=False)


def twice(frame):
    return pandas.concat([frame, frame])


def halved(frame):
    return frame.assign(seconds=(frame.seconds.astype(float) / 2).astype(str))


def faster(frame):
    """Windows that agree with themselves, and with nothing else."""
    rates = frame.images_per_s.astype(float) * 2
    return halved(frame).assign(images_per_s=rates.astype(str))


def renamed(frame):
    """The same runs again, as others of the same rounds."""
    return pandas.concat([frame, frame.assign(run_id=frame.run_id + "-2")])


def of_first(name, value):
    """A change of one cell of the first ok run."""

    def changed(frame):
        frame = frame.copy()
        frame.loc[frame.index[frame.status == "ok"][0], name] = value
        return frame

    return changed


def one_phase(name, value):
    def changed(frame):
        frame = frame.copy()
        frame.loc[frame.index[frame[name] != ""][0], name] = value
        return frame

    return changed


def in_other_units(frame):
    known = frame.exposed_comm_ms != ""
    frame = frame.copy()
    frame.loc[known, "exposed_comm_ms"] = (frame.exposed_comm_ms[known].astype(float) / -1000).astype(str)
    return frame


HARMS = [
    ("runs", of_first("acc1", "0.5"), r"runs.csv, line 3: acc1 is 0.5, but by epochs.csv it is [\d.]+"),
    ("runs", of_first("val_samples", "50000"), r"val_samples is 50000, but by epochs.csv it is [\d.]+"),
    ("runs", of_first("precision", "bf16"), r"precision is bf16, but by its settings it is fp32"),
    ("runs", of_first("device_name", "NVIDIA H100 80GB HBM3"), r"device_name is .* but by its settings it is AMD EPYC"),
    ("runs", of_first("world_size", "4"), r"world_size is 4, but by its settings it is [12]"),
    ("runs", of_first("exit_code", "1"), r"exit_code is 1, but of a run that ended well it is 0"),
    ("steps", one_phase("backward_ms", "-3"), r"steps.csv, line \d+: backward_ms is no time that a step has"),
    ("steps", one_phase("exposed_comm_ms", "inf"), r"steps.csv, line \d+: exposed_comm_ms is no time that a step has"),
    ("steps", in_other_units, r"exposed_comm_ms is [\d.]+, but by steps.csv it is -[\d.]+"),
    ("runs", twice, r"runs.csv, lines 18, 19, 20, 21, 22 and 11 more: a run_id more than once"),
    ("runs", renamed, r"runs.csv, lines .*: a second ok run of ddp with the same settings in a round"),
    ("windows", twice, r"windows.csv, lines 82, .*: a window more than once"),
    ("windows", halved, r"windows.csv, lines 2, .*: images_per_s is not images / seconds"),
    ("windows", faster, r"runs.csv, line 3: images_per_s is [\d.]+, but by windows.csv, lines .*, it is [\d.]+"),
    ("steps", twice, r"steps.csv, lines 442, .*: a step more than once"),
    (
        "steps",
        lambda frame: frame.assign(step_ms="9.5"),
        r"windows.csv, line.*: seconds are not the sum of the window.s steps",
    ),
]


def test_a_real_set_does_not_contradict_itself():
    """Protects from warnings of what is as it should be, such as warm-ups."""
    assert load_set(REAL).contradictions == []


@pytest.mark.parametrize(("table", "harm", "words"), HARMS)
def test_a_set_that_contradicts_itself_loads_and_decides_nothing(own, capsys, table, harm, words):
    """Protects n and every ratio. Mutants: each rule of contradictions.py left out; each place that refuses."""
    change(own, table, harm)
    results = load_set(own)
    assert any(re.search(words, each) for each in results.contradictions), results.contradictions
    assert re.search(f"warning: .*{words}", capsys.readouterr().err)
    assert results.groups and results.remarks[-1] in results.contradictions, "it is drawn, and the report warns"
    for decide in (rounds_needed.report_lines, lambda results: compare.main(compare.CompareOptions(results.path))):
        with pytest.raises(UserError, match=r"no verdict, since the set contradicts itself: .*csv, line"):
            decide(results)
    with pytest.raises(UserError, match="contradicts itself"):
        compare.main(compare.CompareOptions(REAL, own))
    assert headline(results)[0].startswith("No verdict, since the set contradicts itself: ")


def more_windows(frame):
    more = frame.assign(window=(frame.window.astype(int) + 5).astype(str))
    return pandas.concat([frame, more]).sort_values(["run_id", "window"], kind="stable")


def test_more_windows_than_requested_are_reported(own):
    """Mutant: their number not looked at."""
    change(own, "windows", more_windows)
    assert any(": 10 windows, but 5 were requested" in each for each in load_set(own).contradictions)


def slow_end(frame, ms=40):
    """The last timed step of the table is as long as if the process had been stopped for so long."""
    frame, last = frame.copy(), frame[frame.data_ms == ""].index[-1]
    frame.loc[last, "step_ms"] = str(float(frame.step_ms[last]) + ms)
    return frame


@pytest.mark.parametrize(("ms", "is_reported"), [(40, False), (400, True)])
def test_a_process_that_was_stopped_between_two_clocks_contradicts_nothing(own, ms, is_reported):
    """Protects the verdict of a busy machine with GPUs, whose steps are timed by events, and windows by the host's
    clock. Mutant: 1 % of the window alone."""
    change(own, "steps", functools.partial(slow_end, ms=ms))
    assert bool(load_set(own).contradictions) == is_reported


def test_a_window_without_seconds_contradicts_its_steps(own):
    """Mutant: what is no number is within every limit."""

    def without_seconds(frame):
        frame = frame.copy()
        frame.loc[frame.index[-1], "seconds"] = ""
        return frame

    change(own, "windows", without_seconds)
    assert any("seconds are not the sum" in each for each in load_set(own).contradictions)


def test_a_requeued_job_has_two_breakdowns_and_the_row_of_the_last(own):
    """Protects a set whose job was requeued after its breakdown. Mutant: the mean over both."""

    def of_two_processes(frame):
        earlier = frame.copy()
        known = earlier.exposed_comm_ms != ""
        earlier.loc[known, "exposed_comm_ms"] = "500"
        return pandas.concat([earlier[known], frame])

    change(own, "steps", of_two_processes)
    assert not [each for each in load_set(own).contradictions if "exposed_comm_ms is" in each]


@pytest.mark.parametrize("name", ["Intel(R) Xeon(R) CPU           X5650  @ 2.67GHz", "=cmd()", None, 5])
def test_settings_are_compared_as_cells_are_written(own, name):
    """Protects sets of CPUs whose name has several blanks: a cell keeps one of them. Other kinds of values, which a
    foreign set may have, are not compared. Mutants: the text itself; a value of any kind."""

    def renamed_device(frame):
        halves = [json.loads(cell) | {"device_name": name} if cell else None for cell in frame.met]
        return frame.assign(met=["" if half is None else json.dumps(half) for half in halves])

    def renamed_cells(frame):
        return frame.assign(device_name=format_cell(name) if isinstance(name, str) else frame.device_name)

    change(own, "settings", renamed_device)
    change(own, "runs", renamed_cells)
    assert not [each for each in load_set(own).contradictions if "device_name" in each]


def test_attempts_that_were_made_again_are_no_contradiction(own):
    """Protects RETRY, and rounds that were interrupted: failed rows of the same round, and several warm-ups. A job
    that was put back into the queue timed windows before, under the same run_id."""
    runs = read_table(own, "runs")
    ok = runs[runs.status == "ok"].iloc[0]

    def again(frame):
        of_run = frame[frame.run_id == ok.run_id]
        others = [of_run.assign(run_id=f"x-{status}", status=status) for status in ("failed", "interrupted", "timeout")]
        warm = frame[frame.status == "warm-up"].assign(run_id="warm-2")
        return pandas.concat([*others, warm, frame])

    change(own, "runs", again)
    assert load_set(own).contradictions == []

    def before(frame):
        first = frame[frame.run_id == ok.run_id].head(2)
        seconds = first.seconds.astype(float) * 1.3
        rates = first.images.astype(float) / seconds
        return pandas.concat([first.assign(seconds=seconds.astype(str), images_per_s=rates.astype(str)), frame])

    change(own, "windows", before)
    assert load_set(own).contradictions == []


# --- how a file is written ----------------------------------------------------------------------------------------


def spoil(made):
    return lambda path: path.write_bytes(made(path.read_bytes()))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (spoil(lambda text: b"\xef\xbb\xbf" + text), "runs.csv, line 1 begins with a byte order mark"),
        (spoil(lambda text: text.replace(b",ok,", b",OK,", 1)), "runs.csv, line 3 has the unknown status 'OK'"),
        (spoil(lambda text: text + b"2,torn-1,"), "runs.csv, line 18 is not a whole row and is skipped"),
        (
            spoil(lambda text: text.replace(b",wall_s,", b",repeat,", 1)),
            "runs.csv, line 1 has the column 'repeat' twice",
        ),
        (spoil(lambda text: text.replace(b"\n", b"\r")), "runs.csv, line 1 ends in a carriage return alone"),
        (spoil(lambda text: text.replace(b"\n", b"\r\n")), ""),
        (spoil(lambda text: text.rstrip(b"\n")), ""),
    ],
)
def test_how_a_file_is_written_changes_nothing_in_silence(own, capsys, harm, words):
    """Protects rows that an editor changed. Mutants: each check of the reader left out; a last row without a line's
    end dropped."""
    harm(own / "runs.csv")
    try:
        runs = read_table(own, "runs")
        output = capsys.readouterr().err
        assert len(runs) == 16 and (runs.schema == 2).all(), "no row and no column is lost"
    except UserError as error:
        output = str(error)
    assert words in output and bool(output) == bool(words)


@pytest.mark.parametrize("name", ["runs.csv", "environment.json"])
def test_a_pipe_in_a_place_of_a_file_is_not_waited_for(own, name):
    """Mutant: open() as it stands, which waits for ever."""
    (own / name).unlink()
    os.mkfifo(own / name)
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        load_set(own)


def test_a_report_of_deeply_nested_facts_is_made(own):
    (own / "environment.json").write_text("[" * 100_000)
    assert load_set(own).environment == {}
    (own / "environment.json").write_text(json.dumps({"variables": ["x"]}))
    assert load_set(own).environment == {}
