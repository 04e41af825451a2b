"""How often the suite errs under the noise of tests/hostile_generators.py, which the method was not chosen by, as CSV.

    PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit.py

writes results/measured/hostile.csv, part by part; copied to results/published/measured/, it becomes tables of
scripts/stats/README.md by `./bench readme`. All are equally fast in truth, but for the parts `shown` and `planned`,
which ask whether a difference that a report calls visible, or `./bench power` plans for, is found. Seeded.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
from false_alarms import DAY_ROUNDS, DAY_SD, WANDERS, families, family_rows, over_first, row, until_rows
from generators import draw as draw_known
from generators import runs
from hostile_generators import CASES, DAYS, DISPUTED, LAUNCHES, PAIRS, RUN_SD, STRATEGIES, draw, launches, own
from scipy.special import nctdtrinc
from simulate import ab_verdicts, seen_between_days

from scripts.stats.intervals import POWER, mean_interval, sidak_critical_value
from scripts.studies.ab.sequential import MAX_ROUNDS
from scripts.studies.loaders.loader_limit import (
    ALONE,
    BOTH,
    MAX_THROUGHPUT_LOSS,
    TRAINING,
    WINDOW_KINDS,
    describe_limit,
)
from scripts.studies.loaders.measure_loader_limit import LAUNCHES as NUM_LAUNCHES
from scripts.studies.loaders.measure_loader_limit import ROUNDS as NUM_WINDOWS
from scripts.studies.loaders.measure_loader_limit import kinds_in_order
from scripts.studies.measured_csv import MEASURED_FOLDER, add_rows
from scripts.studies.power.rounds_needed import fewest_rounds

NUM_SETS = 1000
NUM_UNTIL_SETS = 1000
NUM_AB = 1500
NUM_DAYS = 300
NUM_LOADERS = 1500
ROUNDS = (5, 10, 20)  # below five there is no verdict
MANY_ROUNDS_STRATEGIES = (2, 11)
UNTIL_STRATEGIES = 4
WITHIN_DAYS = ("linear drift of 30 %", "step in the middle", "1/f machine", "AR(2) strategies", "1/f strategies")
DAY_STRATEGIES = (1, 9)
WANDERS_ALIKE = "AR(0.5) rounds, growing"
OF_MEAN_0 = ("runs are t(3)", "skewed baseline", "AR(2) machine", "1/f machine", "AR(2) strategies")
WINDOWS_OF_LAUNCH = len(WINDOW_KINDS) * (NUM_WINDOWS + 1)
TRUE_SPEEDS = {ALONE: 0.9, TRAINING: 1.0, BOTH: 1 - MAX_THROUGHPUT_LOSS}
Rows = Iterator[dict[str, Any]]


def of_families(num: int) -> Rows:
    for case in CASES:
        for strategies in STRATEGIES:
            for rounds in ROUNDS if strategies in MANY_ROUNDS_STRATEGIES else ROUNDS[:2]:
                yield from family_rows(case, strategies, rounds, num, draw)


def of_until(num: int) -> Rows:
    for case in CASES:
        yield from until_rows(case, UNTIL_STRATEGIES, num, draw)


def of_ab(num: int) -> Rows:
    for case, draw_pair in PAIRS.items():
        found = ab_verdicts(draw_pair, 0.0, num)
        yield row("ab", case, 2, MAX_ROUNDS, "false_alarms_percent", found[:, :2].any(axis=1))
        yield row("ab", case, 2, MAX_ROUNDS, "no_verdict_percent", found[:, 3] > 0)


def of_days(num: int) -> Rows:
    """A is the first day and B the last; the day's sd is given, or measured from the three days between them.

    Hostile days have independent runs. Days of hostile runs are normal.
    """
    for strategies in DAY_STRATEGIES:
        shape = (num, strategies, 5)
        for case, draw_days in DAYS.items():
            rng = numpy.random.default_rng(len(case))
            days = draw_days(rng, shape)
            yield from _days(case, days, own(rng, (num, 5, strategies, DAY_ROUNDS)))
        for case in (WANDERS, *WITHIN_DAYS):
            rng = numpy.random.default_rng(len(case))
            drawn = (draw_known if case == WANDERS else draw)(case, rng, 5 * num, strategies, DAY_ROUNDS)
            days = numpy.broadcast_to(DAY_SD * rng.normal(size=(num, 1, 5)), shape)
            yield from _days(f"within days: {case}", days, drawn.reshape(num, 5, strategies, DAY_ROUNDS))


def _days(case: str, days: numpy.ndarray, of_runs: numpy.ndarray) -> Rows:
    """days: [num, strategies, 5]; of_runs: [num, 5, strategies, rounds]."""
    logs = (of_runs + days.swapaxes(1, 2)[..., None])[:, [0, 4, 1, 2, 3]]
    for quantity, day_sd in (("false_with_sd_given_percent", DAY_SD), ("false_with_three_sets_percent", None)):
        seen = seen_between_days(logs, day_sd).any(axis=1)
        yield row("days", case, logs.shape[2], DAY_ROUNDS, quantity, seen)


def of_loaders(num: int) -> Rows:
    """How often the loader's verdict errs."""
    for case in LAUNCHES:
        logs = launches(numpy.random.default_rng(len(case)), num, NUM_LAUNCHES, WINDOWS_OF_LAUNCH, case)
        yield row("loader", case, 1, NUM_LAUNCHES, "false_alarms_percent", false_loader_verdicts(logs))


