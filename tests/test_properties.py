"""Whatever is in a result set, plot, compare and report answer or say what is wrong; good rows are never lost.

    .venv/bin/python -m pytest tests/test_properties.py

Random configurations are in test_config.py, random bytes in one table in test_results.py.
"""

import contextlib
import csv
import io
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import recorded

from benchmarks.common.store.columns import TABLES
from benchmarks.common.store.results import LARGEST_NUMBER, OK_RANGES, append_rows, read_table
from benchmarks.common.system.errors import UserError
from scripts.charts import plot as plot_results
from scripts.pages import page as report
from scripts.studies.compare import compare

pytestmark = pytest.mark.slow  # minutes of examples

REPEATS = 3
GOOD = {"single": 100.0, "ddp": 170.0}  # images/s
SETTINGS = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
NAMES = ("runs", "settings", "windows", "epochs", "steps", "wall", "telemetry")
RUN_IDS = [f"{strategy}-{repeat}" for strategy in GOOD for repeat in range(1, REPEATS + 1)]
CELLS = st.one_of(
    st.sampled_from([*"01", "", "ok", "failed", "hostile", "yes", "no", "train", "val", "-1", "32", "1e308", "1e-308"]),
    st.sampled_from(["nan", "inf", "-inf", "'=1+1", "=1", "$x^", "</svg><script>", "\x01", "\x1b[2J", "漢字", "%s{x}"]),
    st.sampled_from(["2026-01-01T00:00:00+00:00", *RUN_IDS[:2]]),
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=6),
)


def is_huge(cell: str) -> bool:
    """Whether it is a number that no run has. read_table refuses such a set, as test_results.py holds."""
    with contextlib.suppress(ValueError):
        return abs(float(cell)) > LARGEST_NUMBER
    return False


def is_refused(table: str, cells: list[str]) -> bool:
    """Whether it is an ok run with a number that no ok run has, such as -1 joules: read_table refuses that, too."""
    row = dict(zip(TABLES[table], cells, strict=True))
    for name, (lowest, highest) in OK_RANGES.items():
        with contextlib.suppress(ValueError, KeyError):
            number = float(row[name])
            if number < lowest or number > highest or (name == "repeat" and number % 1):
                return row.get("status") == "ok"
    return False


CONTENTS = st.binary(max_size=80) | st.lists(st.lists(CELLS, max_size=9), max_size=5)


def write_good_set(folder: Path) -> None:
    """Two strategies with three whole runs each, in every table that a run writes."""
    run_rows, rows = [], {name: [] for name in NAMES if name != "settings"}
    for (strategy, rate), repeat in itertools.product(GOOD.items(), range(1, REPEATS + 1)):
        run_id = f"{strategy}-{repeat}"
        run_rows.append(
            {
                "schema": 1,
                "run_id": run_id,
                "strategy": strategy,
                "status": "ok",
                "repeat": repeat,
                "wall_s": 20.0,
                "arch": "resnet18",
                "image_size": 64,
                "global_batch": 32,
                "loader": "folder",
                "device": "cpu",
                "device_name": "a CPU",
                "world_size": 2,
                "parallel": True,
                "images_per_s": rate / 1.01,  # its images over its seconds, which the windows below have
                "acc1": 40.0,
                "started_at": "2026-01-01T00:00:00+00:00",
                "precision": "fp32",
                "memory_format": "contiguous",
            }
        )
        rows["windows"] += [
            {
                "run_id": run_id,
                "window": n,
                "images": 224,
                "seconds": 224 / rate * (1 + n / 100),
                "images_per_s": rate / (1 + n / 100),
            }
            for n in range(3)
        ]
        rows["epochs"] += [
            {
                "run_id": run_id,
                "epoch": n,
                "phase": phase,
                "seconds": 5.0,
                "images": 480,
                "loss": 2.0,
                "acc1": 40.0,
                "acc5": 50.0,
            }
            for n in range(2)
            for phase in ("train", "val")
        ]
        rows["wall"] += [{"run_id": run_id, "part": "imports", "seconds": 5.0}]
        rows["telemetry"] += [{"run_id": run_id, "t_s": n / 2, "device": "cpu", "util_pct": 90.0} for n in range(3)]
    rows["runs"] = [recorded(folder, row) for row in run_rows]  # settings.csv too
    for name in rows:
        append_rows(folder, name, rows[name])


