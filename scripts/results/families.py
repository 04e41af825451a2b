"""Several strategies at once: every one against a baseline, or all pairs, with simultaneous 95 % intervals.

A pair's ratio is estimated from its differences of log throughput, one a round that both ran in, with a variance of its
own: Student's t (1908). Of a family of k pairs the level of each is 0.95^(1/k) (Sidak 1967): with 95 % confidence all
intervals cover their ratios. Where rounds seem to be correlated with the one before, standard errors are larger
(scripts/results/independence). The fastest may be picked after looking, since its family is all pairs.
scripts/results/README.md has the method. Needs numpy and scipy only.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy

from scripts.results.formatting import plural
from scripts.results.independence import AUTOCORRELATED, rounds_are_autocorrelated, standard_error_factor
from scripts.results.intervals import FEW_ROUNDS, MIN_ROUNDS, NO_REPEAT, RatioEstimate, no_verdict, ratio_of_rounds

NO_COMMON_ROUNDS = "they share no rounds of one session"
Pair = tuple[str, str]
METHOD = "paired by round, Student's t, AR(1) standard errors, Sidak"


@dataclasses.dataclass(frozen=True)
class ThroughputSample:
    """The runs of one strategy: logarithm of throughput [num_runs], the round that each was part of, and its session
    (scripts/results/sessions.py); () where all were of one session."""

    log_throughputs: numpy.ndarray
    round_numbers: Sequence[float]
    sessions: Sequence[int] = ()

    def by_round(self) -> dict[tuple[int, float], float]:
        """The mean log of the runs of each session and round."""
        found: dict[tuple[int, float], list[float]] = {}
        for log, round_number, session in zip(
            self.log_throughputs, self.round_numbers, self.sessions or itertools.repeat(0), strict=False
        ):
            if round_number == round_number:  # NaN: a run without a round is in none
                found.setdefault((session, round_number), []).append(float(log))
        return {key: float(numpy.mean(logs)) for key, logs in found.items()}


def method_text(num_comparisons: int) -> str:
    """The method of a family, for below a table or a chart."""
    return f"{METHOD} over {plural(num_comparisons, 'pair')}"


def count_compared(family: Iterable[RatioEstimate]) -> int:
    """Pairs of a family that share the 5 %: a pair with too few rounds has no interval, and no share."""
    return sum(each.why not in (NO_REPEAT, FEW_ROUNDS, NO_COMMON_ROUNDS) for each in family)


def ratios_to_baseline(baseline: str, samples: Mapping[str, ThroughputSample]) -> dict[str, RatioEstimate]:
    """Each other strategy's throughput over the baseline's, with simultaneous 95 % intervals. Raises KeyError."""
    return ratios_to_own_baselines(samples, {of: baseline for of in samples if of != baseline})


def ratios_to_own_baselines(
    samples: Mapping[str, ThroughputSample], baselines: Mapping[str, str]
) -> dict[str, RatioEstimate]:
    """Each strategy's throughput over that of its own baseline, one family. Raises KeyError.

    baselines: strategy -> baseline.
    """
    return {of: estimate for (of, _), estimate in ratios_of_pairs(samples, [*baselines.items()]).items()}


def ratios_of_all_pairs(samples: Mapping[str, ThroughputSample]) -> dict[Pair, RatioEstimate]:
    """Of each pair, the throughput of the one with the higher mean over that of the other; simultaneous intervals.

    The highest mean comes first. Means are of all runs and ratios of common rounds, so that a ratio may be below 1."""
    by_speed = sorted(samples, key=lambda name: -samples[name].log_throughputs.mean())
    return ratios_of_pairs(samples, [*itertools.combinations(by_speed, 2)])


def ratios_to_fastest(samples: Mapping[str, ThroughputSample]) -> tuple[str, dict[str, RatioEstimate]]:
    """The fastest, picked after looking, and each other's throughput over its own, of all pairs' intervals."""
    best = max(samples, key=lambda name: samples[name].log_throughputs.mean())
    return best, {slower: found.inverse() for (of, slower), found in ratios_of_all_pairs(samples).items() if of == best}


def log_table(samples: Mapping[str, ThroughputSample]) -> numpy.ndarray:
    """float64 [num_strategies, num_rounds]: the mean log of a strategy's runs of each round that any of them ran in, in
    the order of sessions and rounds; NaN without a run."""
    runs = [each.by_round() for each in samples.values()]
    rounds = sorted({key for each in runs for key in each})
    return numpy.array([[each.get(key, numpy.nan) for key in rounds] for each in runs]).reshape(len(runs), len(rounds))


def ratios_of_pairs(samples: Mapping[str, ThroughputSample], pairs: Sequence[Pair]) -> dict[Pair, RatioEstimate]:
    """The ratio of each pair, of one family: simultaneous 95 % intervals. Raises KeyError."""
    compared = {name: samples[name] for name in dict.fromkeys(itertools.chain(*pairs))}
    logs, places = log_table(compared), {name: place for place, name in enumerate(compared)}
    table = [logs[places[of]] - logs[places[to]] for of, to in pairs]
    differences = [row[~numpy.isnan(row)] for row in table]
    counted = [pair for pair, each in zip(pairs, differences, strict=True) if len(each) >= MIN_ROUNDS]
    num_comparisons, why, error_factor = len(counted), "", 1.0
    if counted:
        logs = log_table({name: compared[name] for name in dict.fromkeys(itertools.chain(*counted))})
        why = AUTOCORRELATED if rounds_are_autocorrelated(logs) else ""
        error_factor = float(standard_error_factor(logs))
    found = {}
    for (of, to), rounds in zip(pairs, differences, strict=True):
        first, second = samples[of].log_throughputs, samples[to].log_throughputs
        if len(rounds):
            found[of, to] = ratio_of_rounds(rounds, num_comparisons, why, error_factor)
        else:
            alone = NO_REPEAT if min(len(first), len(second)) < 2 else NO_COMMON_ROUNDS
            found[of, to] = no_verdict(first.mean() - second.mean(), alone)
    return found
