"""What every chart is made of: the figure and its title, bars with intervals, footnotes, and the file.

Colours are Okabe and Ito's; what a colour says, a hatch, a marker or a line style says too. Needs no torch.
"""

import dataclasses
import os
import tempfile
import textwrap
import warnings
from pathlib import Path

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from benchmarks.common.errors import UserError
from scripts.analysis.sets import ResultSet
from scripts.analysis.words import clean, show

matplotlib.rcParams.update(
    {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 8,
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "charts",
        "text.parse_math": False,
        "axes.titlelocation": "left",
    }
)
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
SET_HATCHES = ("", "....", "\\\\\\\\", "xxxx", "++++", "----", "oo", "**")
MARKERS = "osD^vP*X<>h"
LINES = ("-", "--", "-.", ":")
NOT_PARALLEL = "////"


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar: its length, interval, the value of each repeat, and the words beside it."""

    label: str
    value: float
    low: float | None
    high: float | None
    points: list[float]
    text: str
    parallel: bool
    set_number: int


def make_figure(
    title: str, sets: list[ResultSet], heights: list[float], num_legend_rows: int, num_columns: int = 1
) -> tuple[Figure, list[Axes], Axes]:
    """A figure, its panels from the top, each of some height in inches, and the place of the legend below them."""
    title = f"{title}\n{_wrap(describe(sets), 105)}"
    heights = [*heights, 0.05 + 0.16 * num_legend_rows]
    figure = Figure(figsize=(7, sum(heights) + 0.5 * len(heights) + 0.15 * title.count("\n")), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    grid = figure.add_gridspec(len(heights), num_columns, height_ratios=heights)
    panels = [figure.add_subplot(grid[row, column]) for row in range(len(heights) - 1) for column in range(num_columns)]
    legend = figure.add_subplot(grid[-1, :])
    legend.set_axis_off()
    return figure, panels, legend


def make_bar_figure(title: str, sets: list[ResultSet], *num_bars: int) -> tuple[Figure, list[Axes], Axes]:
    """The same with one panel for each number of bars."""
    heights = [0.1 + 0.29 * max(number, 2) for number in num_bars]
    return make_figure(title, sets, heights, (len(sets) + 1) // 2 if len(sets) > 1 else 0)


def draw_bars(axes: Axes, bars: list[Bar], num_sets: int, color: str | None = None, hatch: str | None = None) -> None:
    """Horizontal bars from the top down, room left for the words at the right."""
    for place, bar in enumerate(bars):
        set_color = color or COLORS[bar.set_number % len(COLORS)]
        set_hatch = hatch or (SET_HATCHES[bar.set_number % len(SET_HATCHES)] if num_sets > 1 else "")
        axes.barh(
            place,
            bar.value,
            height=0.72,
            color=set_color if bar.parallel else "white",
            hatch=set_hatch if bar.parallel else NOT_PARALLEL + set_hatch,
            edgecolor="black" if bar.parallel else set_color,
            linewidth=0.8,
        )
        if bar.low is not None:
            axes.plot([bar.low, bar.high], [place, place], color="black", linewidth=1.2, marker="|", markersize=7)
        heights = place + numpy.linspace(-0.2, 0.2, len(bar.points) + 2)[1:-1]
        axes.plot(
            bar.points,
            heights,
            linestyle="none",
            marker="o",
            markersize=3.5,
            markerfacecolor="white",
            markeredgecolor="black",
            markeredgewidth=0.7,
            zorder=3,
        )
    longest = max(max([bar.value, *bar.points]) for bar in bars)
    # an interval that is wide for want of repeats must not squeeze the bars
    ends = [min(max([bar.value, *bar.points, bar.high or 0]), 1.6 * longest) for bar in bars]
    for place, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        axes.annotate(
            bar.text,
            (end, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            zorder=4,
        )
    # a letter of the words takes about a hundredth of the axis
    axes.set_xlim(0, max(end / max(0.2, 0.96 - 0.011 * len(bar.text)) for bar, end in zip(bars, ends, strict=True)))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    labels = [_wrap(bar.label, 26) + ("" if bar.parallel else "\n(not parallel)") for bar in bars]
    axes.set_yticks(range(len(bars)), labels)
    axes.tick_params(axis="y", length=0)


def finish(
    figure: Figure, legend: Axes, sets: list[ResultSet], bars: list[Bar], notes: list[str] | None = None
) -> None:
    """Legend of the sets, and footnotes: what hatching means, what is missing and why."""
    if len(sets) > 1:
        handles = [
            Patch(
                facecolor=COLORS[n % len(COLORS)],
                hatch=SET_HATCHES[n % len(SET_HATCHES)],
                edgecolor="black",
                label=clean(results.name),
            )
            for n, results in enumerate(sets)
        ]
        legend.legend(handles=handles, loc="center", ncols=2, frameon=False, fontsize=7)
    lines = list(notes or [])
    if not all(bar.parallel for bar in bars):
        lines.append("not parallel (white, hatched): it ran, but had nothing to divide the work over.")
    if any(bar.low is None for bar in bars):
        lines.append("no interval: one repeat says nothing about the spread between runs.")
    where: dict[str, list[str]] = {}
    for results in sets:
        for text in troubles(results):
            where.setdefault(text, []).append(results.name)
    lines += [f"{', '.join(names)}: {text}" if len(sets) > 1 else text for text, names in where.items()]
    footnote(figure, lines)


def footnote(figure: Figure, lines: list[str]) -> None:
    """Lines below everything else."""
    text = "\n".join(_wrap(textwrap.shorten(clean(line), 330, placeholder=" ..."), 140) for line in lines)
    figure.text(0.01, -0.01, text, va="top", ha="left", fontsize=6.5)


def save_chart(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `folder/name.png` and `.svg`, each whole or not at all. Raises UserError where it cannot write."""
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
            os.close(handle)
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="Glyph")  # a device may be named in any script
                    date = {"Date": None} if path.suffix == ".svg" else {}
                    figure.savefig(
                        temporary, format=path.suffix[1:], dpi=200, bbox_inches="tight", pad_inches=0.1, metadata=date
                    )
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
    except OSError as error:
        raise UserError(f"cannot write charts in {folder}: {error.strerror}; name another folder: --output") from None
    return paths


