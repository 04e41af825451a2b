"""The tables of scripts/stats/README.md: how often the method errs under the noise of tests/generators.py, as CSV.

    PYTHONPATH=.:tests .venv/bin/python tests/false_alarms.py

writes results/measured/false_alarms.csv; copied to results/published/measured/, it becomes the tables by
`./bench readme`. Of families it computes many sets at once, where tests/simulate.py calls the functions that users
call; a test sees that both decide alike. `./bench ab` and two days go through those functions. Seeded.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from generators import CASES, PAIRS, PUBLISHED_SET, draw, runs
from round_budget import budget_rows
from simulate import ab_verdicts, day_verdicts

from scripts.sets.result_set import load_set
from scripts.stats.independence import rounds_are_autocorrelated, standard_error_factor
from scripts.stats.intervals import MIN_ROUNDS, SMALLEST_SD, sidak_critical_value
from scripts.stats.stopping_rule import FIRST_LOOK_ROUNDS
from scripts.studies.ab.sequential import MAX_ROUNDS
from scripts.studies.measured_csv import MEASURED_FOLDER, add_rows

NUM_SETS = 1000
NUM_UNTIL_SETS = 300
NUM_AB = 1500
NUM_AB_FOUND = 400  # of those with a difference
NUM_DAYS = 400
NUM_STRATEGIES = 10
MOST_ROUNDS = 40
DAY_SD = 0.02
DAY_ROUNDS = 10
BUDGET_S = 900
WIDTH = 0.1
FEWER = (2, 3, 4)  # strategies
WANDERS = "AR(0.5) strategies, growing"
Draw = Callable[[str, numpy.random.Generator, int, int, int], numpy.ndarray]
"""draw(case, rng, num_sets, num_strategies, num_rounds) -> logs [num_sets, num_strategies, num_rounds]."""


class Families(NamedTuple):
    """Families of pairs of many sets. log_ratios, half_widths: of logarithms, [num_sets, num_pairs], NaN without an
    interval. undecided: [num_sets], whether their rounds follow one another."""

    log_ratios: numpy.ndarray
    half_widths: numpy.ndarray
    undecided: numpy.ndarray

    @property
    def false_alarms(self) -> numpy.ndarray:
        """[num_sets]: whether an interval leaves out the truth, where all are equal."""
        return (numpy.abs(self.log_ratios) > self.half_widths).any(axis=1) & ~self.undecided


def families(logs: numpy.ndarray, pairs: numpy.ndarray) -> Families:
    """The method on logs [num_sets, num_strategies, num_rounds], for the pairs [num_pairs, 2] of each set."""
    differences = logs[:, pairs[:, 0]] - logs[:, pairs[:, 1]]
    rounds = numpy.count_nonzero(~numpy.isnan(differences), axis=2)
    means = numpy.nansum(differences, axis=2) / numpy.maximum(rounds, 1)
    squares = numpy.nansum((differences - means[:, :, None]) ** 2, axis=2)
    enough = rounds >= MIN_ROUNDS
    num_comparisons = numpy.maximum(enough.sum(axis=1), 1)[:, None]
    critical = numpy.full(rounds.shape, numpy.nan)
    for compared in numpy.unique(num_comparisons):
        for count in numpy.unique(rounds[enough]):
            place = enough & (num_comparisons == compared) & (rounds == count)
            critical[place] = sidak_critical_value(int(compared), int(count) - 1)
    in_pairs = numpy.zeros(logs.shape[:2], dtype=bool)
    for number, pair in enumerate(pairs):
        in_pairs[:, pair] |= enough[:, number, None]
    tables = numpy.where(in_pairs[:, :, None], logs, numpy.nan)
    errors = numpy.sqrt(squares / numpy.maximum(rounds - 1, 1) / numpy.maximum(rounds, 1))
    errors *= _of_rounds_that_ran(standard_error_factor, tables)[:, None]
    errors[errors < SMALLEST_SD] = numpy.nan  # no spread, no interval
    return Families(means, critical * errors, _of_rounds_that_ran(rounds_are_autocorrelated, tables))


def _of_rounds_that_ran(function: Callable[[numpy.ndarray], numpy.ndarray], tables: numpy.ndarray) -> numpy.ndarray:
    """[num_sets]: of tables [num_sets, num_strategies, num_rounds], each without the rounds that nothing ran in."""
    found, missing = function(tables), numpy.isnan(tables).all(axis=1)
    for number in numpy.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1)):
        found[number] = function(tables[number][:, ~missing[number]])
    return found


def over_first(num_strategies: int) -> numpy.ndarray:
    """The pairs of a baseline, int [num_strategies - 1, 2]."""
    return numpy.array([(number, 0) for number in range(1, num_strategies)])


def false_over_fastest(logs: numpy.ndarray) -> numpy.ndarray:
    """[num_sets]: whether a difference from the highest mean is seen, by the intervals of all pairs."""
    pairs = numpy.array([*zip(*numpy.triu_indices(logs.shape[1], 1), strict=True)])
    of_all = families(logs, pairs)
    means = numpy.nansum(logs, axis=2) / numpy.maximum(numpy.count_nonzero(~numpy.isnan(logs), axis=2), 1)
    means[numpy.isnan(logs).all(axis=2)] = -numpy.inf
    with_fastest = (pairs == means.argmax(axis=1)[:, None, None]).any(axis=2)
    seen = numpy.abs(of_all.log_ratios) > of_all.half_widths
    return (seen & with_fastest).any(axis=1) & ~of_all.undecided


def row(what: str, case: str, strategies: int, rounds: int, quantity: str, found: numpy.ndarray) -> dict[str, Any]:
    """A row of the CSV file: the mean of a number or a truth of each set, and its standard error; percent of truths."""
    values = numpy.asarray(found) * (100.0 if found.dtype == bool else 1.0)
    error = values.std() / numpy.sqrt(len(values))
    return {
        "what": what, "case": case, "num_strategies": strategies, "num_rounds": rounds, "quantity": quantity,
        "value": f"{values.mean():.2f}", "standard_error": f"{error:.2f}", "num_sets": len(values),
    }  # fmt: skip


def family_rows(case: str, strategies: int, rounds: int, num: int, draw: Draw = draw) -> Iterator[dict[str, Any]]:
    """How often a family errs and has no verdict; how wide the intervals are in the sets that have a verdict."""
    logs = draw(case, numpy.random.default_rng(len(case) + 100 * rounds), num, strategies, rounds)
    found = families(logs, over_first(strategies))
    half_widths = found.half_widths[~found.undecided]
    each = 100 * numpy.expm1(half_widths[~numpy.isnan(half_widths)])
    yield row("family", case, strategies, rounds, "false_over_first_percent", found.false_alarms)
    if strategies > 2:
        yield row("family", case, strategies, rounds, "false_over_fastest_percent", false_over_fastest(logs))
    yield row("family", case, strategies, rounds, "no_verdict_percent", found.undecided)
    yield row("family", case, strategies, rounds, "median_half_width_percent", each) | {
        "value": f"{numpy.median(each):.2f}", "standard_error": "", "num_sets": len(half_widths),
    }  # fmt: skip


def power_row(strategies: int, rounds: int, num: int) -> dict[str, Any]:
    """How often a strategy that is 10 % faster than the baseline is called faster."""
    logs = runs(numpy.random.default_rng(7), num, strategies, rounds)
    logs[:, 1] += numpy.log(1.1)
    found = families(logs, over_first(strategies))
    faster = (found.log_ratios > found.half_widths)[:, 0] & ~found.undecided
    return row("power", "independent runs", strategies, rounds, "found_10_percent", faster)


def apply_until(
    logs: numpy.ndarray, first_look: int = FIRST_LOOK_ROUNDS
) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """When `--until 10%` stops families, and how they stand then: false alarms, whether they have no verdict, and
    rounds, [num_sets] each. logs: of the most rounds."""
    num, strategies, most = logs.shape
    false_alarms, undecided = numpy.zeros((2, num), dtype=bool)
    stopped, left, narrow_before = numpy.full(num, most), numpy.arange(num), numpy.zeros(num, dtype=bool)
    for rounds in range(first_look, most + 1):
        if not len(left):
            break
        so_far = logs[left, :, :rounds]
        found = families(so_far, over_first(strategies))
        enough = numpy.count_nonzero(~numpy.isnan(so_far), axis=2).min(axis=1) >= first_look
        narrow = (numpy.expm1(found.half_widths) <= WIDTH).all(axis=1) & ~found.undecided & enough
        ends = (narrow & narrow_before) | (rounds == most)
        false_alarms[left[ends]], undecided[left[ends]] = found.false_alarms[ends], found.undecided[ends]
        stopped[left[ends]] = rounds
        left, narrow_before = left[~ends], narrow[~ends]
    return false_alarms, undecided, stopped


def until_rows(case: str, strategies: int, num: int, draw: Draw = draw) -> Iterator[dict[str, Any]]:
    """How often a family covers when `--until 10%` has stopped it, and after how many rounds."""
    logs = draw(case, numpy.random.default_rng(2), num, strategies, MOST_ROUNDS)
    false_alarms, _, stopped = apply_until(logs)
    yield row("until", case, strategies, MOST_ROUNDS, "covered_percent", ~false_alarms)
    yield row("until", case, strategies, MOST_ROUNDS, "rounds", stopped)


def ab_rows(num: int, num_found: int) -> Iterator[dict[str, Any]]:
    """How often `./bench ab` errs and has no verdict, and how often it finds that B is slower by 5 and 10 %."""
    for case, draw_pair in PAIRS.items():
        found = ab_verdicts(draw_pair, 0.0, num)
        yield row("ab", case, 2, MAX_ROUNDS, "false_alarms_percent", found[:, :2].any(axis=1))
        yield row("ab", case, 2, MAX_ROUNDS, "no_verdict_percent", found[:, 3] > 0)
    case, draw_pair = next(iter(PAIRS.items()))
    for percent in (5, 10):
        found = ab_verdicts(draw_pair, -percent / 100, num_found)
        yield row("ab", case, 2, MAX_ROUNDS, f"found_{percent}_percent", found[:, 1] > 0)
        yield row("ab", case, 2, MAX_ROUNDS, f"rounds_at_{percent}", found[:, 4])


def day_rows(num: int) -> Iterator[dict[str, Any]]:
    """How often two sets of two days are called different, and how often a slowdown of 30 % of one strategy is found;
    the day's sd is given, or measured from three or five further sets."""
    for sets in (None, 3, 5):
        case = f"measured from {sets} sets" if sets else "given"
        for strategies in (1, 9):
            for quantity, slowdown in (("false_alarms_percent", 0.0), ("found_30_percent", 0.3)):
                found = day_verdicts(strategies, DAY_ROUNDS, num, DAY_SD, sets, slowdown)
                yield row("days", case, strategies, DAY_ROUNDS, quantity, found)


