"""The READMEs: short, every figure from a committed file, and nothing named that is not there.

.venv/bin/python -m pytest tests/publish/test_readme.py
"""

import dataclasses
import functools
import importlib.util
import itertools
import re
import shlex
import shutil

import numpy
import pytest
from support import ROOT, recorded

from benchmarks.common.config.config import FIELDS
from benchmarks.common.store.columns import COLUMNS, ROWS, TABLES
from benchmarks.common.store.results import append_rows, read_table
from benchmarks.common.system.errors import UserError
from scripts.charts.step_chart import step_chart
from scripts.commands.command_table import COMMANDS, find_command
from scripts.commands.run_command import options_class, parse
from scripts.pages.headline import rank_groups
from scripts.pages.provenance import reproduction_commands
from scripts.publish.readme import (
    MEASURED,
    PUBLISHED,
    READMES,
    all_figures,
    fill_marks,
    measured_figures,
    named_figures,
    shown_sets,
    sweep_figures,
)
from scripts.publish.readme_columns import column_figures
from scripts.publish.readme_false_alarms import decided_figures
from scripts.sets.result_set import load_set
from scripts.stats.intervals import geometric_mean
from scripts.studies.measured_csv import add_rows
from scripts.studies.overhead import overhead
from scripts.studies.sweep.analysis import sweep_points, write_sweep_csv

TEXTS = {path: path.read_text() for path in READMES}
SHOWN = {kind: PUBLISHED / name for kind, name in shown_sets(PUBLISHED).items()}
SET = SHOWN["cpu"]
MAKEFILE = (ROOT / "Makefile").read_text()
MARKED = re.compile(r"<!--[\w.]+-->.*?<!--/-->", re.DOTALL)
CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
OURS = ("benchmarks", "configs", "launchers", "scripts", "tests")
DOCKERS = {"build_arg", "gpus", "volume"}  # docker's own flags
LINKS = re.compile(r"(?m)^\[[^\]]+\]: (\S+)$|\]\(([^)]+)\)")
# Limits that the code sets, by the README's folder: what a study or a gate calls too much.
LIMITS = {
    # of the statistics: what is planted or to be found; sd and carry-over of the generators; the level; the most errors
    "stats": {f"{each} %" for each in ("0.1", "0.3", 1, 2, 4, 5, 6, 8, 9, 10, 30)} | {"6 of 100", "15 minutes"},
    "sets": {"1, seconds"},  # a place and a column
    "ab": {"5 %", "5%"},
    "loaders": {"5 %"},
    "compare": {"2 %", "5 %"},
    "gpu_check": {"8 ms", "2,000 images/s"},  # timed_checks.py estimates by them how long a check takes
}
each_readme = pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))


@functools.cache
def figures_made():
    """Not while tests are collected: seconds of every process that collects them."""
    return all_figures(SHOWN, MEASURED)


def code_of(path) -> list[str]:
    """The lines of code blocks and the spans of code outside of what is generated, variables' values on one line."""
    found = [block or span for block, span in CODE.findall(MARKED.sub("", TEXTS[path]))]
    return [line for text in found for line in text.splitlines()]


# --- figures ------------------------------------------------------------------------------------------------------


@each_readme
def test_marks_do_not_hide_text(path):
    """Markdown takes a line that begins with a comment for HTML; a mark without its end would swallow the page."""
    opened = re.findall(r"<!--[\w.]+-->", TEXTS[path])
    assert len(opened) == TEXTS[path].count("<!--/-->") == len(MARKED.findall(TEXTS[path]))
    begins = [line for line in TEXTS[path].splitlines() if line.lstrip().startswith("<!--")]
    assert all(re.fullmatch(r"<!--[\w./]+-->", line) or "(not measured yet" in line for line in begins)


@pytest.mark.medium
def test_a_figure_that_nothing_makes_is_named():
    with pytest.raises(UserError, match=r"'speed.of.light'; there are strategies, "):
        fill_marks("<!--speed.of.light-->3<!--/-->", figures_made())


