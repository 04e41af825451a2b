"""How often the suite errs under the noise of tests/hostile_generators_2.py, and other rates that READMEs tell, as CSV.

    PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit_2.py [--cases "two modes" "plain"]

adds the cases that results/measured/hostile_2.csv lacks, one after the other, so that it can be stopped and started
again; copied to results/published/measured/, they become figures of scripts/stats/README.md by `./bench readme`. Each
rate has Wilson's 95 % interval. All are equally fast in truth, but for the parts `shown` and `planned`. Seeded.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import generators
import hostile_generators_2
import numpy
from false_alarms import MOST_ROUNDS, WANDERS, apply_until, false_over_fastest, families, over_first
from generators import RUN_SD, pair_gaussian, runs
from scipy.special import nctdtrinc
from simulate import ab_verdicts

from scripts.stats.intervals import POWER, sidak_critical_value
from scripts.stats.proportions import wilson_interval
from scripts.studies.ab.sequential import FIRST_LOOK, MAX_ROUNDS
from scripts.studies.measured_csv import MEASURED_FOLDER, add_rows, read_whole_rows
from scripts.studies.power.rounds_needed import ROUNDS_LIMIT, fewest_rounds

NUM_SETS = 4000
SEED = 1
STRATEGIES = (3, 9, 16)
ROUNDS = (5, 10)
NUM_NULL = 20_000  # sets of independent runs, which say what a pooled statistic has to exceed
PILOT_ROUNDS = 5
PILOT_SDS = {"sd of a run 2 %": 0.02, "sd of a run 4 %": 0.04, "sd of a run 6 %": 0.06}
FIRST_LOOKS = {"first look after 10 rounds": 10, "first look after 6 rounds": 6}
Rows = Iterator[dict[str, Any]]


class Cell(NamedTuple):
    """What a rate is of. Its random numbers depend on all but `what`."""

    what: str
    case: str
    num_strategies: int
    num_rounds: int
    seed: int

    @property
    def seeds(self) -> list[int]:
        """For numpy.random.default_rng."""
        return [self.seed, self.num_strategies, self.num_rounds, *self.case.encode()]

    def rows(self, **found: numpy.ndarray) -> Rows:
        """A row a quantity, of bool [num_sets]; none where there is no set, as of sets with a verdict."""
        for quantity, each in found.items():
            if each.size:
                percents = (each.mean(), *wilson_interval(int(each.sum()), each.size))
                names = ("rate_percent", "low_percent", "high_percent")
                rates = {name: f"{100 * value:.2f}" for name, value in zip(names, percents, strict=True)}
                yield self._asdict() | {"quantity": quantity, **rates, "num_sets": each.size}


def of_families(case: str, num: int, seed: int) -> Rows:
    """How often a report errs over the first, over the fastest or over either, and how often it says nothing."""
    known = generators if case in generators.CASES else hostile_generators_2
    for strategies in STRATEGIES:
        for rounds in ROUNDS:
            cell = Cell("family", case, strategies, rounds, seed)
            yield from family_rows(
                cell, known.draw(case, numpy.random.default_rng(cell.seeds), num, strategies, rounds)
            )


def family_rows(cell: Cell, logs: numpy.ndarray) -> Rows:
    found, over_fastest = families(logs, over_first(cell.num_strategies)), false_over_fastest(logs)
    decided = ~numpy.isnan(found.half_widths).all(axis=1) & ~found.undecided
    return cell.rows(
        false_over_first=found.false_alarms,
        false_over_fastest=over_fastest,
        false_over_either=found.false_alarms | over_fastest,
        no_verdict=~decided,
        false_over_first_of_decided=found.false_alarms[decided],
    )


def of_until(case: str, num: int, seed: int) -> Rows:
    """How often a family has no false interval when `--until 10%` has stopped it or given up."""
    cell = Cell("until", case, 4, MOST_ROUNDS, seed)
    logs = generators.draw(WANDERS, numpy.random.default_rng(cell.seeds), num, cell.num_strategies, cell.num_rounds)
    false_alarms, undecided, stopped = apply_until(logs, FIRST_LOOKS[case])
    of_stopped = ~false_alarms[stopped < MOST_ROUNDS]
    yield from cell.rows(covered=~false_alarms, no_verdict=undecided, covered_of_stopped=of_stopped)


def of_ab(case: str, num: int, seed: int) -> Rows:
    """How often `./bench ab` errs, and how often it says nothing."""
    cell = Cell("ab", case, 2, MAX_ROUNDS, seed)
    found = ab_verdicts(hostile_generators_2.PAIRS[case], 0.0, num, seed=cell.seeds)
    yield from cell.rows(false_alarms=found[:, :2].any(axis=1), no_verdict=found[:, 3] > 0)


def of_shown(case: str, num: int, seed: int) -> Rows:
    """The difference that a report calls found with 80 % power, of the strategy that is the noisiest by chance and of
    the quietest, planted into a further set."""
    for rounds in ROUNDS:
        cell = Cell("shown", case, 11, rounds, seed)
        rng, critical = numpy.random.default_rng(cell.seeds), sidak_critical_value(10, rounds - 1)
        first, second = (families(runs(rng, num, 11, rounds), over_first(11)) for _ in range(2))
        shown = nctdtrinc(rounds - 1, 1 - POWER, critical) * first.half_widths / critical
        seen = (second.log_ratios + shown > second.half_widths) & ~second.undecided[:, None]
        of_noisiest, of_quietest = (
            numpy.take_along_axis(seen, place[:, None], axis=1)[~first.undecided]
            for place in (shown.argmax(axis=1), shown.argmin(axis=1))
        )
        yield from cell.rows(found_of_noisiest=of_noisiest, found_of_quietest=of_quietest)


def of_planned(case: str, num: int, seed: int) -> Rows:
    """10 % planted into sets of as many rounds as `./bench power` asks for from the spread of a set of few rounds;
    and where that set was among the quietest quarter by chance."""
    scale = PILOT_SDS[case] / RUN_SD
    for strategies in (2, 11):
        cell, pairs = Cell("planned", case, strategies, PILOT_ROUNDS, seed), over_first(strategies)
        rng = numpy.random.default_rng(cell.seeds)
        pilot = scale * runs(rng, num, strategies, PILOT_ROUNDS)
        sds = numpy.sqrt((pilot[:, pairs[:, 0]] - pilot[:, pairs[:, 1]]).var(axis=2, ddof=1).mean(axis=1))
        rounds = numpy.array([fewest_rounds(0.1, sd, strategies - 1) or ROUNDS_LIMIT for sd in sds])
        seen = numpy.zeros(num, dtype=bool)
        for each in numpy.unique(rounds):
            place = numpy.flatnonzero(rounds == each)
            logs = scale * runs(rng, len(place), strategies, int(each))
            logs[:, 1] += numpy.log(1.1)
            found = families(logs, pairs)
            seen[place] = (found.log_ratios > found.half_widths)[:, 0] & ~found.undecided
        yield from cell.rows(found=seen, found_where_quiet=seen[sds <= numpy.quantile(sds, 0.25)])


# --- methods that the suite does not have -----------------------------------------------------------------------------


def of_ordinary_t(case: str, num: int, seed: int) -> Rows:
    """Student's t as it is for independent rounds, without a check of their order, and from three rounds on."""
    for strategies in (2, 4, 10):
        for rounds in (3, *ROUNDS):
            cell = Cell("ordinary t", case, strategies, rounds, seed)
            logs = generators.draw(case, numpy.random.default_rng(cell.seeds), num, strategies, rounds)
            found = ordinary_t(logs[:, 1:] - logs[:, :1]) > sidak_critical_value(strategies - 1, rounds - 1)
            yield from cell.rows(false_over_first=found.any(axis=1))