def line_of(cells: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


@st.composite
def damages(draw) -> tuple[str, str, object, int]:
    """(table, what, by what, where): rows of nonsense, a line of it, half a line, a column or file that is gone."""
    table = draw(st.sampled_from(NAMES))
    what = draw(st.sampled_from(["rows", "line", "bytes", "gone", "column"]))
    width = len(TABLES[table])
    by = {
        "rows": st.lists(
            st.lists(CELLS.filter(lambda cell: not is_huge(cell)), min_size=width, max_size=width).filter(
                lambda cells: not is_refused(table, cells)
            ),
            min_size=1,
            max_size=4,
        ),
        "line": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0")),
        "bytes": st.binary(max_size=30).filter(lambda noise: b"\n" not in noise),
    }.get(what, st.sampled_from(TABLES[table][2:]))
    return table, what, draw(by), draw(st.integers(0, 99))


def damage(folder: Path, table: str, what: str, by: object, where: int) -> None:
    """Spoil one table without touching a good row: lines come between them, half a line after them."""
    path = folder / f"{table}.csv"
    if not path.exists():
        return
    header, *lines = path.read_bytes().split(b"\n")
    names = header.decode().split(",")
    if what == "rows":
        ours = [n for n, name in enumerate(names) if name in ("strategy", "run_id")]
        rows = [[f"hostile {cell}" if n in ours else cell for n, cell in enumerate(row[: len(names)])] for row in by]
        at = where % len(lines)
        lines[at:at] = [line_of(row).removesuffix("\n").encode() for row in rows]
    elif what == "line":
        lines.insert(where % len(lines), by.encode())
    elif what == "bytes":
        lines[-1] += by
    elif table != "runs" and what == "gone":  # runs.csv holds what makes a row a good one
        path.unlink()
        return
    elif table != "runs" and by in names:
        cut = names.index(by)
        header, *lines = (b",".join(part[:cut] + part[cut + 1 :]) for part in (x.split(b",") for x in [header, *lines]))
    path.write_bytes(b"\n".join([header, *lines]))


def answer(main, options) -> str:
    """What a command prints. UserError is an answer too; any other exception fails the test."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(UserError):
        assert main(options) in (None, 0, 1)
    return out.getvalue()


@SETTINGS
@given(st.lists(damages(), min_size=1, max_size=4))
@example([("runs", "line", "half a row", 3), ("windows", "line", 'a,"b', 4), ("epochs", "bytes", b"\xff,1", 0)])
def test_damage_beside_good_rows_costs_none_of_them(tmp_path_factory, found):
    """Protects the numbers of runs in every answer: 3 runs of single and of ddp, whatever else is in the files."""
    folder = tmp_path_factory.mktemp("set")
    write_good_set(folder)
    for each in found:
        damage(folder, *each)
    runs = read_table(folder, "runs")
    assert set(runs[runs.status == "ok"].run_id) >= set(RUN_IDS)
    text = answer(plot_results.main, plot_results.PlotOptions(results=(folder,)))
    for strategy in GOOD:
        assert f"\n{strategy}  " in text and f"{REPEATS} ok" in text.partition(f"\n{strategy} ")[2].split("\n")[0], text
    assert (folder / "charts" / "throughput.svg").exists()
    text = answer(compare.main, compare.CompareOptions(a=folder, anyway=True))
    assert "ddp / single" in text and f"{REPEATS} / {REPEATS}" in text, text
    answer(report.main, report.ReportOptions(results=folder))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(strategy in page for strategy in GOOD) and "</svg><script>" not in page


@SETTINGS
@given(st.dictionaries(st.sampled_from(NAMES), CONTENTS), st.booleans())
def test_a_set_of_nonsense_is_answered(tmp_path_factory, tables, with_header):
    """Protects against tracebacks where nothing in a set is any good."""
    folder, good = tmp_path_factory.mktemp("nonsense"), tmp_path_factory.mktemp("good")
    write_good_set(good)
    for name, content in tables.items():
        text = content if isinstance(content, bytes) else "".join(map(line_of, content)).encode()
        (folder / f"{name}.csv").write_bytes(line_of(list(TABLES[name])).encode() * with_header + text)
    answer(plot_results.main, plot_results.PlotOptions(results=(folder, good)))
    answer(compare.main, compare.CompareOptions(a=good, b=folder))
    answer(report.main, report.ReportOptions(results=folder))
