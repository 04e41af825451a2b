"""The tables of scripts/stats/README.md, from false_alarms.csv, hostile.csv, hostile_2.csv and hostile_3.csv of
results/published/measured/."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.store.frames import iterate_rows
from scripts.publish.markdown_tables import describe_origin, markdown_table, percents, read_cells

KEYS = ["what", "case", "num_strategies", "num_rounds", "quantity"]
COLUMNS = (*KEYS, "value", "standard_error", "num_sets", "commit", "date", "machine")
FALSE = ("false_over_first_percent", "false_over_fastest_percent")
HALF_WIDTH, NO_VERDICT = "median_half_width_percent", "no_verdict_percent"
ERRS, COVERED = "false_alarms_percent", "covered_percent"
WANDERS, WANDERS_MORE = "AR(0.5) strategies, growing", "AR(0.7) strategies"
UNEQUAL = "unequal responses to a drift"
OFTEN_PERCENT = 6.0
LEAST_SETS = 100  # a rate of fewer sets is not stated
HOSTILE_SIZES, UNTIL_SIZE, ROUNDS = ("2", "4", "11"), "4", ("5", "10")

Rows = dict[tuple[str, ...], Any]
"""Rows of the CSV file, by the cells of KEYS."""


def simulated_figures(measured: Path) -> dict[str, str]:
    """All figures of simulated sets, by name; '' for what was not simulated.

    The files call a first-order autoregression with coefficient 0.5 AR(0.5). Here it is AR(1; 0.5), since AR(2) is one
    of second order.
    """
    made = {
        **false_alarm_figures(measured),
        **hostile_figures(measured),
        **hostile_2_figures(measured),
        **hostile_3_figures(measured),
        **decided_figures(measured),
    }
    return {name: re.sub(r"AR\((0\.\d+)\)", r"AR(1; \1)", text) for name, text in made.items()}


def false_alarm_figures(measured: Path) -> dict[str, str]:
    """By name; '' for what was not simulated."""
    rows = read_cells(measured / "false_alarms.csv", COLUMNS)
    found = _by_key(rows)
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
            ("case", "strategies", "no false interval, %", "rounds"),
            [
                (row.case, row.num_strategies, _with_error(row.value, row.standard_error),
                 f"{float(found[row.what, row.case, row.num_strategies, row.num_rounds, 'rounds'].value):.0f}")
                for row in iterate_rows(of_until)
            ],
        ),
        "false_alarms.ab": _ab_table(rows, found),
        "false_alarms.ab_sets": _count(rows[(rows.what == "ab") & (rows.quantity == ERRS)]),
        "false_alarms.ab_found_sets": _count(rows[(rows.what == "ab") & (rows.quantity == "found_10_percent")]),
        "false_alarms.days": _day_table(rows, found, (ERRS, "found_30_percent"), ("false alarms, %", "found, %")),
        "false_alarms.day_sets": _count(rows[rows.what == "days"]),
        "false_alarms.budget": _budget_table(rows, found),
        "false_alarms.sets": _count(_only(families, quantity=FALSE[0])), "false_alarms.until_sets": _count(of_until),
        "false_alarms.origin": describe_origin(rows),
    }  # fmt: skip


def hostile_figures(measured: Path) -> dict[str, str]:
    """By name, of the noise that the method was not chosen by; '' for what was not simulated."""
    rows = read_cells(measured / "hostile.csv", COLUMNS)
    found = _by_key(rows)
    sizes = [f"{int(size) - 1} {'pair' if size == '2' else 'pairs'}" for size in HOSTILE_SIZES]
    cases = dict.fromkeys(rows[rows.what == "family"].case)
    of_until = {row.case: row for row in iterate_rows(rows[(rows.what == "until") & (rows.quantity == COVERED)])
                if row.num_strategies == UNTIL_SIZE}  # fmt: skip
    headers = [f"{size}, {rounds} rounds" for rounds in ROUNDS for size in sizes]
    return {
        "hostile.families": markdown_table(
            ("case", *headers, *(f"no verdict, {rounds} rounds" for rounds in ROUNDS), "--until: no false interval"),
            [(case, *_hostile_family(found, case), _rounded(of_until.get(case))) for case in cases],
        ),
        "hostile.ab": markdown_table(
            ("case", "false alarms, %", "no verdict, %"),
            [
                (case, *(_rounded(found["ab", case, "2", "20", name]) for name in (ERRS, NO_VERDICT)))
                for case in dict.fromkeys(rows[rows.what == "ab"].case)
            ],
        ),
        "hostile.days": _day_table(
            rows, found, ("false_with_sd_given_percent", "false_with_three_sets_percent"),
            ("sd given, %", "from three sets, %"),
        ),
        "hostile.loader": _named(rows[rows.what == "loader"]),
        **{f"hostile.{what}_sets": _count(rows[rows.what == what]) for what in ("loader", "throughput", "ab")},
        "hostile.day_sets": _count(rows[rows.what == "days"]),
        "hostile.throughput": _named(_only(rows, what="throughput", num_rounds="5")),
        "hostile.throughput_many": _named(_only(rows, what="throughput", num_rounds="20")),
        "hostile.shown": _range(_only(rows, what="shown")),
        "hostile.shown_few": _range(_only(rows, what="shown", num_rounds="5")),
        "hostile.shown_ten": _range(_only(rows, what="shown", num_rounds="10")),
        "hostile.planned": _range(_only(rows, what="planned")),
        "hostile.skewed": _range(_only(rows, what="family", case="skewed baseline", quantity=FALSE[0])),
        **{f"hostile.walks_of_{size}": _range(_only(rows, case="one strategy walks", num_strategies=size,
                                                    num_rounds=ROUNDS[-1], quantity=NO_VERDICT))
           for size in (HOSTILE_SIZES[0], HOSTILE_SIZES[-1])},
        "hostile.sets": _count(_only(rows, what="family", quantity=FALSE[0])), "hostile.origin": describe_origin(rows),
    }  # fmt: skip


def hostile_2_figures(measured: Path) -> dict[str, str]:
    """By name, of the second audit; '' for what was not simulated."""
    columns = (*KEYS, "rate_percent", "num_sets", "commit", "date", "machine")
    rows = read_cells(measured / "hostile_2.csv", columns).rename(columns={"rate_percent": "value"})
    families = _only(rows, what="family")
    over_first, looks = _only(families, quantity="false_over_first"), _only(rows, what="until")
    stopped, planned = _only(looks, case="first look after 10 rounds"), _only(rows, what="planned")
    decided, decided_late = (
        _only(families, quantity="false_over_first_of_decided", num_rounds=num_rounds) for num_rounds in ROUNDS
    )
    ordinary_t = _only(rows, what="ordinary t", num_strategies="10")
    few_carry_over = {"case": "carry-over of 4 %, the suite's orders", "num_strategies": "3", "num_rounds": ROUNDS[-1]}
    carry_over = _only(over_first, case=few_carry_over["case"])
    others = carry_over.drop(_only(carry_over, **few_carry_over).index).value.astype(float)
    made = {
        "stalls": _only(over_first, case="one strategy stalls", num_rounds=ROUNDS[0]),
        "stalls_late": _only(over_first, case="one strategy stalls", num_rounds=ROUNDS[1]),
        "carry_over": _only(over_first, **few_carry_over),
        "decided": _only(decided, case=WANDERS),
        "decided_more": _only(decided, case=WANDERS_MORE),
        "stopped": _only(stopped, quantity="covered_of_stopped"),
        "stopped_no_verdict": _only(stopped, quantity="no_verdict"),
        "until": _only(stopped, quantity="covered"),
        "early_look": _only(looks, case="first look after 6 rounds", quantity="covered"),
        "noisiest": _only(rows, quantity="found_of_noisiest"),
        "quietest_few": _only(rows, quantity="found_of_quietest", num_rounds=ROUNDS[0]),
        "quietest_ten": _only(rows, quantity="found_of_quietest", num_rounds=ROUNDS[1]),
        "planned": _only(planned, quantity="found"),
        "planned_where_quiet": _only(planned, quantity="found_where_quiet"),
        "ordinary_t": _only(ordinary_t, case=WANDERS, num_rounds=ROUNDS[-1]),
        "three_rounds": _only(ordinary_t, case="two speeds", num_rounds="3"),
        "pooled": _only(rows, what="pooled variance", case="one strategy 4x noisier"),
    }
    return {f"hostile_2.{name}": _range(of_name) for name, of_name in made.items()} | {
        "hostile_2.decided_late": _by_size(_only(decided_late, case=WANDERS)),
        "hostile_2.decided_more_late": _by_size(_only(decided_late, case=WANDERS_MORE)),
        "hostile_2.carry_over_else": f"{others.max():.0f} %" if len(others) else "",
        "hostile_2.often": _often(_only(families, quantity="false_over_either")),
        "hostile_2.ab": _named(_only(rows, what="ab", quantity="false_alarms")),
        "hostile_2.sets": _count(over_first), "hostile_2.origin": describe_origin(rows),
    }  # fmt: skip


def hostile_3_figures(measured: Path) -> dict[str, str]:
    """By name, of the third audit; '' for what was not simulated."""
    columns = (*KEYS, "rate_percent", "num_sets", "commit", "date", "machine")
    rows = read_cells(measured / "hostile_3.csv", columns).rename(columns={"rate_percent": "value"})
    families, days = _only(rows, what="family"), _only(rows, what="days", case="a rare bad day")
    of_seeds = _only(rows, what="top-1", case="seeds differ, 2000 images")
    few_images = _only(rows, what="top-1", case="seeds differ, 132 images")
    false_of_ab = _only(rows, what="ab", quantity="false_alarms")
    decided = _only(families, quantity="false_over_first_of_decided")
    return {
        "hostile_3.decided": _by_size(_only(decided, case="AR(0.5) strategies", num_rounds=ROUNDS[0])),
        "hostile_3.decided_late": _by_size(_only(decided, case="AR(0.5) strategies", num_rounds=ROUNDS[1])),
        "hostile_3.unequal": _by_size(_only(decided, case=UNEQUAL, num_rounds=ROUNDS[0])),
        "hostile_3.unequal_late": _by_size(_only(decided, case=UNEQUAL, num_rounds=ROUNDS[1])),
        "hostile_3.often": _often(_only(families, quantity="false_over_either")),
        "hostile_3.ab": _named(false_of_ab[~false_of_ab.case.str.startswith("AR(")]),  # those are in memory, of more
        "hostile_3.memory": _named(_only(rows, what="memory", quantity="false_alarms")),
        "hostile_3.builds": _range(_only(rows, what="cuts")),
        "hostile_3.day_given": _range(_only(days, quantity="false_with_sd_given")),
        "hostile_3.day_measured": _range(_only(days, quantity="false_with_three_sets")),
        "hostile_3.loader": _named(_only(rows, what="loader")),
        "hostile_3.loader_sets": _count(_only(rows, what="loader")),
        "hostile_3.one_seed": _range(_only(of_seeds, num_rounds="1")),
        "hostile_3.one_seed_few": _range(_only(few_images, num_rounds="1")),
        "hostile_3.two_seeds": _range(_only(of_seeds, num_rounds="2")),
        "hostile_3.three_seeds": _range(_only(of_seeds, num_rounds="3")),
        "hostile_3.sets": _count(_only(families, quantity="false_over_first")),
        "hostile_3.origin": describe_origin(rows),
    }  # fmt: skip


def decided_figures(measured: Path) -> dict[str, str]:
    """How often `./bench ab` errs where it has a verdict, by the correlation of the ratio; '' for what was not
    simulated."""
    first = _only(read_cells(measured / "false_alarms.csv", COLUMNS), what="ab")
    columns = (*KEYS, "rate_percent", "num_sets")
    third = read_cells(measured / "hostile_3.csv", columns).rename(columns={"rate_percent": "value"})
    found: dict[str, list[float]] = {}
    for rows, errs, silent in (
        (_only(third, what="memory"), "false_alarms", "no_verdict"),
        (first[first.case.str.startswith("AR(")], ERRS, NO_VERDICT),
    ):
        for case in dict.fromkeys(rows.case):
            false, without = (_value(*_of(rows, case, name)) for name in (errs, silent))
            found.setdefault(case.removesuffix(" ratio"), []).append(100 * false / (100 - without))
    texts = [f"{percents(rates)} at {case}" for case, rates in sorted(found.items())]
    return {"ab.decided": " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))}


def _of(rows: pandas.DataFrame, case: str, quantity: str) -> list[Any]:
    return [*iterate_rows(_only(rows, case=case, quantity=quantity))]


def _by_size(rows: pandas.DataFrame) -> str:
    """Each rate with its number of strategies; not those of few sets."""
    enough = rows[rows.num_sets.astype(int) >= LEAST_SETS] if len(rows) else rows
    return ", ".join(f"{_value(row):.0f} % ({row.num_strategies} strategies)" for row in iterate_rows(enough))


def _often(rows: pandas.DataFrame) -> str:
    """Cases that err in more than OFTEN_PERCENT at worst, the worst first, and the worst of the others."""
    worst = rows.value.astype(float).groupby(rows.case).max().sort_values(ascending=False)
    often = worst[worst > OFTEN_PERCENT]
    named = [f"{case} {value:.1f}" for case, value in often.items()]
    others = worst[len(often) :]
    return f"{'; '.join(named)}; the other {len(others)} at most {others.max():.1f}" if named else ""


def _by_key(rows: pandas.DataFrame) -> Rows:
    return {tuple(str(getattr(row, name)) for name in KEYS): row for row in iterate_rows(rows)}


def _hostile_family(found: Rows, case: str) -> list[str]:
    """The worse of both families' false alarms by rounds and sizes, then families of the most without a verdict."""
    keys = [("family", case, size, rounds) for rounds in ROUNDS for size in HOSTILE_SIZES]
    worst = [max((found[*key, name] for name in FALSE if (*key, name) in found), key=_value) for key in keys]
    undecided = [found["family", case, HOSTILE_SIZES[-1], rounds, NO_VERDICT] for rounds in ROUNDS]
    return [*map(_rounded, worst), *(f"{_value(row):.0f}" for row in undecided)]


