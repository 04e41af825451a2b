"""False alarms, coverage and half-widths of the families under the noise of generators.py, through what users call.

    PYTHONPATH=.:tests/stats .venv/bin/python tests/stats/method_table.py [sets a case, default 1000]

A line a case and number of rounds: percent of sets with a false alarm over the baseline, and over the fastest; percent
whose intervals over the baseline all hold the truth; the median half-width of one, in percent; percent of "no verdict".
The last line is the power: a strategy that is 10 % faster, 10 strategies, 10 rounds, 4 % from run to run.
"""

import sys
from collections.abc import Sequence

import numpy
from generators import CASES, ROUNDS, draw, runs

from scripts.stats.families import Sample, ratios_to_baseline, ratios_to_fastest
from scripts.stats.intervals import RatioEstimate

NUM_STRATEGIES = 10
FALSE = ("faster", "slower")


def make_samples(logs: numpy.ndarray) -> dict[str, Sample]:
    """Strategies "0", "1", ... of logs [strategies, rounds]; a strategy without any run is left out."""
    found = {}
    for number, row in enumerate(logs):
        kept = numpy.flatnonzero(~numpy.isnan(row))
        if len(kept):
            found[str(number)] = Sample(row[kept], kept.astype(float).tolist())
    return found


def family_rates(case: str, num_rounds: int, num_sets: int) -> Sequence[float]:
    """[false alarms over the baseline, over the fastest, family covered, median half-width, no verdict], fractions."""
    rng = numpy.random.default_rng(len(case) + 100 * num_rounds)
    false, false_of_fastest, covered = [], [], []
    widths: list[float] = []
    no_verdict: list[bool] = []
    for logs in draw(case, rng, num_sets, NUM_STRATEGIES, num_rounds):
        samples = make_samples(logs)
        if "0" not in samples:
            continue
        over: list[RatioEstimate] = [*ratios_to_baseline("0", samples).values()]
        false.append(any(each.verdict in FALSE for each in over))
        covered.append(all(each.low is None or each.high is None or each.low <= 1 <= each.high for each in over))
        false_of_fastest.append(any(each.verdict in FALSE for each in ratios_to_fastest(samples)[1].values()))
        widths += [each.half_width for each in over if each.half_width is not None]
        no_verdict += [each.verdict == "no verdict" for each in over]
    return [float(numpy.mean(each)) for each in (false, false_of_fastest, covered)] + [
        float(numpy.median(widths)) if widths else float("nan"),
        float(numpy.mean(no_verdict)),
    ]


def power(num_sets: int, num_rounds: int = 10) -> float:
    """Fraction of sets in which a strategy that is 10 % faster than the baseline is called faster."""
    logs = runs(numpy.random.default_rng(7), num_sets, NUM_STRATEGIES, num_rounds)
    logs[:, 1] += numpy.log(1.1)
    return float(numpy.mean([ratios_to_baseline("0", make_samples(each))["1"].verdict == "faster" for each in logs]))


def main(num_sets: int) -> None:
    print(f"{num_sets} sets of {NUM_STRATEGIES} strategies a line; percent")
    print("| case | rounds | false, over baseline | false, over fastest | covered | half-width | no verdict |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        for num_rounds in ROUNDS:
            rates = family_rates(case, num_rounds, num_sets)
            print(f"| {case} | {num_rounds} | " + " | ".join(f"{100 * each:.1f}" for each in rates) + " |", flush=True)
    print(f"power: {100 * power(num_sets):.1f} % find 10 % at ten rounds, {100 * power(num_sets, 5):.1f} % at five")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
