"""The throughput of the suite over that of other loops: ratios with intervals, and when an interval is narrow enough.

A round has one launch of each loop. Launches of one round are a pair, so that what slows a round slows both. Needs no
torch.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from benchmarks.common.config.architectures import architecture_of
from benchmarks.common.store.safe_cells import table_text
from benchmarks.common.system.errors import UserError
from scripts.stats.families import ThroughputSample, ratios_to_baseline
from scripts.stats.intervals import RatioEstimate
from scripts.stats.stopping_rule import precise_enough

SUITE, SYNTHETIC = "the suite", "the suite, synthetic images"


def refuse_other_optimizers(arch: str) -> None:
    """Raises UserError for an architecture that the suite does not train with SGD, as all loops beside it do."""
    optimizer = architecture_of(arch).optimizer
    if optimizer != "SGD":
        raise UserError(f"{arch} is trained with {optimizer} here, and by the other loops with SGD; choose a ResNet")


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch: a row of peer_launches.csv. place: in the order of the round. seconds: of the whole launch."""

    round: int
    place: int
    name: str
    images_per_s: float
    seconds: float


def paired_samples(peer: str, suite: str, launches: Iterable[Launch]) -> dict[str, ThroughputSample]:
    """Logarithms of images/s of both loops, for the rounds that have both."""
    rates = {(launch.name, launch.round): launch.images_per_s for launch in launches if launch.name in (peer, suite)}
    rounds = sorted(number for name, number in rates if name == peer and (suite, number) in rates)
    return {
        name: ThroughputSample(
            numpy.log([rates[name, number] for number in rounds]), [float(number) for number in rounds]
        )
        for name in (suite, peer)
    }


def estimate_ratio(peer: str, suite: str, launches: Iterable[Launch]) -> RatioEstimate | None:
    """Throughput of the suite over the peer's; None without a pair."""
    samples = paired_samples(peer, suite, launches)
    return ratios_to_baseline(peer, samples)[suite] if len(samples[peer].log_throughputs) else None


def is_precise(peer: str, suite: str, launches: Iterable[Launch], width: float) -> bool:
    """Whether the interval of the ratio reaches no further than `width` to each side, as a fraction, and did so a round
    before (stopping_rule.py says why)."""
    samples = paired_samples(peer, suite, launches)
    return bool(len(samples[peer].log_throughputs)) and precise_enough(samples, {suite: peer}, width)


def ratio_rows(
    peers: Sequence[tuple[str, str, str]], launches: Sequence[Launch], why_not: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Rows of peers.csv, each with one more value, `pairs`: the ratio of each pair.

    peers: (name, description, the part of the suite that it is compared with). why_not: why a peer was not run.
    """
    rows = []
    for name, what, suite in peers:
        row: dict[str, Any] = {
            "peer": name,
            "what": what,
            "suite": suite,
            "num_pairs": 0,
            "why_not": why_not.get(name, ""),
            "ratio": None,
            "ratio_low": None,
            "ratio_high": None,
            "half_width": None,
            "suite_images_per_s": None,
            "peer_images_per_s": None,
            "verdict": "",
            "pairs": [],
        }
        ratio = estimate_ratio(name, suite, launches)
        if ratio is not None:
            samples = paired_samples(name, suite, launches)
            of_suite, of_peer = samples[suite].log_throughputs, samples[name].log_throughputs
            row |= {"num_pairs": len(of_suite), "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
            row |= {"half_width": ratio.half_width, "verdict": ratio.verdict}
            row |= {"suite_images_per_s": numpy.exp(of_suite.mean()), "peer_images_per_s": numpy.exp(of_peer.mean())}
            row |= {"pairs": numpy.exp(of_suite - of_peer).tolist(), "why_not": row["why_not"] or ratio.why}
        rows.append(row)
    return rows


def outcome(verdict: str, why_not: str) -> str:
    """The last cell of a row: the verdict, and why there is no interval or no launch."""
    return ": ".join(filter(None, (verdict, why_not)))


def rows_to_publish(rows: Iterable[Mapping[str, Any]], about: str = "") -> list[dict[str, Any]]:
    """The rows without `pairs`. about: the model and the ranks, in a column of its own."""
    own = {"about": about} if about else {}
    return [{name: value for name, value in row.items() if name != "pairs"} | own for row in rows]


def csv_text(rows: Iterable[Mapping[str, Any]], about: str = "") -> str:
    """What rows_to_publish makes of them, as CSV."""
    written = rows_to_publish(rows, about)
    return table_text([*written[0]], written)
