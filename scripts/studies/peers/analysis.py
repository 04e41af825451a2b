"""The suite over other loops, from launches by turns: ratios with intervals, and when they are known well enough.

    from scripts.studies.peers.analysis import estimate, known, ratio_rows

A round has one launch of each; rounds are blocks, so that what slows one slows its pair. Needs no torch.
"""

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence

import numpy

from benchmarks.common.store.results import format_cell
from scripts.sets.power import precise_enough
from scripts.stats.families import Sample, ratios_to_baseline
from scripts.stats.intervals import RatioEstimate

SUITE, SYNTHETIC = "the suite", "the suite, synthetic images"


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a round: its place in the round's order, images/s of its windows, and its wall clock."""

    round: int
    place: int
    name: str
    images_per_s: float
    seconds: float


def pairs(peer: str, suite: str, launches: Iterable[Launch]) -> dict[str, Sample]:
    """Logarithms of throughput of both, of the rounds that have both."""
    rates = {(each.name, each.round): each.images_per_s for each in launches if each.name in (peer, suite)}
    rounds = sorted(number for name, number in rates if name == peer and (suite, number) in rates)
    return {
        name: Sample(numpy.log([rates[name, number] for number in rounds]), [float(number) for number in rounds])
        for name in (suite, peer)
    }


def estimate(peer: str, suite: str, launches: Iterable[Launch]) -> RatioEstimate | None:
    """Throughput of the suite over the peer's; None without a pair."""
    samples = pairs(peer, suite, launches)
    return ratios_to_baseline(peer, samples)[suite] if len(samples[peer].logs) else None


def known(peer: str, suite: str, launches: Iterable[Launch], width: float) -> bool:
    """Whether the interval is as narrow as that, and was a round before (power.enough says why)."""
    samples = pairs(peer, suite, launches)
    return bool(len(samples[peer].logs)) and precise_enough(samples, {suite: peer}, width)


def ratio_rows(
    peers: Sequence[tuple[str, str, str]], launches: Sequence[Launch], why_not: Mapping[str, str]
) -> list[dict]:
    """Rows of peers.csv; each also has `pairs`, the ratio of each pair. peers: name, what it is, what it is beside."""
    rows = []
    for name, what, suite in peers:
        row = {"peer": name, "what": what, "suite": suite, "num_pairs": 0, "why_not": why_not.get(name, "")}
        row |= dict.fromkeys(("ratio", "ratio_low", "ratio_high", "half_width", "suite_images_per_s"))
        row |= {"peer_images_per_s": None, "verdict": "", "pairs": []}
        found = estimate(name, suite, launches)
        if found is not None:
            samples = pairs(name, suite, launches)
            ours, theirs = samples[suite].logs, samples[name].logs
            row |= {"num_pairs": len(ours), "ratio": found.value, "ratio_low": found.low, "ratio_high": found.high}
            row |= {
                "half_width": found.half_width,
                "verdict": found.verdict,
                "pairs": numpy.exp(ours - theirs).tolist(),
            }
            row |= {"suite_images_per_s": numpy.exp(ours.mean()), "peer_images_per_s": numpy.exp(theirs.mean())}
            row["why_not"] = row["why_not"] or found.why
        rows.append(row)
    return rows


def csv_of(rows: Iterable[Mapping], about: str = "") -> str:
    """Rows as CSV, without `pairs`; about: of the model and the ranks, in a column of its own."""
    rows = [{name: value for name, value in row.items() if name != "pairs"} for row in rows]
    rows = [row | {"about": about} for row in rows] if about else rows
    out = io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: format_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()
