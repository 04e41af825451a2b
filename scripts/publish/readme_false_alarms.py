"""The tables of scripts/stats/README.md, from results/published/measured/false_alarms.csv.

from scripts.publish.readme_false_alarms import false_alarm_figures
"""

from pathlib import Path
from typing import Any

import pandas

from scripts.publish.markdown_tables import describe_origin, markdown_table, read_cells
from scripts.sets.frames import iterate_rows

KEYS = ["what", "case", "num_strategies", "num_rounds", "quantity"]
COLUMNS = (*KEYS, "value", "standard_error", "num_sets", "commit", "date", "machine")
FALSE = ("false_over_first_percent", "false_over_fastest_percent")
HALF_WIDTH, NO_VERDICT = "median_half_width_percent", "no_verdict_percent"

Rows = dict[tuple[str, ...], Any]
"""Rows of the CSV file, by the cells of KEYS."""


def false_alarm_figures(measured: Path) -> dict[str, str]:
    """By name; '' for what was not simulated."""
    rows = read_cells(measured / "false_alarms.csv", COLUMNS)
    found = {tuple(str(getattr(row, name)) for name in KEYS): row for row in iterate_rows(rows)}
    families = rows[rows.what == "family"]
    most = max((int(each) for each in families.num_strategies), default=0)
    wandering = next(iter(families[families.num_strategies != str(most)].case), "")
    cases = dict.fromkeys(families[families.num_strategies == str(most)].case)
    sizes = sorted({int(each) for each in families[families.case == wandering].num_strategies})
    of_until = rows[(rows.what == "until") & (rows.quantity == "covered_percent")]
    return {
        "false_alarms.families": markdown_table(
            _header("case"),
            [(case, *_family(found, case, most)) for case in cases],
        ),
        "false_alarms.wandering": markdown_table(
            (*_header("strategies"), "10 % found, 5 rounds", "10 rounds"),
            [(str(size), *_family(found, wandering, size), *_power(found, size)) for size in sizes],
        ),
        "false_alarms.until": markdown_table(
            ("case", "strategies", "covered, %", "rounds"),
            [
                (row.case, row.num_strategies, _with_error(row.value, row.standard_error),
                 f"{float(found[row.what, row.case, row.num_strategies, row.num_rounds, 'rounds'].value):.0f}")
                for row in iterate_rows(of_until)
            ],
        ),
        "false_alarms.sets": _count(families), "false_alarms.until_sets": _count(of_until),
        "false_alarms.origin": describe_origin(rows),
    }  # fmt: skip


def _header(first: str) -> tuple[str, ...]:
    quantities = ("false alarms, %", "no verdict, %", "half-width, %")
    return first, *(f"{what}, {rounds} rounds" for what in quantities for rounds in (5, 10))


def _family(found: Rows, case: str, size: int) -> list[str]:
    """False alarms, families without a verdict and half-widths, each after 5 and 10 rounds."""
    keys = [("family", case, str(size), rounds) for rounds in ("5", "10")]
    false = []
    for key in keys:
        rows = [found[*key, name] for name in FALSE if (*key, name) in found]
        worst = max(rows, key=lambda row: float(row.value))
        false.append(_with_error(worst.value, worst.standard_error))
    others = [f"{float(found[*key, name].value):.0f}" for name in (NO_VERDICT, HALF_WIDTH) for key in keys]
    return [*false, *others]


def _power(found: Rows, size: int) -> list[str]:
    rows = [found["power", "independent runs", str(size), rounds, "found_10_percent"] for rounds in ("5", "10")]
    return [_with_error(row.value, row.standard_error) for row in rows]


def _with_error(value: str, error: str) -> str:
    return f"{float(value):.1f} ± {float(error):.1f}"


def _count(rows: pandas.DataFrame) -> str:
    return ", ".join(f"{int(each):,}" for each in dict.fromkeys(rows.num_sets))
