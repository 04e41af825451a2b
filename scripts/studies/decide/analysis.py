"""Which machine is the cheapest for 90 ImageNet epochs, which the fastest, and what is sure of it.

Two machines are compared as two days are (two_days.py): there is a decision only with a day-to-day
spread. The best strategy of a machine is picked after looking. So the family is all pairs of choices on different
machines, as it is for the fastest strategy of a set. Needs no torch.
"""

import dataclasses
import math
from collections.abc import Sequence

from scripts.results.intervals import RatioEstimate
from scripts.studies.compare.two_days import DaySpread, largest_day_sd, ratio_between_days
from scripts.studies.decide.candidates import Candidate


@dataclasses.dataclass(frozen=True)
class Family:
    """The comparisons whose intervals hold simultaneously, and the spread from day to day; None: unknown."""

    num_comparisons: int
    num_machines: int
    day: DaySpread | None

    @property
    def num_day_pairs(self) -> int:
        return math.comb(self.num_machines, 2)

    def cost_ratio(self, of: Candidate, other: Candidate) -> RatioEstimate:
        """The cost of `of` over that of `other`, on another machine. `slower` and `faster` are of the speed."""
        ratio = ratio_between_days(
            other.sample, of.sample, self.day, self.num_comparisons, self.num_day_pairs
        ).inverse()
        return scaled(ratio, of.money_per_hour / other.money_per_hour)

    def time_ratio(self, of: Candidate, other: Candidate) -> RatioEstimate:
        """The same of the hours."""
        return ratio_between_days(other.sample, of.sample, self.day, self.num_comparisons, self.num_day_pairs).inverse()

    def day_sd_limit_of_pair(self, of: Candidate, other: Candidate, prices: bool) -> float | None:
        """The day-to-day sd up to which `of` costs more than `other`, or takes longer; None: it is not sure anyway."""
        ratio = of.money_per_hour / other.money_per_hour if prices else 1.0
        return largest_day_sd(other.sample, of.sample, ratio, self.num_comparisons, self.num_day_pairs)


def scaled(ratio: RatioEstimate, factor: float) -> RatioEstimate:
    """The ratio, times a number that is known exactly."""
    low, high = (None if end is None else factor * end for end in (ratio.low, ratio.high))
    return dataclasses.replace(ratio, value=factor * ratio.value, low=low, high=high)


def family_of_all(machines: dict[str, list[Candidate]], day: DaySpread | None) -> Family:
    """All pairs of candidates on different machines."""
    sizes = [len(each) for each in machines.values()]
    num_pairs = math.comb(sum(sizes), 2) - sum(math.comb(size, 2) for size in sizes)
    return Family(num_pairs, len(sizes), day)


def family_of_shared(shared: list[list[Candidate]], num_machines: int, day: DaySpread | None) -> Family:
    """All pairs of machines, for each strategy."""
    return Family(max(1, len(shared)) * math.comb(num_machines, 2), num_machines, day)


@dataclasses.dataclass(frozen=True)
class Winner:
    """The candidate with the lowest mean, of cost or of hours, and what speaks against calling it the lowest."""

    candidate: Candidate
    num_candidates: int
    """Of which it was picked after looking."""
    unsure: list[tuple[Candidate, RatioEstimate]]
    """Candidates on other machines that are not shown to be above it, each with its ratio to it, the nearest first."""
    close: list[Candidate]
    """Those that the runs alone do not separate from it, even if days did nothing; the nearest first."""
    day_sd_limit: float
    """Where `close` is empty: the day-to-day sd below which all candidates on other machines are shown above it."""

    @property
    def is_sure(self) -> bool:
        return not self.unsure


def cheapest(candidates: Sequence[Candidate], family: Family) -> Winner:
    """The lowest cost of all candidates."""
    best = min(candidates, key=lambda candidate: candidate.money.value)
    return _winner(best, candidates, family, True)


def fastest(candidates: Sequence[Candidate], family: Family) -> Winner:
    """The fewest hours of all candidates."""
    best = min(candidates, key=lambda candidate: candidate.hours.value)
    return _winner(best, candidates, family, False)


def _winner(best: Candidate, candidates: Sequence[Candidate], family: Family, prices: bool) -> Winner:
    ratio_of = family.cost_ratio if prices else family.time_ratio
    ratios = [(candidate, ratio_of(candidate, best)) for candidate in candidates if candidate.machine != best.machine]
    ratios.sort(key=lambda pair: pair[1].value)
    limits = [family.day_sd_limit_of_pair(candidate, best, prices) for candidate, _ in ratios]
    return Winner(
        best,
        len(candidates),
        [(candidate, ratio) for candidate, ratio in ratios if ratio.low is None or ratio.low <= 1],
        [candidate for (candidate, _), sd in zip(ratios, limits, strict=True) if sd is None],
        min((sd for sd in limits if sd is not None), default=0.0),
    )


def best_of_each(machines: dict[str, list[Candidate]]) -> list[Candidate]:
    """The candidate with the lowest cost on each machine."""
    return [min(candidates, key=lambda candidate: candidate.money.value) for candidates in machines.values()]


def pareto_frontier(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that no other candidate beats in both hours and cost, by their means; the fastest first."""
    found: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: (each.hours.value, each.money.value)):
        if not found or candidate.money.value < found[-1].money.value:
            found.append(candidate)
    return found