def describe(sets: list[ResultSet]) -> str:
    """What was run on what, from the ok rows: arch, image size, global batch, hardware, ranks."""

    def values(column: str, unknown: str = "?") -> str:
        found = {show(value): None for each in sets for value in each.ok[column]}
        return "/".join(text for text in found if text != "unknown") or unknown

    ranks = sorted({value for each in sets for value in each.ok.world_size if value > 0})
    ranks_text = f"{show(ranks[0])} to {show(ranks[-1])} ranks" if len(ranks) > 1 else f"{values('world_size')} ranks"
    images = ", synthetic images" if values("loader") == "synthetic" else ""
    batch = f"global batch {values('global_batch')}"
    if any((each.ok.batch_per_device > 0).any() for each in sets):
        batch = f"{values('batch_per_device')} images a device (weak scaling: {batch})"
    return (
        f"{values('arch')}, {values('image_size')} px, {batch}{images}; "
        f"{values('device_name', 'hardware unknown')}, {ranks_text}"
    )


def troubles(results: ResultSet) -> list[str]:
    """A sentence for each strategy with rows that are not ok, or ok without a throughput."""
    sentences = []
    for group in results.groups:
        for status, count in group.counts.items():
            rows = group.rows[group.rows.status == status]
            of = f" {count} of {len(group.rows)}" if count < len(group.rows) else ""
            reason = "; ".join(dict.fromkeys(filter(None, rows.reason))) or "no reason was recorded"
            if status != "ok":
                sentences.append(f"{group.label} {status or 'without a status'}{of}: {reason}")
            elif not group.samples:
                sentences.append(f"{group.label} is ok but has neither windows nor images_per_s")
    return sentences


def _wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(clean(text), width)) or "?"
