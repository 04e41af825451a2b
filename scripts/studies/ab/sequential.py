"""Is B faster than A, measured round by round in one session? When to stop, and what can be said at any time.

    from scripts.studies.ab.sequential import look_at_rounds

Each round gives one logarithm of a ratio: B's throughput over A's, run one after the other in random order. After each
round from FIRST_LOOK on the interval is looked at, and a clear answer ends it. Looking 17 times at ordinary intervals
would raise a false alarm in 1 of 5. So the 5 % are spent bit by bit (Lan and DeMets 1983), in the proportion
(round / most) ** RHO (Kim and DeMets 1987), and an interval is as wide as its bit asks: all of them cover the ratio
in 95 of 100 comparisons (repeated confidence intervals, Jennison and Turnbull 1989), so that a limit other than "equal"
may be asked of them, and a stop for want of time does no harm.

Why this, where the sd from run to run is 4 %: 16 rounds fixed beforehand find a difference of 5 % in 92 of 100
comparisons, and cannot stop at one of 30 %; these 20 do too, with 13 on average, and see 30 % in 5. A test that allows
any number of rounds (a mixture over the size of the difference, Robbins 1970) found it in 79 of 100 by round 20, and in
92 by round 27; it errs less, but CI has a set time. RHO = 2 lies between Pocock's equal bits and O'Brien and Fleming's
late ones. Limits come from NUM_PATHS seeded paths of Student's t itself, which does not depend on the noise's size, and
not from its normal approximation, which with 4 rounds is far off.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy

from scripts.stats.intervals import CONFIDENCE, NO_REPEAT, RatioEstimate, ratio_with_verdict

MAX_ROUNDS = 20  # finds 5 % in 92 of 100 where the sd from run to run is 4 %
FIRST_LOOK = 4
RHO = 2
NUM_PATHS = 200_000


@dataclasses.dataclass(frozen=True)
class SequentialResult:
    """What is known after a round: whether another is needed, and B's throughput over A's so far."""

    more: bool
    estimate: RatioEstimate
    early: bool = False
    """Whether a clear answer ends it before the most rounds. The interval holds; the ratio is then biased outward, away
    from what is excluded, since it ends sooner where chance helps (Jennison and Turnbull 1999, chapter 8)."""


def look_at_rounds(log_ratios: Sequence[float], most: int = MAX_ROUNDS, limit: float = 0.0) -> SequentialResult:
    """What to do after these rounds: log_ratios, of B's throughput over A's, of all so far.

    most: rounds after which it ends in any case, set beforehand. limit: such as 0.05, where the question is whether B
    is slower by more than 5 %: it ends when the interval lies on one side of 0.95. Raises ValueError for more rounds
    than `most`, since the error rate would not hold.
    """
    logs = numpy.asarray(log_ratios, dtype=float)
    if len(logs) > most:
        raise ValueError(f"{len(logs)} rounds, and at most {most} were planned")
    wide = critical_values_of_looks(most).get(len(logs))
    if wide is None:
        mean = logs.mean() if len(logs) else 0.0
        why = NO_REPEAT if most < 2 else f"the first look is after {min(critical_values_of_looks(most))} rounds"
        return SequentialResult(len(logs) < most, ratio_with_verdict(mean, 0.0, 1.0, 0.0, paired=True, why=why))
    error = logs.std(ddof=1) / numpy.sqrt(len(logs))
    estimate = ratio_with_verdict(logs.mean(), error, len(logs) - 1, wide, paired=True)
    clear = False
    if estimate.low is not None and estimate.high is not None:
        clear = not estimate.low <= 1 - limit <= estimate.high
    return SequentialResult(not clear and len(logs) < most, estimate, clear and len(logs) < most)


@functools.cache
def critical_values_of_looks(most: int) -> dict[int, float]:
    """Standard errors of the interval at each look, by its number of rounds."""
    rng = numpy.random.default_rng(0)
    sums, squares = numpy.zeros(NUM_PATHS), numpy.zeros(NUM_PATHS)
    inside = numpy.ones(NUM_PATHS, dtype=bool)
    found = {}
    for look in range(1, most + 1):
        noise = rng.standard_normal(NUM_PATHS)
        sums, squares = sums + noise, squares + noise**2
        num_new = round((1 - CONFIDENCE) * (look / most) ** RHO * NUM_PATHS) - numpy.count_nonzero(~inside)
        if look < max(2, min(FIRST_LOOK, most)) or not num_new:
            continue
        t = numpy.abs(sums) / numpy.sqrt((squares * look - sums**2) / (look - 1))
        found[look] = float(numpy.sort(t[inside])[-num_new])
        inside &= t < found[look]
    return found