def ordinary_t(differences: numpy.ndarray) -> numpy.ndarray:
    """|t| over the last axis."""
    errors = differences.std(axis=-1, ddof=1) / numpy.sqrt(differences.shape[-1])
    return numpy.abs(differences.mean(axis=-1)) / errors


def of_pooled_variance(case: str, num: int, seed: int) -> Rows:
    """One variance for all pairs, from what strategies and rounds leave; at 5 % under independent runs."""
    for rounds in ROUNDS:
        cell = Cell("pooled variance", case, 10, rounds, seed)
        rng = numpy.random.default_rng(cell.seeds)
        critical = numpy.quantile(pooled_statistic(runs(rng, NUM_NULL, 10, rounds)), 0.95)
        found = pooled_statistic(generators.draw(case, rng, num, 10, rounds)) > critical
        yield from cell.rows(false_over_first=found)


def pooled_statistic(logs: numpy.ndarray) -> numpy.ndarray:
    """[num_sets]: the largest difference from the first strategy, in standard deviations of a run."""
    means = logs.mean(axis=2)
    rest = logs - means[..., None] - logs.mean(axis=1, keepdims=True) + means.mean(axis=1)[:, None, None]
    sd = numpy.sqrt((rest**2).sum(axis=(1, 2)))  # but for a constant factor
    return numpy.abs(means[:, 1:] - means[:, :1]).max(axis=1) / sd


def of_ordinary_looks(case: str, num: int, seed: int) -> Rows:
    """Ordinary intervals at each look of `./bench ab`."""
    cell = Cell("ordinary looks", case, 2, MAX_ROUNDS, seed)
    a, b = pair_gaussian(numpy.random.default_rng(cell.seeds), numpy.zeros((num, MAX_ROUNDS)))
    looks = range(FIRST_LOOK, MAX_ROUNDS + 1, 2)
    found = [ordinary_t((b - a)[:, :rounds]) > sidak_critical_value(1, rounds - 1) for rounds in looks]
    yield from cell.rows(false_alarms=numpy.any(found, axis=0))


PARTS: dict[str, tuple[Callable[[str, int, int], Rows], tuple[str, ...]]] = {
    "family": (of_families, (*hostile_generators_2.CASES, WANDERS)),
    "until": (of_until, (*FIRST_LOOKS,)),
    "ab": (of_ab, (*hostile_generators_2.PAIRS,)),
    "shown": (of_shown, ("independent runs",)),
    "planned": (of_planned, (*PILOT_SDS,)),
    "ordinary t": (of_ordinary_t, (WANDERS, "two speeds")),
    "pooled variance": (of_pooled_variance, ("one strategy 4x noisier", "baseline 4x noisier")),
    "ordinary looks": (of_ordinary_looks, ("Gaussian",)),
}
"""The rows of a part and case, in turn: simulate(case, num_sets, seed); and the cases."""


def simulate_missing(path: Path, only: list[str] | None = None, num: int = NUM_SETS) -> Iterator[list[dict[str, Any]]]:
    """Add the rows of each part and case that the file lacks, all cases or some; each is whole or not there."""
    done = {(row["what"], row["case"]) for row in read_whole_rows(path)}
    for part, (simulate, cases) in PARTS.items():
        for case in cases:
            if (part, case) not in done and (only is None or case in only):
                rows = [*simulate(case, num, SEED)]
                add_rows(path, rows)
                yield rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices={case for _, cases in PARTS.values() for case in cases})
    parser.add_argument("--output", type=Path, default=MEASURED_FOLDER / "hostile_2.csv")
    options = parser.parse_args()
    for rows in simulate_missing(options.output, options.cases):
        for each in rows:
            print(*each.values(), sep=", ", flush=True)


if __name__ == "__main__":
    main()
