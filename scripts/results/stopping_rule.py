"""When may UNTIL=5% stop? When the family's intervals are as narrow as that, and were a round before.

Needs numpy and scipy only.
"""

from collections.abc import Mapping

import numpy

from scripts.results.families import ThroughputSample, ratios_of_all_pairs, ratios_to_own_baselines

FIRST_LOOK_ROUNDS = 10  # with a first look at 6, fewer families are covered where noise is autocorrelated


def widest_half_width(samples: Mapping[str, ThroughputSample], baselines: Mapping[str, str]) -> float | None:
    """The widest of the family's intervals, from the ratio up, as a fraction: each over its own baseline.

    Where there is none, those of all pairs. None where an interval is missing.
    """
    family = ratios_to_own_baselines(samples, baselines) if baselines else ratios_of_all_pairs(samples)
    widths = [each.half_width for each in family.values()]
    known = [width for width in widths if width is not None]
    return max(known) if known and len(known) == len(widths) else None


def precise_enough(samples: Mapping[str, ThroughputSample], baselines: Mapping[str, str], width: float) -> bool:
    """The rule of UNTIL: whether the family's intervals are as narrow as that, and were a round before.

    A sequential rule of fixed width (Chow and Robbins 1965) stops too early where the first rounds happen to agree. A
    further round, after the first that will do, makes up for it (Simons 1968), and so does the first look, after
    FIRST_LOOK_ROUNDS.
    """
    latest = max((max(each.round_numbers) for each in samples.values()), default=0)
    before = {name: _without(each, latest) for name, each in samples.items()}
    return _narrow(samples, baselines, width) and _narrow(before, baselines, width)


def _without(one: ThroughputSample, latest: float) -> ThroughputSample:
    kept = numpy.asarray(one.round_numbers) != latest
    sessions = numpy.asarray(one.sessions)[kept].tolist() if one.sessions else ()
    return ThroughputSample(one.log_throughputs[kept], numpy.asarray(one.round_numbers)[kept].tolist(), sessions)


def _narrow(samples: Mapping[str, ThroughputSample], baselines: Mapping[str, str], width: float) -> bool:
    if min((len(each.log_throughputs) for each in samples.values()), default=0) < FIRST_LOOK_ROUNDS:
        return False
    found = widest_half_width(samples, baselines)
    return found is not None and found <= width