@pytest.mark.medium
def test_figures_follow_their_files(tmp_path):
    """Protects the test above from figures that come from nowhere: other files, other figures. A failed proof of single
    in bf16 counts, too: with strategies counted, the good one of fp32 hid it."""
    for file in (*SET.glob("*.csv"), SET / "environment.json"):
        shutil.copy(file, tmp_path)
    windows = (SET / "windows.csv").read_text()
    doubled = re.sub(r"(?m)^(ddp-.*?,.*?,)(\d+),", lambda row: f"{row[1]}{2 * int(row[2])},", windows)
    (tmp_path / "windows.csv").write_text(doubled)
    header, *proofs = (SET / "equivalence.csv").read_text().splitlines()
    names = header.split(",")
    cells = {"max_relative_difference": "0.25", "bit_identical": "no", "verdict": "failed"}
    for strategy, setting in (("ddp", ""), ("single", '""precision"":""bf16""')):
        of_strategy = (line for line in proofs if line.split(",")[names.index("strategy")] == strategy)
        spoiled = next(line for line in of_strategy if setting in line).split(",")
        for name, cell in (cells | {"run_id": f"{strategy}-spoiled"}).items():
            spoiled[names.index(name)] = cell
        proofs.append(",".join(spoiled))
    proofs += [next(line for line in proofs if line.startswith("single-") and '""precision"":""fp32""' in line)]
    (tmp_path / "equivalence.csv").write_text("\n".join([header, *proofs]) + "\n")
    made = named_figures(tmp_path, tmp_path)
    assert float(made["images_per_s.ddp"]) == pytest.approx(2 * float(figures_made()["images_per_s.ddp"]), abs=2)
    assert made["images_per_s.single"] == figures_made()["images_per_s.single"]
    counts = r"(\d+) of (\d+) configurations, (\d+) of them on 2 ranks"
    proven, of, on_two = (int(each) for each in re.fullmatch(counts, figures_made()["proof"]).groups())
    assert made["proof"] == f"{proven - 2} of {of} configurations, {on_two - 1} of them on 2 ranks"
    for strategy, num_devices in (("ddp", 2), ("single", 1)):
        row = rf"\| `{strategy}` \| the published set \| {num_devices} \| \d+ \| 0\.25 \| \S+ \| failed \|"
        assert re.search(row, made["proofs"]), "of single in bf16, too, although fp32 was proved later"


def test_each_configuration_counts_once_and_by_its_own_proof():
    """Protects the count of proofs: A/A is one configuration under two names, and `single, all cores` was compared with
    one thread only. Mutants: labels counted; a proof with other threads counted; "all" where one has a tolerance; the
    largest difference, which is in the reason, left out of the table, or of the sentence."""
    made, results = figures_made(), load_set(SET)
    labels = {group.label for group in results.timed_groups}
    assert {"single, again", "single, all cores"} <= labels
    assert f" of {len(labels) - 1} configurations" in made["proof"]
    steps, threads = made["proof.steps"].split("; `single, all cores`")
    assert steps.startswith(
        "20 steps; `ddp_compile` agrees within a tolerance for 6 steps, but the median of the tensors"
    )
    assert (
        " is off by 8.9e-04 (allowed: 0.05), " in steps
        and threads == " was not repeated with its own number of threads"
    )
    assert "`single` in 2 configurations" in made["proofs"] and "single, again" not in made["proofs"]
    assert "ok, but the median of the tensors at step 4 is off by 8.9e-04 (allowed: 0.05)" in made["proofs"]
    on_two_ranks = [row for row in made["proofs"].splitlines() if "| 2 | 20 | 0: bit-identical |" in row]
    assert f", {on_two_ranks[0].count('`') // 2} of them on 2 ranks" in made["proof"]


@pytest.mark.medium
def test_a_stalled_window_of_the_baseline_is_said():
    """Protects the reader of the ratios, which all have it in them. By hand from windows.csv. Mutants: the slowest
    window of all and not of its run; the ratio's change turned around."""
    windows = read_table(SET, "windows")
    (single,) = [group for group in load_set(SET).groups if group.label == "single"]
    of_single = windows[windows.run_id.isin(single.ok_runs.run_id)]
    slow_run = of_single[of_single.run_id == "single-2-205917"]
    times = (slow_run.seconds / slow_run.images).max() / (slow_run.seconds / slow_run.images).median()
    rates = []
    for kept in (of_single, of_single.drop((slow_run.seconds / slow_run.images).idxmax())):
        sums = kept.groupby("run_id")[["images", "seconds"]].sum()
        rates.append(numpy.exp(numpy.log(sums.images / sums.seconds).mean()))
    said = figures_made()["stall"]
    assert f"In round 2 one window of `single` took {times:.1f} times as long" in said
    assert f"the ratios to `single` would be {100 * (1 - rates[0] / rates[1]):.0f} % lower" in said


