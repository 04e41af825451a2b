"""How many rounds does it take to see a difference of 2, 5 or 10 %, with the spread that a result set has?

    ./bench power --results results/x

Found means: with 80 % power, by the simultaneous intervals of all strategies over their baseline, were the spread
known and the rounds surely repeats. The spread of few rounds is itself uncertain, and some sets have no verdict: the
numbers are a guide. Needs no torch.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import tyro
from scipy.special import nctdtrinc

from benchmarks.common.errors import UserError
from scripts.options.set_options import PowerOptions
from scripts.results.families import Pair, ThroughputSample, log_table
from scripts.results.formatting import format_duration
from scripts.results.intervals import MIN_ROUNDS, POWER, sidak_critical_value
from scripts.results.result_set import ResultSet, load_set
from scripts.shared.programs import exit_code, run_main_and_exit

DIFFERENCES = (0.02, 0.05, 0.10)
ROUNDS_LIMIT = 1000


@functools.cache
def needed_sds(num_comparisons: int, rounds: int) -> float:
    """How many standard deviations of a round's log ratio a difference has to be to be found."""
    limit = sidak_critical_value(num_comparisons, rounds - 1)
    return float(nctdtrinc(rounds - 1, 1 - POWER, limit)) / math.sqrt(rounds)


def smallest_difference(sd: float, num_comparisons: int, rounds: int) -> float:
    """The difference, as a fraction, that so many rounds find with 80 % power; sd: of a round's log ratio."""
    return math.expm1(sd * needed_sds(num_comparisons, rounds))


def fewest_rounds(difference: float, sd: float, num_comparisons: int) -> int | None:
    """Fewest rounds that find a difference, such as 0.05, with 80 % power; None beyond ROUNDS_LIMIT."""
    largest = math.log1p(difference) / sd if sd else math.inf
    return next((n for n in range(MIN_ROUNDS, ROUNDS_LIMIT + 1) if needed_sds(num_comparisons, n) <= largest), None)


def ratio_spreads(samples: Mapping[str, ThroughputSample], pairs: Sequence[Pair]) -> dict[Pair, float]:
    """sd of the log ratio of a round, of each pair that has two rounds or more in common."""
    found = {}
    for of, to in pairs:
        first, second = log_table({of: samples[of], to: samples[to]})
        differences = (first - second)[~numpy.isnan(first - second)]
        if len(differences) > 1:
            found[of, to] = float(differences.std(ddof=1))
    return found


def report_lines(results: ResultSet, found: dict[str, Any] | None = None) -> list[str]:
    """Lines of text, of the family that the report shows: those with a baseline; of all without one. Raises UserError
    for a set without two strategies, without a spread, or that contradicts itself. found: gets the numbers."""
    results.refuse_contradictions()
    timed = results.timed_groups
    samples = {group.label: group.sample for group in results.compared_groups or timed}
    pairs = [*results.baseline_label_of.items()] or [*itertools.combinations(samples, 2)]
    spreads = ratio_spreads(samples, pairs)
    if not spreads:
        remedy = f"./bench run --repeats {MIN_ROUNDS}"
        raise UserError(f"{results.path} needs two strategies, and two rounds of both: {remedy}")
    sd = math.sqrt(numpy.mean(numpy.square([*spreads.values()])))
    noisiest, high = max(spreads.items(), key=lambda each: each[1])
    about = ", baseline included" if results.compared_groups else ", without a baseline"
    have = min(len(each.log_throughputs) for each in samples.values())
    walls = [group.ok_runs.wall_s.mean() for group in timed]  # a round runs the others, too
    round_s = float(numpy.sum(walls)) if numpy.isfinite(walls).all() else None
    lines = [
        f"{results.path}: {len(samples)} strategies{about}; from round to round the sd of a ratio is {_percent(sd)}"
        f" (noisiest: {' / '.join(noisiest)}, {_percent(high)})"
    ]
    rounds: list[dict[str, Any]] = []
    if have >= MIN_ROUNDS:
        least = _percent(smallest_difference(sd, len(pairs), have))
        lines.append(f"its {have} rounds find a strategy that is {least} faster")
    for difference in DIFFERENCES:
        needed = [fewest_rounds(difference, each, len(pairs)) for each in (sd, high)]
        rounds.append({"difference": difference, "rounds": needed[0], "rounds_of_noisiest": needed[1]})
        texts = [f"more than {ROUNDS_LIMIT}" if each is None else str(each) for each in needed]
        takes_s = None if needed[0] is None or round_s is None else needed[0] * round_s
        takes = "" if takes_s is None else f", about {format_duration(takes_s)} of runs"
        lines.append(f"to find {100 * difference:3.0f} %: {texts[0]} rounds (of the noisiest {texts[1]}){takes}")
    if found is not None:
        found |= {"results": str(results.path), "num_strategies": len(samples), "sd_of_ratios": sd}
        found |= {"noisiest": [*noisiest], "sd_of_noisiest": high, "num_rounds": have, "round_s": round_s}
        found |= {"to_find": rounds}
    return [
        *lines,
        "found: with 80 % power (nominal; the real power may be lower or higher), over its baseline, "
        "with the intervals of these strategies together at 95 %; of simulated sets of independent, normal rounds and "
        "equal noise 56 to 83 % find 10 % if the spread is the true one, with the spread of a set of five rounds 60 to "
        "83 % on average, and 34 to 82 % where that set happened to be quiet",
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def main(options: PowerOptions, found: dict[str, Any] | None = None) -> int:
    """found: gets the numbers, for --json."""
    print("\n".join(report_lines(load_set(options.results), found)))
    return 0


def run_command_line(args: list[str] | None = None) -> int:
    """The exit code of these words of a command line, or of this program's own."""
    return exit_code(lambda: main(tyro.cli(PowerOptions, args=args)))


if __name__ == "__main__":
    run_main_and_exit(run_command_line)