def false_loader_verdicts(logs: numpy.ndarray) -> numpy.ndarray:
    """Whether each of the sets has a verdict on the loader: bool [sets]. Loading costs exactly what the verdict allows,
    so that each verdict is false.

    logs: of the machine's speed, [sets, launches, windows], in the order in which windows are timed.
    """
    kinds = [
        (str(launch), kind)
        for launch in range(1, NUM_LAUNCHES + 1)
        for number in range(1, NUM_WINDOWS + 1)
        for kind in kinds_in_order(launch, number)
    ]
    rows = pandas.DataFrame(kinds, columns=["run_id", "what"]).assign(workers=1)
    timed = logs[..., len(WINDOW_KINDS) :].reshape(len(logs), -1)  # the first round is not timed
    speeds = numpy.exp(timed) * rows.what.map(TRUE_SPEEDS).to_numpy()
    said = [describe_limit(rows.assign(images_per_s=each)) for each in speeds]
    return numpy.array([not each.startswith("no verdict") for each in said])


def of_throughput(num: int) -> Rows:
    """How often the interval of a strategy's images/s, the baseline's of eleven, holds its true mean."""
    for case in (WANDERS_ALIKE, *OF_MEAN_0):
        for rounds in ROUNDS:
            draw_case = draw_known if case == WANDERS_ALIKE else draw
            logs = draw_case(case, numpy.random.default_rng(rounds), num, 11, rounds)[:, 0]
            ends = numpy.array([mean_interval(each)[1:] for each in logs])
            covered = (ends[:, 0] <= 0) & (ends[:, 1] >= 0)
            yield row("throughput", case, 11, rounds, "covered_percent", covered)


def of_shown(num: int) -> Rows:
    """The difference that a report calls found with 80 % power, planted into further sets of the same noise."""
    for strategies in (2, 11):
        for rounds in ROUNDS:
            rng, critical = numpy.random.default_rng(rounds), sidak_critical_value(strategies - 1, rounds - 1)
            first, second = (families(runs(rng, num, strategies, rounds), over_first(strategies)) for _ in range(2))
            errors = first.half_widths[:, 0] / critical
            shown = nctdtrinc(rounds - 1, 1 - POWER, critical) * errors
            found = (second.log_ratios[:, 0] + shown > second.half_widths[:, 0]) & ~second.undecided
            yield row("shown", "independent runs", strategies, rounds, "found_percent", found[~first.undecided])


def of_planned(num: int) -> Rows:
    """10 % planted into sets of as many rounds as `./bench power` asks for, at several spreads."""
    for strategies in (2, 11):
        for run_sd in (0.02, RUN_SD, 0.06, 0.10):
            rounds = fewest_rounds(0.1, numpy.sqrt(2) * run_sd, strategies - 1)
            assert rounds is not None
            logs = run_sd / RUN_SD * runs(numpy.random.default_rng(rounds), num, strategies, rounds)
            logs[:, 1] += numpy.log(1.1)
            found = families(logs, over_first(strategies))
            seen = (found.log_ratios > found.half_widths)[:, 0] & ~found.undecided
            yield row("planned", f"sd of a run {100 * run_sd:.0f} %", strategies, rounds, "found_percent", seen)


PARTS = {
    "family": (of_families, NUM_SETS),
    "ab": (of_ab, NUM_AB),
    "shown": (of_shown, NUM_SETS),
    "planned": (of_planned, NUM_SETS),
    "throughput": (of_throughput, NUM_SETS),
    "until": (of_until, NUM_UNTIL_SETS),
    "days": (of_days, NUM_DAYS),
    "loader": (of_loaders, NUM_LOADERS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--output", type=Path, default=MEASURED_FOLDER / "hostile.csv")
    options = parser.parse_args()
    for part in options.parts:
        simulate, num = PARTS[part]
        found = []
        for each in simulate(num):
            print(*each.values(), *(["disputed"] if each["case"] in DISPUTED else []), sep=", ", flush=True)
            found.append(each)
        add_rows(options.output, found)


if __name__ == "__main__":
    main()