def round_rows() -> Iterator[dict[str, Any]]:
    """Many short runs or few long ones, of two strategies in 15 minutes: nothing is drawn here."""
    for rounds, windows, half_width in budget_rows(load_set(PUBLISHED_SET), BUDGET_S)[1]:
        for quantity, value in (("windows", f"{windows}"), ("half_width_percent", f"{100 * half_width:.1f}")):
            yield {
                "what": "budget", "case": PUBLISHED_SET.name, "num_strategies": 2, "num_rounds": rounds,
                "quantity": quantity, "value": value, "standard_error": "", "num_sets": "",
            }  # fmt: skip


def all_rows(num: int, num_until: int) -> Iterator[dict[str, Any]]:
    for rounds in (5, 10):
        for case in CASES:
            yield from family_rows(case, NUM_STRATEGIES, rounds, num)
        for strategies in FEWER:
            yield from family_rows(WANDERS, strategies, rounds, num)
        for strategies in (*FEWER, NUM_STRATEGIES):
            yield power_row(strategies, rounds, num)
    for case in CASES:
        yield from until_rows(case, 4, num_until)
    yield from until_rows(WANDERS, 2, num_until)
    yield from ab_rows(NUM_AB, NUM_AB_FOUND)
    yield from day_rows(NUM_DAYS)
    yield from round_rows()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", type=int, default=NUM_SETS)
    parser.add_argument("--until-sets", type=int, default=NUM_UNTIL_SETS)
    parser.add_argument("--output", type=Path, default=MEASURED_FOLDER / "false_alarms.csv")
    options = parser.parse_args()
    found = []
    for each in all_rows(options.sets, options.until_sets):
        print(*each.values(), sep=", ", flush=True)
        found.append(each)
    add_rows(options.output, found, replace=True)


if __name__ == "__main__":
    main()