def _ab_table(rows: pandas.DataFrame, found: Rows) -> str:
    of_ab = rows[rows.what == "ab"]
    quantities = (ERRS, NO_VERDICT, "found_5_percent", "found_10_percent", "rounds_at_10")
    keys = [(case, [("ab", case, "2", "20", name) for name in quantities]) for case in dict.fromkeys(of_ab.case)]
    return markdown_table(
        ("case", "false alarms, %", "no verdict, %", "5 % found, %", "10 % found, %", "rounds at 10 %"),
        [(case, *(_rounded(found.get(key)) for key in of_case)) for case, of_case in keys],
    )


def _day_table(rows: pandas.DataFrame, found: Rows, quantities: Sequence[str], names: Sequence[str]) -> str:
    """A row a case, and of each number of strategies the quantities."""
    of_days = rows[rows.what == "days"]
    sizes, num_rounds = sorted(set(of_days.num_strategies), key=int), "".join(dict.fromkeys(of_days.num_rounds))
    of_size = [f"{size} {'strategy' if size == '1' else 'strategies'}" for size in sizes]
    return markdown_table(
        ("days", *(f"{size}: {name}" for size in of_size for name in names)),
        [
            (case, *(_rounded(found["days", case, size, num_rounds, name]) for size in sizes for name in quantities))
            for case in dict.fromkeys(of_days.case)
        ],
    )


