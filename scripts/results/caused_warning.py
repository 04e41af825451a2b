"""A warning of a result set: one cause, with a sentence for each strategy that has it. Needs no torch."""

import dataclasses
from collections.abc import Iterator, Mapping

from scripts.results.result_set import ResultSet


@dataclasses.dataclass(frozen=True)
class CausedWarning:
    """All that a set has of one cause."""

    summary: str
    """One sentence: the cause, the number of strategies that have it, and the remedy."""
    details: tuple[str, ...] = ()
    """A sentence for each strategy, where there are several; else `summary` says it all."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return self.details or (self.summary,)


def warning_per_strategy(
    results: ResultSet, cause: str, found: Mapping[str, str], remedy: str, most: str = ""
) -> Iterator[CausedWarning]:
    """A sentence for each strategy, by label, below a summary that counts them; a single one stands alone."""
    details = tuple(f"{label}: {text}; {remedy}." for label, text in found.items())
    if len(details) > 1:
        counted = f"{len(details)} of {len(results.timed_groups)} configurations"
        yield CausedWarning("; ".join(filter(None, [f"{cause}: {counted}", most, remedy])) + ".", details)
    elif details:
        yield CausedWarning(details[0])
