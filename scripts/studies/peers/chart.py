"""Draw what ./bench study peers measured: the suite's throughput over that of other loops. Needs no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.common.system.errors import UserError
from scripts.charts.bars import Bar, draw_bars
from scripts.charts.figures import footnote, make_figure
from scripts.stats.formatting import format_interval
from scripts.studies.measured_csv import read_rows
from scripts.studies.peers.analysis import Launch, outcome, ratio_rows


def read_peers(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """(rows as of ratio_rows, the model and the ranks) from the peers.csv and peer_launches.csv in a folder."""
    if not (folder / "peers.csv").exists():
        return [], ""
    rows = read_rows(folder / "peers.csv")
    launches = []
    try:
        if (folder / "peer_launches.csv").exists():
            launches = [launch_of(row) for row in read_rows(folder / "peer_launches.csv")]
        peers = [(str(row["peer"]), str(row["what"]), str(row["suite"])) for row in rows]
        why_not = {row["peer"]: row["why_not"] or "" for row in rows}
        about = rows[0]["about"] or "" if rows else ""
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{folder}: peers.csv or peer_launches.csv is not as ./bench study peers writes it ({error}); move both "
            "away"
        ) from None
    return ratio_rows(peers, launches, why_not), about


def launch_of(row: Mapping[str, str]) -> Launch:
    """The launch of a row of peer_launches.csv. Raises KeyError, ValueError or TypeError for a wrong one."""
    found = Launch(int(row["round"]), int(row["place"]), row["name"], float(row["images_per_s"]), float(row["seconds"]))
    if not 0 < found.images_per_s < 1e15:
        raise ValueError(f"{row['images_per_s']} images/s")
    return found


def report_cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the report: description, n, images/s of both, the ratio with its interval, the verdict."""
    if row["ratio"] is None:
        return [row["what"], "", "", "", "", row["why_not"]]
    bounds = format_interval(row["ratio_low"], row["ratio_high"], "{:.3f}".format)
    speeds = (f"{row[name]:,.1f}" for name in ("suite_images_per_s", "peer_images_per_s"))
    ratio = f"{row['ratio']:.3f} {bounds}".rstrip()
    return [row["what"], str(row["num_pairs"]), *speeds, ratio, outcome(row["verdict"], row["why_not"])]


def peers_chart(rows: Sequence[Mapping[str, Any]], about: str) -> Figure:
    """Bars of suite / peer from 0, every pair as a point, 95 % intervals, n, and a dashed line at 1."""
    timed = [row for row in rows if row["ratio"] is not None]
    bars = [
        Bar(
            row["what"],
            row["ratio"],
            row["ratio_low"],
            row["ratio_high"],
            row["pairs"],
            (
                str(row["num_pairs"]),
                f"{row['ratio']:.3f}",
                format_interval(row["ratio_low"], row["ratio_high"], "{:.3f}".format),
            ),
            True,
            0,
        )
        for row in timed
    ]
    height = 0.3 + 0.32 * max(len(bars), 2)
    figure, (axes,), _ = make_figure("The suite's ddp over what one would pick instead", [], [height], 0, about=about)
    draw_bars(axes, bars, 1, "suite / peer")
    axes.axvline(1, color="black", linestyle="--", linewidth=0.9)
    axes.set_xlabel("throughput of the suite over the other's; right of the dashed line the suite is faster")
    notes = ["black lines: 95 % intervals, each of one comparison; dots: pairs of launches; n: pairs."]
    why: dict[str, list[str]] = {}
    for row in rows:
        if row["why_not"]:
            why.setdefault(row["why_not"], []).append(row["what"])
    footnote(figure, [*notes, *(f"{'; '.join(names)}: {reason}" for reason, names in why.items())])
    return figure
