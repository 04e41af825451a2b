"""How often the suite errs under the noise of tests/hostile_generators_3.py, and in places that no audit looked at.

    PYTHONPATH=.:tests .venv/bin/python tests/hostile_audit_3.py [--parts family ab]

adds to results/measured/hostile_3.csv the parts and cases that it lacks; copied to results/published/measured/, they
become figures of scripts/stats/README.md by `./bench readme`. Each rate has Wilson's 95 % interval. All are equally
fast in truth. Seeded; about five minutes on one core.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile_generators_3
import numpy
from false_alarms import DAY_ROUNDS, MOST_ROUNDS, apply_until
from generators import autoregressive, gaussian
from hostile_audit import WINDOWS_OF_LAUNCH, false_loader_verdicts
from hostile_audit_2 import Cell, Rows, family_rows
from hostile_generators import Pair
from simulate import FALSE, ab_verdicts, seen_between_days

from scripts.sets.accuracy import SIGNIFICANCE_LEVEL
from scripts.stats.intervals import geometric_mean, mean_interval
from scripts.stats.proportions import fisher_p_value, interval_over_seeds, wilson_interval
from scripts.studies.ab.sequential import MAX_ROUNDS, look_at_rounds
from scripts.studies.loaders.measure_loader_limit import LAUNCHES as NUM_LAUNCHES
from scripts.studies.measured_csv import MEASURED_FOLDER, add_rows, read_whole_rows

NUM_SETS = 1000
SEED = 1
STRATEGIES = (2, 6, 40)
"""A pair, a few, and a sweep of 40 values."""
ROUNDS = (5, 10)
CLEAN = "rounds and runs are normal"
BUDGET_RUNS = 25.0
DAY_SDS = {"days of two kinds": 0.03, "a rare bad day": 0.037, "days are exponential": 0.02}
SMALL_DAYS = "normal days of a third of a run"
CORRELATIONS = {f"AR({each}) ratio": each for each in (0.2, 0.3, 0.4, 0.5)}
TOP_1 = {
    f"{case}, {images} images": (case, images) for case in hostile_generators_3.ACCURACIES for images in (132, 2000)
}
PEAKS = {"peak measured twice": 2, "peak measured four times": 4}


def _logs(case: str, rng: numpy.random.Generator, num: int, strategies: int, rounds: int) -> numpy.ndarray:
    if case == CLEAN:
        return gaussian(rng, num, strategies, rounds)
    return hostile_generators_3.draw(case, rng, num, strategies, rounds)


def of_families(case: str, num: int, seed: int) -> Rows:
    """How often a report errs over the first, over the fastest or over either, and how often it says nothing."""
    for strategies in STRATEGIES:
        for rounds in ROUNDS:
            cell = Cell("family", case, strategies, rounds, seed)
            rng = numpy.random.default_rng(cell.seeds)
            yield from family_rows(cell, _logs(case, rng, num, strategies, rounds))


def of_until(case: str, num: int, seed: int) -> Rows:
    """How often a family has no false interval when `--until 10%` has stopped it; noise is so large that it matters."""
    for strategies in (2, 4):
        cell = Cell("until", case, strategies, MOST_ROUNDS, seed)
        rng = numpy.random.default_rng(cell.seeds)
        logs = _logs(case, rng, num // 2, strategies, MOST_ROUNDS)
        false_alarms, undecided, _ = apply_until((2 if case == CLEAN else 4) * logs)
        yield from cell.rows(covered=~false_alarms, no_verdict=undecided)


def of_ab(case: str, num: int, seed: int) -> Rows:
    """How often `./bench ab` errs, how often it says nothing, and the same where a budget ends it."""
    cell = Cell("ab", case, 2, MAX_ROUNDS, seed)
    found = ab_verdicts(hostile_generators_3.PAIRS[case], 0.0, num, seed=cell.seeds)
    yield from cell.rows(false_alarms=found[:, :2].any(axis=1), no_verdict=found[:, 3] > 0)
    rng = numpy.random.default_rng(cell.seeds)
    b_first = (rng.random((num, 1)) < 0.5) ^ (numpy.arange(MAX_ROUNDS) % 2 == 1)
    a, b = hostile_generators_3.PAIRS[case](rng, b_first)
    last = hostile_generators_3.rounds_in_budget((a - a.mean(), b - a.mean()), BUDGET_RUNS)
    verdicts = numpy.array([_verdict_at(logs, int(rounds)) for logs, rounds in zip(b - a, last, strict=True)])
    yield from cell.rows(
        false_alarms_with_budget=numpy.isin(verdicts, FALSE), no_verdict_with_budget=verdicts == "no verdict"
    )


def _verdict_at(log_ratios: numpy.ndarray, last: int) -> str:
    """Of a comparison that its answer ends, or its budget after this round."""
    for rounds in range(1, last + 1):
        step = look_at_rounds(log_ratios[:rounds])
        if not step.more:
            break
    return step.estimate.verdict if last else "no verdict"


def of_memory(case: str, num: int, seed: int) -> Rows:
    """How often `./bench ab` errs where the ratio is AR(1)."""

    def draw_pair(rng: numpy.random.Generator, b_first: numpy.ndarray) -> Pair:
        ratio = hostile_generators_3.RUN_SD * autoregressive(rng, b_first.shape, CORRELATIONS[case])
        return -ratio / 2, ratio / 2

    cell = Cell("memory", case, 2, MAX_ROUNDS, seed)
    found = ab_verdicts(draw_pair, 0.0, 4 * num, seed=cell.seeds)
    yield from cell.rows(false_alarms=found[:, :2].any(axis=1), no_verdict=found[:, 3] > 0)


def of_days(case: str, num: int, seed: int) -> Rows:
    """Two sets of two days; the day's sd is given, or measured from three others."""
    for strategies in (1, 9):
        cell, num_pairs = Cell("days", case, strategies, DAY_ROUNDS, seed), num // 2
        rng, shape = numpy.random.default_rng(cell.seeds), (num_pairs, strategies, 5)
        small = hostile_generators_3.RUN_SD / 3
        if case == SMALL_DAYS:
            days = numpy.broadcast_to(small * rng.normal(size=(num_pairs, 1, 5)), shape)
        else:
            days = hostile_generators_3.DAYS[case](rng, shape)
        runs = hostile_generators_3.own(rng, (num_pairs, 5, strategies, DAY_ROUNDS))
        logs = runs + days.swapaxes(1, 2)[..., None]
        for quantity, day_sd in (("false_with_sd_given", DAY_SDS.get(case, small)), ("false_with_three_sets", None)):
            yield from cell.rows(**{quantity: seen_between_days(logs, day_sd).any(axis=1)})