@pytest.mark.medium
def test_the_commands_of_a_report_say_what_they_leave_out():
    """Protects who repeats the published set, which has A/A runs and sweeps. Mutant: either of them not looked for."""
    left_out = "# these lines leave out the A/A runs (./bench run --aa) and the sweeps (./bench study sweep)"
    assert left_out in reproduction_commands(load_set(SET))


@pytest.mark.medium
def test_one_process_on_all_cores_is_compared_with_what_has_several_ranks():
    """Protects from a table that ranks strategies over one core only. By hand from the report: ddp_compressed is the
    one that it was not shown to be faster than. Mutant: strategies of one rank counted."""
    ranking = rank_groups(load_set(SET))
    assert ranking.best.label == "single, all cores"
    several = [group.label for group in ranking.comparable_groups if group.ok_runs.world_size.max() == 2]
    slower = [label for label in several if ranking.over_best[label].verdict == "slower"]
    assert {*several} - {*slower} == {"ddp_compressed"}
    words = f"faster than {len(slower)} of the {len(several)} fp32 strategies with 2 ranks"
    assert figures_made()["all_cores"] == words


def test_rates_of_those_with_a_verdict(tmp_path):
    """Protects who has a verdict: where few have one, more of these err than of all. By hand: 2 of 60 and 3 of 50 are
    3 % and 6 %. Mutant: the rate of all."""
    sizes = {"num_strategies": 2, "num_rounds": 20, "num_sets": 100, "commit": "a", "date": "b", "machine": "c"}
    for name, case, what, rates in (
        ("hostile_3", "AR(0.3) ratio", "memory", {"false_alarms": 2, "no_verdict": 40}),
        ("hostile_3", "AR(0.5) ratio", "memory", {"false_alarms": 3, "no_verdict": 50}),
        ("false_alarms", "AR(0.5) ratio", "ab", {"false_alarms_percent": 4, "no_verdict_percent": 60}),
    ):
        column = {"false_alarms": {"standard_error": 1.0}, "hostile_3": {"seed": 1}}[name]
        value = "value" if name == "false_alarms" else "rate_percent"
        rows = [{"what": what, "case": case, "quantity": key, value: rate} for key, rate in rates.items()]
        add_rows(tmp_path / f"{name}.csv", [row | sizes | column for row in rows])
    assert decided_figures(tmp_path) == {"ab.decided": "3 % at AR(0.3) and 6 to 10 % at AR(0.5)"}


@pytest.mark.medium
def test_the_readme_says_what_its_chart_says():
    """The exposed communication of the table is the red part of step_account.png, not another statistic of it."""
    (axes, _) = step_chart([load_set(SET)]).axes
    ddp = [label.get_text() for label in axes.get_yticklabels()].index("ddp")
    drawn = {
        round(float(text.get_text())) for text in axes.texts if text.get_position()[1] == ddp and text.get_bbox_patch()
    }
    value, half = figures_made()["exposed_comm_ms.ddp"].removesuffix(" ms").split("±")
    assert int(value) in drawn and int(half) > 0


@pytest.mark.parametrize(("noise", "message"), [(0.2, "n=5, no difference seen"), (0.002, "n=5, differences seen")])
def test_a_sweep_in_the_readme_says_whether_its_values_differ(tmp_path, noise, message):
    """Protects the reader from taking the largest of four noisy figures for the best value."""
    rng = numpy.random.default_rng(1)
    for value, speed in ((1, 100), (25, 110)):
        for repeat in range(1, 6):
            row = {"run_id": f"ddp-{value}-{repeat}", "strategy": "ddp", "repeat": repeat, "status": "ok"}
            row |= {"world_size": 2, "images_per_s": speed * float(numpy.exp(noise * rng.normal()))}
            append_rows(tmp_path, "runs", [recorded(tmp_path, row, bucket_cap_mb=value)])
    results = load_set(tmp_path)
    points = sweep_points(results, "ddp", "bucket_cap_mb")
    write_sweep_csv(results, "ddp", "bucket_cap_mb", points)
    speeds = ", ".join(f"{value}→{group.throughput.value:.0f}" for value, group in points.items())
    assert sweep_figures(tmp_path) == {"sweep.ddp.bucket_cap_mb": f"{speeds}; {message}"}


