"""Noise like that of the published sets, and worse, and how often the statistics err under it.

    PYTHONPATH=. .venv/bin/python tests/simulate.py [simulations, default 2000]

prints the table that test_simulations.py holds to account. All of it goes through the functions that users call.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy

from scripts.sets import power
from scripts.sets.result_set import load_set
from scripts.stats import families, two_days
from scripts.stats.families import Sample
from scripts.studies.ab import sequential

PUBLISHED = Path(__file__).parents[1] / "results" / "published"
NUM_WINDOWS = 5


def measured_noise() -> tuple[float, float]:
    """sd of log throughput between runs and between windows of a run, pooled over the published sets' strategies."""
    between, within = [], []
    for folder in sorted(path.parent for path in PUBLISHED.glob("*/runs.csv")):
        for group in load_set(folder).groups:
            if len(group.samples) > 1:
                rates = [numpy.log(windows[:, 0] / windows[:, 1]) for windows in group.samples]
                within.append(numpy.mean([rate.var(ddof=1) for rate in rates]))
                means = numpy.var([rate.mean() for rate in rates], ddof=1)
                between.append(max(0.0, means - within[-1] / len(rates[0])))
    return float(numpy.sqrt(numpy.mean(between))), float(numpy.sqrt(numpy.mean(within)))


BETWEEN_RUNS, WITHIN_RUN = measured_noise()

Noise = Callable[[numpy.random.Generator, int, int], numpy.ndarray]
"""Noise of log throughput, float64 [strategies, rounds], of one session. Order in a round is random."""