def of_loaders(case: str, num: int, seed: int) -> Rows:
    """How often the loader's verdict errs."""
    cell = Cell("loader", case, 1, NUM_LAUNCHES, seed)
    rng = numpy.random.default_rng(cell.seeds)
    logs = hostile_generators_3.windows(rng, num // 2, NUM_LAUNCHES, WINDOWS_OF_LAUNCH, case)
    yield from cell.rows(false_alarms=false_loader_verdicts(logs))


def of_accuracies(case: str, num: int, seed: int) -> Rows:
    """How often the interval of top-1 holds the accuracy over all seeds and images. num_rounds: of seeds."""
    kind, images = TOP_1[case]
    truth = hostile_generators_3.ACCURACIES[kind]
    for seeds in (1, 2, 3):
        cell = Cell("top-1", case, 1, seeds, seed)
        rng = numpy.random.default_rng(cell.seeds)
        counts = hostile_generators_3.correct_images(rng, num // 2, seeds, images, kind)
        ends = [
            wilson_interval(int(each[0]), images) if seeds == 1 else interval_over_seeds(each / images, images)
            for each in counts
        ]
        yield from cell.rows(covered=numpy.array([low <= truth <= high for low, high in ends]))


def of_furthest_apart(case: str, num: int, seed: int) -> Rows:
    """How often the best and the worst of 18 equal strategies are said to differ, whose answers are independent."""
    cell, images = Cell("furthest apart", case, 18, 1, seed), int(case.split()[0].replace(",", ""))
    rng = numpy.random.default_rng(cell.seeds)
    differ: list[bool] = []
    for counts in rng.binomial(images, 0.5, size=(num, 18)):
        p_value = fisher_p_value((int(counts.max()), images), (int(counts.min()), images))
        differ.append(p_value * math.comb(18, 2) < SIGNIFICANCE_LEVEL)
    yield from cell.rows(differ=numpy.array(differ))


def of_mfu(case: str, num: int, seed: int) -> Rows:
    """How often the ends of MFU hold the true one: five runs, and a peak that is measured as unsteadily as a run."""
    cell = Cell("mfu", case, 1, 5, seed)
    rng = numpy.random.default_rng(cell.seeds)
    runs, peaks = hostile_generators_3.own(rng, (num, 5)), hostile_generators_3.own(rng, (num, PEAKS[case]))
    ends = numpy.array([mean_interval(each)[1:] for each in runs], dtype=float)
    yield from cell.rows(covered=(ends[:, 0] - peaks.max(axis=1) <= 0) & (ends[:, 1] - peaks.min(axis=1) >= 0))


def of_builds(case: str, num: int, seed: int) -> Rows:
    """How often the interval over nine pairs of three builds holds the ratio, where a build has a level of its own."""
    cell = Cell("cuts", case, 2, 9, seed)
    rng = numpy.random.default_rng(cell.seeds)
    logs = hostile_generators_3.own(rng, (num, 3, 3)) + hostile_generators_3.own(rng, (num, 3, 1))
    ends = numpy.array([geometric_mean(each.ravel())[1:] for each in logs])
    yield from cell.rows(covered=(ends[:, 0] <= 1) & (ends[:, 1] >= 1))


UNTIL = (CLEAN, "throttling with recovery", "boost comes and goes", "mostly equal", "AR(0.3) strategies")
PARTS: dict[str, tuple[Callable[[str, int, int], Rows], tuple[str, ...]]] = {
    "family": (of_families, (CLEAN, *hostile_generators_3.CASES)),
    "ab": (of_ab, (*hostile_generators_3.PAIRS,)),
    "memory": (of_memory, (*CORRELATIONS,)),
    "days": (of_days, (*hostile_generators_3.DAYS, SMALL_DAYS)),
    "furthest apart": (of_furthest_apart, ("132 images", "10,000 images")),
    "mfu": (of_mfu, (*PEAKS,)),
    "cuts": (of_builds, ("builds differ as windows do",)),
    "top-1": (of_accuracies, (*TOP_1,)),
    "loader": (of_loaders, hostile_generators_3.WINDOWS),
    "until": (of_until, UNTIL),
}
"""The rows of a part and case, in turn: simulate(case, num_sets, seed); and the cases."""


def simulate_missing(path: Path, only: list[str], num: int = NUM_SETS) -> Iterator[list[dict[str, Any]]]:
    """Add the rows of each case of these parts that the file lacks; each is whole or not there."""
    done = {(row["what"], row["case"]) for row in read_whole_rows(path)}
    for part in only:
        simulate, cases = PARTS[part]
        for case in cases:
            if (part, case) not in done:
                rows = [*simulate(case, num, SEED)]
                add_rows(path, rows)
                yield rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--sets", type=int, default=NUM_SETS)
    parser.add_argument("--output", type=Path, default=MEASURED_FOLDER / "hostile_3.csv")
    options = parser.parse_args()
    for rows in simulate_missing(options.output, options.parts, options.sets):
        for each in rows:
            print(*each.values(), sep=", ", flush=True)


if __name__ == "__main__":
    main()