def test_measured_rows_are_added_and_never_mixed(tmp_path, monkeypatch):
    """Protects the files behind the figures: each run of a program adds to them, and columns never shift."""
    path = tmp_path / "new folder" / "overhead.csv"
    for ratio in (0.5, 0.75):
        ratios = {"images per second": [ratio] * 6, "images per CPU second": [2.0] * 6}
        monkeypatch.setattr(overhead, "compare_loops", lambda pairs, flags, ratios=ratios: ratios)
        assert overhead.main(overhead.OverheadOptions(output=path)) == 0
    over = "(95 % over 5 launches)"
    assert measured_figures(path.parent)["overhead.loop"] == f"0.500 [0.500, 0.500] {over}, 0.750 [0.750, 0.750] {over}"
    with pytest.raises(UserError, match="has other columns than what, commit, date, machine; move it away"):
        add_rows(path, [{"what": "loop"}], replace=True)  # another program's table is not replaced either
    with pytest.raises(UserError, match="has other columns than what, commit, date, machine; move it away"):
        add_rows(path, [{"what": "loop"}])
    path.write_text("what\nloop\n")
    with pytest.raises(UserError, match=r"overhead\.csv lacks the columns quantity, ratio"):
        measured_figures(path.parent)


def test_the_same_decoder_is_a_figure_of_its_own(tmp_path, monkeypatch):
    """Protects the suite's cost from the gain of its decoder: with Pillow on both sides the ratio is another. Mutants:
    the flag left out; both under one name."""
    seen = []

    def compare_loops(pairs, flags):
        seen.append(flags[-2:] == ["--decoder", "pillow"])
        return {"images per second": [0.9 if seen[-1] else 1.1] * 6}

    monkeypatch.setattr(overhead, "compare_loops", compare_loops)
    assert "--what same-decoder" in measured_figures(tmp_path)["overhead.same_decoder"]
    for what in ("loop", "same-decoder"):
        options = overhead.OverheadOptions(what=what, pairs=6, launches=1, output=tmp_path / "overhead.csv")
        assert overhead.main(options) == 0
    over = "(95 % over 6 pairs of windows of one launch, assumed independent; it covers no other launch)"
    made = measured_figures(tmp_path)
    assert seen == [False, True] and made["overhead.loop"] == f"1.100 [1.100, 1.100] {over}"
    assert made["overhead.same_decoder"] == f"0.900 [0.900, 0.900] {over}"


def test_the_interval_of_the_overhead_is_over_launches(tmp_path, monkeypatch):
    """Protects the interval: pairs of windows of one launch share its luck. Mutant: all pairs in one list."""
    ratios, seen = [1.0, 1.1, 0.9, 1.05, 0.95], []

    def compare_loops(pairs, flags):
        seen.append(pairs)
        return {"images per second": [ratios[len(seen) - 1] * 1.001, ratios[len(seen) - 1] / 1.001]}

    monkeypatch.setattr(overhead, "compare_loops", compare_loops)
    assert overhead.main(overhead.OverheadOptions(output=tmp_path / "overhead.csv")) == 0
    value, low, high = geometric_mean(numpy.log(ratios))
    shown = f"{value:.3f} [{low:.3f}, {high:.3f}] (95 % over 5 launches)"
    assert measured_figures(tmp_path)["overhead.loop"] == shown and seen == 5 * [12]
    with pytest.raises(UserError, match="--launches is 4, but must be 1 to 3"):
        overhead.main(overhead.OverheadOptions(pairs=6, launches=4))


def test_start_up_times_become_a_sentence(tmp_path):
    """Protects who has ImageNet: both times, of fingerprint and contents together."""
    rows = [
        {"when": when, "num_images": 1_331_167, "fingerprint_s": seconds, "contents_s": 2 * seconds}
        for when, seconds in (("first", 7.0), ("later", 0.5))
    ]
    add_rows(tmp_path / "start_up.csv", rows)
    text = measured_figures(tmp_path)["start_up"]
    assert text.startswith("1,331,167 images in memory: 21.0 s the first time, 1.5 s later (")


# --- names --------------------------------------------------------------------------------------------------------


