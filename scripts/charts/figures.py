"""What charts share: size, colours, title, legend and file.

Colours are Okabe and Ito's; what a colour says, a hatch, a marker or a line style says too.
"""

import functools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.common.errors import UserError
from benchmarks.common.files import replace_atomically
from scripts.results.formatting import printable

matplotlib.rcdefaults()  # a matplotlibrc of the user's would change charts
matplotlib.rcParams.update(
    {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 8,
        "axes.titlelocation": "left",
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        "text.parse_math": False,
    }
)
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
LINE_COLORS = tuple(color for color in COLORS if color != "#F0E442")  # yellow is too faint for a line on white
MARKERS = "osD^vP*X<>hpd8H"
LINES = ("-", "--", "-.", ":")
RUN_STYLE: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.5,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.7,
    "zorder": 3,
}
"""Of each run, in every chart."""
VALUE_FONT: dict[str, Any] = {"family": "monospace", "size": 6.5}
TITLE_FONT: dict[str, Any] = {"fontsize": 10, "fontweight": "bold"}
WIDTH, EDGE, ROW_HEIGHT, AXIS_HEIGHT = 7.0, 0.1, 0.27, 0.45  # inches
TITLE_LETTERS, ABOUT_LETTERS, LEGEND_LETTERS = 78, 125, 120  # of a line


def line_style(number: int) -> dict[str, Any]:
    """Of the n-th line of a chart."""
    return {
        "color": LINE_COLORS[number % len(LINE_COLORS)],
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markerfacecolor": "none",
        "linewidth": 1.1,
        "markersize": 3.5,
    }


def make_figure(
    title: str, about: str, heights: Sequence[float], num_columns: int = 1, legend: Sequence[str] = ()
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels from the top. heights: of the rows of panels, inches.

    title: the finding. about: lines below it, such as what was run on what. legend: the entries that draw_legend will
    get.
    """
    title = wrap(title, TITLE_LETTERS)
    about = "\n".join(wrap(line, ABOUT_LETTERS) for line in about.splitlines())
    about_at = EDGE + 0.18 * len(title.splitlines())
    top = about_at + 0.13 * len(about.splitlines()) + EDGE
    bottom = EDGE + 0.15 * (-(-len(legend) // _num_columns(legend)) if legend else 0)
    height = top + sum(heights) + AXIS_HEIGHT * len(heights) + bottom
    panels = ConstrainedLayoutEngine(rect=(0, bottom / height, 1, 1 - (top + bottom) / height))
    figure = Figure(figsize=(WIDTH, height), layout=panels)
    heading = figure.suptitle(title, x=EDGE / WIDTH, y=1 - EDGE / height, ha="left", va="top", **TITLE_FONT)
    heading.set_in_layout(False)
    figure.text(EDGE / WIDTH, 1 - about_at / height, about, va="top", fontsize=7, color="#444444")
    return figure, list(figure.subplots(len(heights), num_columns, height_ratios=heights, squeeze=False).flat)


def make_rows(
    title: str, about: str, labels: Sequence[str], texts: Sequence[str], axis_label: str, legend: Sequence[str]
) -> tuple[Figure, Axes]:
    """One panel for a bar a label, at 0, 1, ... from the top down. texts: a header, and one beside each bar."""
    num_rows = max(2, len(labels))
    figure, (axes,) = make_figure(title, about, [ROW_HEIGHT * num_rows], legend=legend)
    for place, text in enumerate(texts, -1):
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontproperties=VALUE_FONT)
    axes.set_ylim(num_rows - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), [wrap(label, 30) for label in labels])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(axis_label)
    return figure, axes


def draw_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Below the panels, where make_figure keeps room."""
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.05 / figure.get_figheight()),
        ncols=_num_columns(labels),
        frameon=False,
        fontsize=7,
        handlelength=3.5,
        labelspacing=0.3,
        borderpad=0,
    )


def _num_columns(labels: Sequence[str]) -> int:
    return max(1, min(4, len(labels), LEGEND_LETTERS // (max(map(len, labels)) + 10)))


def save_chart(figure: Figure, folder: Path, name: str, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write `folder/name.<format>`. Raises UserError."""
    paths = [folder / f"{name}.{kind}" for kind in formats]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, path in zip(formats, paths, strict=True):
            replace_atomically(path, functools.partial(figure.savefig, format=kind, dpi=200))
    except OSError as error:
        raise UserError(f"cannot write charts in {folder}: {error.strerror}; name another folder: --output") from None
    return paths


def wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(printable(text), width)) or "?"
