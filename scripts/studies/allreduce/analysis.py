"""What rounds of all-reduces say: bandwidths with intervals, the ratio to a bare loop, and the link that fits.

    from scripts.studies.allreduce.analysis import bandwidth_rows, links, over_bare

Needs no torch.
"""

from collections.abc import Mapping, Sequence

import numpy
import pandas

from scripts.stats.formatting import format_interval, text_table
from scripts.stats.intervals import mean_interval
from scripts.studies.allreduce.links import Fit, bandwidths, fit_link

SMALLEST = 2**10
FROM = 2**20  # bytes; what a gradient bucket holds, and more
HEADER = ("path", "bytes", "n", "time, us", "algbw, GB/s", "busbw, GB/s", "95 %", "bare loop's", "wrong")


def sizes_to(largest: int) -> list[int]:
    """Bytes of a sweep: 1 KB, and four times as many again and again, up to `largest`, which is among them."""
    return sorted({min(SMALLEST * 4**power, largest) for power in range(16)})


def bandwidth_rows(rows: pandas.DataFrame) -> list[dict]:
    """One a path and size. rows: path, ranks, round, bytes, seconds, bare_seconds, wrong; seconds of one all-reduce.

    Bandwidths in bytes/s; the interval of the bus bandwidth is over rounds.
    """
    found = []
    for (path, size), part in rows.groupby(["path", "bytes"], sort=False):
        mean, low, high = (
            None if log is None else float(numpy.exp(log)) for log in mean_interval(numpy.log(part.seconds))
        )
        ranks = int(part.ranks.iloc[0])
        algorithm, bus = bandwidths(size, mean, ranks)
        ends = [None if end is None else bandwidths(size, end, ranks)[1] for end in (high, low)]
        found.append(
            {"path": path, "ranks": ranks, "bytes": int(size), "num_rounds": len(part), "seconds": mean}
            | {"algorithm_bytes_per_s": algorithm, "bus_bytes_per_s": bus}
            | {"bus_low": ends[0], "bus_high": ends[1]}
            | {"over_bare": float(numpy.exp(numpy.log(part.bare_seconds / part.seconds).mean()))}
            | {"wrong": int(part.wrong.sum())}
        )
    return found


def over_bare(rows: pandas.DataFrame, path: str, at_least: int = 0) -> tuple[float, float | None, float | None]:
    """Bus bandwidth of a path over a bare loop's, which had turns with it: the mean over sizes, and its interval over
    rounds. at_least: bytes of the smallest that count."""
    part = rows[(rows.path == path) & (rows.bytes >= at_least)]
    logs = numpy.log(part.bare_seconds / part.seconds).groupby(part["round"]).mean()
    mean, low, high = mean_interval(logs.to_numpy())
    return tuple(None if log is None else float(numpy.exp(log)) for log in (mean, low, high))


def links(rows: pandas.DataFrame) -> list[Fit]:
    """The link that fits each path's times; see fit_link."""
    return [_fit(str(path), part) for path, part in rows.groupby("path", sort=False)]


def _fit(path: str, part: pandas.DataFrame) -> Fit:
    tables = [part.pivot(index="round", columns="bytes", values=name) for name in ("seconds", "cpu_s")]
    sizes = [int(size) for size in tables[0].columns]
    return fit_link(path, int(part.ranks.iloc[0]), sizes, *(table.to_numpy() for table in tables))


def table(rows: Sequence[Mapping]) -> str:
    """Bandwidth rows as text, with GB of 10^9 bytes."""
    lines = [HEADER]
    for row in rows:
        ends = [None if row[name] is None else row[name] / 1e9 for name in ("bus_low", "bus_high")]
        rates = (f"{row[name] / 1e9:.3f}" for name in ("algorithm_bytes_per_s", "bus_bytes_per_s"))
        cells = (row["path"], f"{row['bytes']:,}", str(row["num_rounds"]), f"{1e6 * row['seconds']:,.0f}", *rates)
        lines.append((*cells, format_interval(*ends, "{:.3f}".format), f"x {row['over_bare']:.3f}", str(row["wrong"])))
    return text_table(lines, left=(0,))


def said(fit: Fit) -> str:
    """The fit in a line."""
    latency, rate, busy = fit.latency_s, fit.bytes_per_s, fit.busy
    return (
        f"{fit.path}: a message takes {1e6 * latency.value:.0f} [{1e6 * latency.low:.0f}, {1e6 * latency.high:.0f}] us "
        f"and 1 s for {rate.value / 1e9:.2f} [{rate.low / 1e9:.2f}, {rate.high / 1e9:.2f}] GB; meanwhile a rank's core "
        f"is busy {100 * busy.value:.0f} % with it"
    )
