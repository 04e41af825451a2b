"""How often the statistics err under the noise of tests/generators.py, through the functions that users call.

    PYTHONPATH=.:tests .venv/bin/python tests/simulate.py [sets a case, default 1000]

prints the rates; test_simulations.py holds them to account. tests/false_alarms.py is faster: many sets at once.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy
from generators import CASES, PAIRS, ROUNDS, RUN_SD, Pair, draw, runs

from scripts.stats import stopping_rule
from scripts.stats.families import ThroughputSample, ratios_to_baseline, ratios_to_fastest
from scripts.stats.intervals import RatioEstimate
from scripts.studies.ab import sequential
from scripts.studies.compare import two_days

PUBLISHED = Path(__file__).parents[1] / "results" / "published"
NUM_STRATEGIES = 10
FALSE = ("faster", "slower")


def samples_of(logs: numpy.ndarray) -> dict[str, ThroughputSample]:
    """Strategies "0", "1", ... of logs [strategies, rounds], NaN for a run that is missing; none without any run."""
    found = {}
    for number, row in enumerate(logs):
        kept = numpy.flatnonzero(~numpy.isnan(row))
        if len(kept):
            found[str(number)] = ThroughputSample(row[kept], kept.astype(float).tolist())
    return found


def holds(estimate: RatioEstimate, log_ratio: float = 0.0) -> bool:
    """Whether the interval, if there is one, holds the true ratio."""
    return estimate.low is None or bool(numpy.log(estimate.low) <= log_ratio <= numpy.log(estimate.high))


def family_rates(case: str, num_rounds: int, num_sets: int, num_strategies: int = NUM_STRATEGIES) -> Sequence[float]:
    """[false alarms over the baseline, over the fastest, family covered, median half-width, no verdict], fractions."""
    rng = numpy.random.default_rng(len(case) + 100 * num_rounds)
    false, false_of_fastest, covered = [], [], []
    widths: list[float] = []
    no_verdict: list[bool] = []
    for logs in draw(case, rng, num_sets, num_strategies, num_rounds):
        samples = samples_of(logs)
        if "0" not in samples:
            continue
        over: list[RatioEstimate] = [*ratios_to_baseline("0", samples).values()]
        false.append(any(each.verdict in FALSE for each in over))
        covered.append(all(map(holds, over)))
        false_of_fastest.append(any(each.verdict in FALSE for each in ratios_to_fastest(samples)[1].values()))
        widths += [each.half_width for each in over if each.half_width is not None]
        no_verdict += [each.verdict == "no verdict" for each in over]
    rates = [float(numpy.mean(each)) for each in (false, false_of_fastest, covered)]
    return [*rates, float(numpy.median(widths)) if widths else float("nan"), float(numpy.mean(no_verdict))]


def family_power(num_sets: int, num_rounds: int = 10) -> float:
    """Fraction of sets in which a strategy that is 10 % faster than the baseline is called faster."""
    logs = runs(numpy.random.default_rng(7), num_sets, NUM_STRATEGIES, num_rounds)
    logs[:, 1] += numpy.log(1.1)
    return float(numpy.mean([ratios_to_baseline("0", samples_of(each))["1"].verdict == "faster" for each in logs]))


def until_stops(case: str, num_strategies: int, width: float, num: int, most: int = 40) -> tuple[float, float]:
    """Fraction of sets whose family covers when UNTIL has stopped it, and its rounds on average."""
    rng = numpy.random.default_rng(2)
    covered, used = [], []
    over_first = {str(number): "0" for number in range(1, num_strategies)}
    for logs in draw(case, rng, num, num_strategies, most):
        rounds = stopping_rule.FIRST_LOOK_ROUNDS
        while rounds < most and not stopping_rule.precise_enough(samples_of(logs[:, :rounds]), over_first, width):
            rounds += 1
        family = ratios_to_baseline("0", samples_of(logs[:, :rounds]))
        covered.append(all(map(holds, family.values())))
        used.append(rounds)
    return float(numpy.mean(covered)), float(numpy.mean(used))


def ab_verdicts(
    draw_pair: Callable[[numpy.random.Generator, numpy.ndarray], Pair],
    difference: float,
    num: int,
    limit: float = 0.0,
    seed: int | Sequence[int] = 3,
) -> numpy.ndarray:
    """[num, 5] of comparisons by ./bench ab: whether B is called faster, slower, is slower beyond the limit, and has no
    verdict; and the rounds. draw_pair: one of PAIRS."""
    rng, most = numpy.random.default_rng(seed), sequential.MAX_ROUNDS
    b_first = (rng.random((num, 1)) < 0.5) ^ (numpy.arange(most) % 2 == 1)
    a, b = draw_pair(rng, b_first)
    found = []
    for log_ratios in b - a + numpy.log1p(difference):
        for rounds in range(1, most + 1):
            step = sequential.look_at_rounds(log_ratios[:rounds], limit=limit)
            if not step.more:
                break
        verdict, high = step.estimate.verdict, step.estimate.high
        beyond = high is not None and high < 1 - limit
        found.append([verdict == "faster", verdict == "slower", beyond, verdict == "no verdict", rounds])
    return numpy.array(found, dtype=float)


def one_by_one(case: str, difference: float, num: int, limit: float = 0.0) -> numpy.ndarray:
    """[fraction called faster, called slower, beyond the limit, without a verdict, rounds on average] of ./bench ab."""
    return ab_verdicts(PAIRS[case], difference, num, limit).mean(axis=0)


def seen_between_days(pairs_of_sets: numpy.ndarray, day_sd: float | None) -> numpy.ndarray:
    """bool [num, num_strategies]: whether a difference is seen between two sets, of each strategy.

    pairs_of_sets: logs, [num, 2 or more, num_strategies, num_rounds]: A, B, and those that the day's sd is measured
    from, where it is not given.
    """
    seen = []
    for logs in pairs_of_sets:
        a, b, *others = map(samples_of, logs)
        day = two_days.day_spread(others) if day_sd is None else two_days.DaySpread(day_sd)
        seen.append([each.verdict in FALSE for each in two_days.ratios_between_days(a, b, day).values()])
    return numpy.array(seen)


def day_sets_drawn(
    strategies: int, rounds: int, num: int, day_sd: float, num_sets: int | None, slowdown: float = 0.0
) -> numpy.ndarray:
    """[num, 2 + num_sets, strategies, rounds]: sets of different days. The second has a slower first strategy."""
    rng = numpy.random.default_rng(4)

    def one_set() -> numpy.ndarray:
        return RUN_SD * rng.normal(size=(strategies, rounds)) + day_sd * rng.normal()

    logs = numpy.array([[one_set() for _ in range(2 + (num_sets or 0))] for _ in range(num)])
    logs[:, 1, 0] += numpy.log1p(-slowdown)
    return logs


def day_verdicts(
    strategies: int, rounds: int, num: int, day_sd: float, num_sets: int | None, slowdown: float = 0.0
) -> numpy.ndarray:
    """bool [num]: whether two sets are called different; of one strategy that is slower, where one is. day_sd is
    measured from other sets, or given (None)."""
    logs = day_sets_drawn(strategies, rounds, num, day_sd, num_sets, slowdown)
    seen = seen_between_days(logs, None if num_sets else day_sd)
    return seen[:, 0] if slowdown else seen.any(axis=1)


def day_sets(
    strategies: int, rounds: int, num: int, day_sd: float, num_sets: int | None, slowdown: float = 0.0
) -> float:
    """The fraction of them."""
    return float(day_verdicts(strategies, rounds, num, day_sd, num_sets, slowdown).mean())


def main(num: int) -> None:
    print(f"{num} sets of {NUM_STRATEGIES} strategies a line; percent")
    print("| case | rounds | false, over baseline | false, over fastest | covered | half-width | no verdict |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        for num_rounds in ROUNDS:
            rates = family_rates(case, num_rounds, num)
            print(f"| {case} | {num_rounds} | " + " | ".join(f"{100 * each:.1f}" for each in rates) + " |", flush=True)
    print(f"10 % found: {100 * family_power(num):.1f} % at ten rounds, {100 * family_power(num, 5):.1f} % at five")
    for case in CASES:
        covered, rounds = until_stops(case, 4, 0.1, num // 4)
        print(f"UNTIL=10%, 4 strategies, {case}: covered {100 * covered:.1f} %, {rounds:.1f} rounds", flush=True)
    for case in PAIRS:
        for difference in (0.0, -0.05, -0.10):
            rates = one_by_one(case, difference, num)
            reported = "faster {:.1f}, slower {:.1f}, beyond {:.1f}, no verdict {:.1f} %".format(*(100 * rates[:4]))
            print(f"ab, {case}, difference {100 * difference:g} %: {reported}, {rates[4]:.1f} rounds", flush=True)
    for strategies in (1, 9):
        for num_sets in (None, 3, 5):
            wrong, found = (day_sets(strategies, 10, num // 2, 0.02, num_sets, slow) for slow in (0.0, 0.3))
            reported = f"false {100 * wrong:.1f} %, a slowdown of 30 % found {100 * found:.1f} %"
            print(f"two days, {strategies} strategies, {num_sets or 'given'}: {reported}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
