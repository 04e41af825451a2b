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
import pandas
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from benchmarks.common.errors import UserError
from scripts.analysis.sets import Group, ResultSet
from scripts.analysis.stats import strategy_throughput
from scripts.analysis.words import clean, count, digits, show

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
LINE_COLORS = tuple(color for color in COLORS if color != "#F0E442")  # yellow is too faint for a line on white
MARKERS = "osD^vP*X<>hpd8H1"
LINES = ("-", "--", "-.", ":")
NOT_PARALLEL = "////"
IDEAL = "#D55E00"
LETTER = 4.4  # points, of a digit at size 7
# how each repeat is drawn, in every chart
REPEATS = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.5,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.7,
    "zorder": 3,
}


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar: its length, interval, the value of each repeat, and its cells in the table beside the chart."""

    label: str
    value: float
    low: float | None
    high: float | None
    points: list[float]
    cells: tuple[str, str, str]
    """n, the value, and its interval, as text."""
    parallel: bool
    set_number: int
    ideal: float | None = None
    """Where it would end if nothing were lost."""


def make_figure(
    title: str,
    sets: list[ResultSet],
    heights: list[float],
    num_legend_rows: int,
    num_columns: int = 1,
    about: str = "",
) -> tuple[Figure, list[Axes], Axes]:
    """A figure, its panels from the top, each of some height in inches, and the place of the legend below them.

    about: what was run on what; default: that of all ok runs of the sets.
    """
    title = f"{title}\n{_wrap(about or describe(sets), 105)}"
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
    heights = [(0.15 if len(num_bars) == 1 else 0.5) + 0.28 * max(number, 2) for number in num_bars]
    return make_figure(title, sets, heights, (len(sets) + 1) // 2 if len(sets) > 1 else 0)


def draw_bars(
    axes: Axes, bars: list[Bar], num_sets: int, header: str, color: str | None = None, hatch: str | None = None
) -> None:
    """Horizontal bars from the top down, and beside them a table: n, the value under `header`, its interval."""
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
        if bar.ideal is not None:
            axes.plot([bar.ideal] * 2, [place - 0.4, place + 0.4], color=IDEAL, linewidth=2.5, solid_capstyle="butt")
        if bar.low is not None:
            axes.plot([bar.low, bar.high], [place, place], color="black", linewidth=1.2, marker="|", markersize=7)
        heights = place + numpy.linspace(-0.2, 0.2, len(bar.points) + 2)[1:-1]
        axes.plot(bar.points, heights, **REPEATS)
    # an interval that is wide for want of repeats must not squeeze the bars
    longest = max(max([bar.value, *bar.points]) for bar in bars)
    ends = [max([bar.value, *bar.points, bar.ideal or 0, min(bar.high or 0, 1.6 * longest)]) for bar in bars]
    axes.set_xlim(0, 1.03 * max(ends))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    labels = [_wrap(bar.label, 26) + ("" if bar.parallel else "\n(not parallel)") for bar in bars]
    axes.set_yticks(range(len(bars)), labels)
    axes.tick_params(axis="y", length=0)
    _cells(axes, bars, header)


def _cells(axes: Axes, bars: list[Bar], header: str) -> None:
    """A line a bar at the right of the axes, in columns: n, the value right-aligned, its interval."""
    rows = [("n", header, ""), *(bar.cells for bar in bars)]
    n_width, value_width = (max(len(row[column]) for row in rows[1:]) * LETTER for column in (0, 1))
    n_width = max(n_width, 2 * LETTER)
    places = (8, 8 + n_width + 10 + value_width, 8 + n_width + 10 + value_width + 4)
    for place, row in enumerate(rows, start=-1):
        for column, (text, x) in enumerate(zip(row, places, strict=True)):
            y = place if place >= 0 else -0.62
            if place < 0 and column == 1:  # over the value and its interval
                x = 8 + n_width + 10
            axes.annotate(
                clean(text),
                (1, y),
                xycoords=("axes fraction", "data"),
                xytext=(x, 0),
                textcoords="offset points",
                ha="right" if column == 1 and place >= 0 else "left",
                va="center" if place >= 0 else "bottom",
                fontsize=7,
                annotation_clip=False,
            )


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
    return describe_rows(pandas.concat([each.ok for each in sets]))


def describe_rows(rows: pandas.DataFrame) -> str:
    """The same of some rows of runs.csv."""

    def values(column: str, unknown: str = "?") -> str:
        found = dict.fromkeys(map(show, rows[column]))
        return "/".join(text for text in found if text != "unknown") or unknown

    ranks = sorted({value for value in rows.world_size if value > 0})
    ranks_text = f"{show(ranks[0])} to {show(ranks[-1])} ranks" if len(ranks) > 1 else "? ranks"
    if len(ranks) == 1:
        ranks_text = count(int(ranks[0]), "rank")
    images = ", synthetic images" if values("loader") == "synthetic" else ""
    return (
        f"{values('arch')}, {values('image_size')} px, global batch {values('global_batch')}{images}; "
        f"{values('device_name', 'hardware unknown')}, {ranks_text}"
    )


def draw_point(axes: Axes, place: float, group: Group, marker: str, hollow: bool = False) -> None:
    """Images/s of a group at a place of the x axis: mean, 95 % interval, every repeat, and n."""
    estimate = group.throughput
    if estimate.low is not None:
        axes.plot([place, place], [estimate.low, estimate.high], color="black", linewidth=1.2, marker="_")
    face = "white" if hollow else COLORS[0]
    axes.plot(place, estimate.value, marker=marker, markersize=6, color=COLORS[0], markerfacecolor=face)
    repeats = [strategy_throughput([run]).value for run in group.samples]
    aside = axes.transData + ScaledTranslation(-7 / 72, 0, axes.figure.dpi_scale_trans)
    axes.plot([place] * len(repeats), repeats, transform=aside, **REPEATS)
    write(axes, place, estimate.value, f"{digits(estimate.value)}\nn = {estimate.num_runs}")


def write(axes: Axes, x: float, y: float, words: str, above: bool = False) -> None:
    """Words at the right of a point."""
    place = {"xytext": (5, 3), "va": "bottom"} if above else {"xytext": (6, -3), "va": "top"}
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    axes.annotate(words, (x, y), textcoords="offset points", fontsize=7, bbox=box, **place)


def troubles(results: ResultSet) -> list[str]:
    """A sentence for each strategy with rows that are not ok, or ok without a throughput."""
    sentences = []
    for group in results.groups:
        for status, number in group.counts.items():
            rows = group.rows[group.rows.status == status]
            of = f" {number} of {len(group.rows)}" if number < len(group.rows) else ""
            reason = "; ".join(dict.fromkeys(filter(None, rows.reason))) or "no reason was recorded"
            if status != "ok":
                sentences.append(f"{group.label} {status or 'without a status'}{of}: {reason}")
            elif not group.samples:
                sentences.append(f"{group.label} is ok but has neither windows nor images_per_s")
    return sentences


def _wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(clean(text), width)) or "?"
