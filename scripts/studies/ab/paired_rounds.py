"""What was measured of A and B, round by round, and what is said of it at the end: the ratio, the verdict, the gate.

Needs no torch.
"""

import dataclasses
import math
import sys
import time
from pathlib import Path

from scripts.results.formatting import format_interval, format_number, plural
from scripts.results.intervals import RatioEstimate
from scripts.studies.ab.sequential import SequentialResult, carry_over


@dataclasses.dataclass
class PairedRounds:
    """What has been measured so far of A and B."""

    seed: int
    began: float
    rates: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {"A": [], "B": []})
    """images/s of each round."""
    first: list[str] = dataclasses.field(default_factory=list)
    """Which variant ran first in each round."""

    @property
    def log_ratios(self) -> list[float]:
        return [math.log(b / a) for a, b in zip(self.rates["A"], self.rates["B"], strict=True)]

    @property
    def carry_over(self) -> RatioEstimate:
        """Throughput of what ran after B over that of what ran after A."""
        logs = {name: [math.log(rate) for rate in rates] for name, rates in self.rates.items()}
        return carry_over(self.first[0], logs)

    @property
    def sd(self) -> float | None:
        """From run to run, of log throughput: a round's ratio has that of two runs."""
        logs = self.log_ratios
        mean = sum(logs) / max(1, len(logs))
        return math.sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1) / 2) if len(logs) > 1 else None


def format_ratio(result: SequentialResult) -> str:
    """B's throughput over A's, with its interval where it has been looked at."""
    found = result.estimate
    return f"B/A {found.value:.3f} {format_interval(found.low, found.high, '{:.3f}'.format)}".strip()


def report_verdict(result: SequentialResult, paired: PairedRounds, results: Path, limit: float | None) -> int:
    """Print what was found; returns the exit code, which the last line explains."""
    found, num_rounds = result.estimate, len(paired.first)
    seconds = time.monotonic() - paired.began
    rates = ""
    if num_rounds:
        a, b = (math.exp(sum(map(math.log, paired.rates[name])) / num_rounds) for name in "AB")
        rates = f"A {format_number(a)} images/s, B {format_number(b)}; "
    print(f"\n{rates}{plural(num_rounds, 'round')}, {seconds:.0f} s; {results}")
    if paired.sd is not None:
        left = paired.carry_over
        interval = format_interval(left.low, left.high, "{:.3f}".format)
        print(
            f"sd from run to run: {100 * paired.sd:.1f} %; a run after B over one after A: {left.value:.3f} {interval}"
        )
    if result.correlation is not None:
        print(f"correlation of each round's ratio with the one before: {result.correlation:.2f}")
    if found.smallest_difference is not None:
        least = f"{100 * found.smallest_difference:.1f} %"
        print(f"a comparison that was planned for as many rounds finds {least} with 80 % power (nominal)")
    if result.early:
        print("it stopped early, where the answer was clear: the interval allows for that, the ratio is biased outward")
    sentence = f"B is {found.verdict}" if found.verdict in ("faster", "slower") else found.verdict
    sentence += f": {found.why}" if found.why else ""
    sentence += f"; {format_ratio(result)}"
    if result.num_rounds:
        sentence += f"; {num_rounds} rounds were run; the ratio, its interval and the verdict are of the first "
        sentence += str(result.num_rounds)
    print(sentence if num_rounds else "no verdict: no round was done", flush=True)
    if limit is None:
        return 0
    percent = f"{100 * limit:g} %"
    if found.high is not None and found.high < 1 - limit:
        print(f"failed: B is slower by more than {percent} with confidence", file=sys.stderr)
        return 1
    if found.low is None or found.low < 1 - limit:
        print(f"not decided: whether B is slower by more than {percent}", file=sys.stderr)
        return 3
    print(f"fine: with 95 % confidence B is not slower by more than {percent}")
    return 0