def _budget_table(rows: pandas.DataFrame, found: Rows) -> str:
    """Columns are numbers of rounds."""
    of_budget = rows[rows.what == "budget"]
    keys = dict.fromkeys((row.case, row.num_rounds) for row in iterate_rows(of_budget))
    lines = {"windows a run": "windows", "half-width, %": HALF_WIDTH.removeprefix("median_")}
    return markdown_table(
        ("rounds", *(rounds for _, rounds in keys)),
        [
            (name, *(found["budget", case, "2", rounds, quantity].value for case, rounds in keys))
            for name, quantity in (lines.items() if keys else ())
        ],
    )


def _named(rows: pandas.DataFrame) -> str:
    return ", ".join(f"{row.case} {_rounded(row)}" for row in iterate_rows(rows))


def _only(rows: pandas.DataFrame, **cells: str) -> pandas.DataFrame:
    """The rows that have these cells."""
    return rows[(rows[[*cells]] == [*cells.values()]).all(axis=1)]


def _range(rows: pandas.DataFrame) -> str:
    """From the least to the most, in whole percent."""
    return percents([_value(row) for row in iterate_rows(rows)])


def _value(row: Any) -> float:
    return float(row.value)


def _rounded(row: Any) -> str:
    return "" if row is None else f"{_value(row):.1f}"


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