def gaussian(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    return of_runs(rng, strategies, rounds) + of_windows(rng, strategies, rounds).mean(axis=2)


def correlated_windows(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    """Windows of one run follow one another with a correlation of 0.8: their mean is hardly steadier than one."""
    windows = of_windows(rng, strategies, rounds)
    for before in range(NUM_WINDOWS - 1):
        windows[..., before + 1] = 0.8 * windows[..., before] + 0.6 * windows[..., before + 1]
    return of_runs(rng, strategies, rounds) + windows.mean(axis=2)


def spikes(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    """Every 20th window takes 1.5 times as long, on average."""
    shape = (strategies, rounds, NUM_WINDOWS)
    longer = (rng.random(shape) < 0.05) * rng.exponential(0.5, shape)
    return gaussian(rng, strategies, rounds) - numpy.log1p(longer.mean(axis=2))


def bimodal(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    """3 of 10 runs are 10 % slower from start to end, as where memory lies badly."""
    return gaussian(rng, strategies, rounds) - 0.1 * (rng.random((strategies, rounds)) < 0.3)


def drift(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    """The machine gets 10 % slower over the session, and wanders by 1 % from run to run."""
    num_runs = strategies * rounds
    path = numpy.cumsum(0.01 * rng.normal(size=num_runs)) - 0.1 * numpy.arange(num_runs) / num_runs
    shuffled = rng.permuted(path.reshape(rounds, strategies), axis=1)
    return gaussian(rng, strategies, rounds) + shuffled.T


def one_noisy(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    """The second strategy is 3 times as noisy as the others."""
    return _noisier(rng, strategies, rounds, 1)


def noisy_baseline(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    """The first strategy, which the others are over, is 3 times as noisy as they."""
    return _noisier(rng, strategies, rounds, 0)


def _noisier(rng: numpy.random.Generator, strategies: int, rounds: int, which: int) -> numpy.ndarray:
    return gaussian(rng, strategies, rounds) * numpy.where(numpy.arange(strategies) == which, 3.0, 1.0)[:, None]


def of_runs(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    return BETWEEN_RUNS * rng.normal(size=(strategies, rounds))


def of_windows(rng: numpy.random.Generator, strategies: int, rounds: int) -> numpy.ndarray:
    return WITHIN_RUN * rng.normal(size=(strategies, rounds, NUM_WINDOWS))


MODELS: dict[str, Noise] = {
    "Gaussian": gaussian,
    "AR(0.8) windows": correlated_windows,
    "spikes": spikes,
    "bimodal runs": bimodal,
    "drift": drift,
}
NOISIER: dict[str, Noise] = {"one noisy": one_noisy, "noisy baseline": noisy_baseline}
"""Where the promise of 1 of 20 does not hold with few rounds, since the spread is pooled that is not one."""


def samples_of(logs: numpy.ndarray, missing: int = 0) -> dict[str, Sample]:
    """Strategies "0", "1", ... of logs [strategies, rounds]; the last lacks its first `missing` rounds."""
    rounds = numpy.arange(logs.shape[1])
    found = {str(number): Sample(row, rounds.tolist()) for number, row in enumerate(logs)}
    last = str(len(logs) - 1)
    return found | {last: Sample(logs[-1, missing:], rounds[missing:].tolist())}


def family_errors(noise: Noise, strategies: int, rounds: int, num: int, missing: int = 0) -> numpy.ndarray:
    """Fractions of `num` sets with a false verdict of equal strategies, and with all intervals right of unequal ones.

    [false of Dunnett, false of Tukey, covered by Dunnett, covered by Tukey].
    """
    rng = numpy.random.default_rng(1)
    speeds = numpy.linspace(0, 0.4, strategies)
    found = []
    for _ in range(num):
        logs = noise(rng, strategies, rounds)
        equal = samples_of(logs, missing)
        unequal = samples_of(logs + speeds[:, None], missing)
        over_first = families.ratios_to_baseline("0", unequal)
        pairs = families.ratios_of_all_pairs(unequal)
        found.append(
            [
                any(each.verdict != "no difference seen" for each in families.ratios_to_baseline("0", equal).values()),
                any(each.verdict != "no difference seen" for each in families.ratios_to_fastest(equal)[1].values()),
                all(holds(each, speeds[int(of)]) for of, each in over_first.items()),
                all(holds(each, speeds[int(of)] - speeds[int(to)]) for (of, to), each in pairs.items()),
            ]
        )
    return numpy.mean(found, axis=0)


def holds(estimate, log_ratio: float) -> bool:
    """Whether the interval holds the true ratio."""
    return bool(numpy.log(estimate.low) <= log_ratio <= numpy.log(estimate.high))


def until_stops(noise: Noise, strategies: int, width: float, num: int, most: int = 40) -> tuple[float, float]:
    """Fraction of sets whose family covers when UNTIL has stopped it, and its rounds on average."""
    rng = numpy.random.default_rng(2)
    covered, used = [], []
    over_first = {str(number): "0" for number in range(1, strategies)}
    for _ in range(num):
        logs = noise(rng, strategies, most)
        rounds = 2
        while rounds < most and not power.precise_enough(samples_of(logs[:, :rounds]), over_first, width):
            rounds += 1
        family = families.ratios_to_baseline("0", samples_of(logs[:, :rounds]))
        covered.append(all(holds(each, 0.0) for each in family.values()))
        used.append(rounds)
    return float(numpy.mean(covered)), float(numpy.mean(used))


def one_by_one(noise: Noise, difference: float, num: int, scale: float = 1.0, limit: float = 0.0) -> numpy.ndarray:
    """[fraction called faster, fraction called slower, fraction beyond the limit, rounds] of ./bench ab."""
    rng = numpy.random.default_rng(3)
    found = []
    for _ in range(num):
        a, b = noise(rng, 2, sequential.MAX_ROUNDS) * scale
        log_ratios = b - a + numpy.log1p(difference)
        for rounds in range(1, len(log_ratios) + 1):
            step = sequential.look_at_rounds(log_ratios[:rounds], limit=limit)
            if not step.more:
                break
        verdict = step.estimate.verdict
        found.append([verdict == "faster", verdict == "slower", step.estimate.high < 1 - limit, rounds])
    return numpy.mean(found, axis=0)


def day_sets(strategies: int, rounds: int, num: int, day_sd: float, num_sets: int | None) -> float:
    """Fraction of pairs of equal sets with a false verdict; day_sd is measured from other sets, or given (None)."""
    rng = numpy.random.default_rng(4)
    wrong = []
    for _ in range(num):
        sets = [
            samples_of(gaussian(rng, strategies, rounds) + day_sd * rng.normal()) for _ in range(2 + (num_sets or 0))
        ]
        day = two_days.day_spread(sets[2:]) if num_sets else two_days.DaySpread(day_sd)
        verdicts = [each.verdict for each in two_days.ratios_between_days(*sets[:2], day).values()]
        wrong.append(any(verdict != "no difference seen" for verdict in verdicts))
    return float(numpy.mean(wrong))


def family_table(num: int) -> list[str]:
    lines = ["model            strategies rounds   false: Dunnett  Tukey   family covered: Dunnett  Tukey"]
    for name, noise in (MODELS | NOISIER).items():
        for strategies, rounds in ((10, 3), (4, 5)) if name in MODELS else ((10, 3), (10, 5), (10, 10), (4, 5)):
            rates = 100 * family_errors(noise, strategies, rounds, num)
            lines.append(
                "{:<16} {:>10} {:>6} {:>16.1f} {:>6.1f} {:>25.1f} {:>6.1f}".format(name, strategies, rounds, *rates)
            )
    return lines


def main(num: int) -> None:
    print(f"{num} simulations; sd between runs {100 * BETWEEN_RUNS:.1f} %, between windows {100 * WITHIN_RUN:.1f} %")
    print(*family_table(num), sep="\n")
    scale = 0.04 / numpy.hypot(BETWEEN_RUNS, WITHIN_RUN / NUM_WINDOWS**0.5)
    for name, noise in MODELS.items():
        covered, rounds = until_stops(noise, 4, 0.07, num)
        print(f"UNTIL=7%, 4 strategies, {name}: covered {100 * covered:.1f} %, {rounds:.1f} rounds")
        for difference in (0.0, -0.05):
            faster, slower, _, rounds = one_by_one(noise, difference, num, scale)
            told = f"faster {100 * faster:.1f} %, slower {100 * slower:.1f} %, {rounds:.1f} rounds"
            print(f"ab, sd 4 %, difference {100 * difference:g} %, {name}: {told}")
    for strategies in (1, 9):
        for rounds in (3, 5, 10):
            cases = [day_sets(strategies, rounds, num, 0.02, num_sets) for num_sets in (None, 3, 5)]
            told = ", ".join(f"{100 * each:.1f}" for each in cases)
            print(
                f"two days, {strategies} strategies, {rounds} rounds: false with sd given, from 3 and 5 sets: {told} %"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