@each_readme
def test_every_link_leads_somewhere(path):
    text = TEXTS[path]
    defined = dict(re.findall(r"(?m)^\[([^\]]+)\]: (\S+)$", text))
    used = set(re.findall(r"\]\[([^\]]+)\]", text))
    assert used == defined.keys()
    for target in [*re.findall(r"\]\(([^)]+)\)", text), *defined.values()]:
        assert "://" in target or (path.parent / target.partition("#")[0]).exists(), target


@each_readme
def test_every_link_to_a_set_is_to_one_that_is_shown(path):
    """Protects the reader from figures of one set beside links to another: `./bench publish` moves both."""
    linked = set(re.findall(r"results/published/([\w.+-]+)", "\n".join(map("".join, LINKS.findall(TEXTS[path])))))
    assert linked <= {*shown_sets(PUBLISHED).values(), MEASURED.name}


OPTIONS = {field.name for command in COMMANDS for field in dataclasses.fields(options_class(command))} | {"help"}


@each_readme
def test_every_file_and_command_is_there(path):
    """Protects the newcomer who types what is written."""
    targets = {*re.findall(r"(?m)^([a-z-]+):", MAKEFILE), *re.search(r"(?m)^CALLS := (.*)$", MAKEFILE)[1].split()}
    targets |= {f"bench-{file.stem}" for file in ROOT.glob("benchmarks/*.py")}
    for line in code_of(path):
        for name in re.findall(rf"(?:{'|'.join(OURS)})/[\w./<>*-]*", line):
            assert [*ROOT.glob(re.sub(r"<\w+>", "*", name))], name
        for module in re.findall(r"-m ([\w.]+)", line):
            assert importlib.util.find_spec(module), module
        for command in re.findall(r"\bmake ([^#;]+)", line):
            names = itertools.takewhile(re.compile(r"[a-z_<>-]+").fullmatch, command.split())
            assert {name for name in names if "<" not in name} <= targets, line
            assert all(re.search(rf"\b{name}\b", MAKEFILE) for name in re.findall(r"([A-Z_]+)=", command)), line
        for words in re.findall(r"\./bench ([^#;|]+)", line):
            command, _ = find_command(words.split())
            if command is None:
                assert words.split()[0] in ("--help", "COMMAND"), line
                continue
            own = {field.name for field in dataclasses.fields(options_class(command))} | {"help"}
            given = re.findall(r"(?<![\w-])--(?:no-)?([a-z][\w-]+)", re.sub(r'"[^"]*"', "", words.partition(" -- ")[0]))
            assert {name.replace("-", "_") for name in given} <= own, line
        # pip's and torchrun's flags are their own
        ours = re.sub(r'PIP_ARGS="[^"]*"|.* pip (?:download|list) .*|\btorchrun .* -m ', "", line)
        for flag in re.findall(r"(?<![\w-])--(?:no-)?([a-z][\w-]+)", ours):
            assert flag.replace("-", "_") in {*FIELDS, *OPTIONS, *DOCKERS}, flag


@each_readme
def test_every_command_line_parses(path):
    """Protects who copies a line of ./bench: every option takes the value that stands there. Mutant: `--budget 20m` as
    `--budget-s 20`, or a third set for compare."""
    for line in code_of(path):
        for text in re.findall(r"(?:^|\s)\./bench ([^#;|]+)", line):
            words = shlex.split(re.sub(r"<[\w|]+>", "x", text))
            command, rest = find_command(words)
            is_whole = len(words) > len(command.words.split()) if command else False
            if command is not None and is_whole and "..." not in words:
                parse(command, rest[: rest.index("--")] if "--" in rest else rest)


def test_every_column_is_explained_once_and_in_step():
    """Protects the one place of a column's meaning: the page has what the schema says of runs.csv, and all other names.
    Mutants: a column without a meaning; another word in the page; a table without a row in ROWS."""
    text = TEXTS[ROOT / "results" / "README.md"]
    assert COLUMNS.keys() == ROWS.keys()
    for table, columns in COLUMNS.items():
        assert all(column.meaning and not column.meaning.endswith(".") for column in columns), table
        assert table == "runs" or f"`{table}.csv`" in column_figures()["columns.others"]
    for name, figure in column_figures().items():
        assert text.count(f"<!--{name}-->{figure}<!--/-->") == 1
    named = {*re.findall(r"`([^`\n]+)`", text)}
    for columns in TABLES.values():
        assert named >= {*columns}, {*columns} - named
