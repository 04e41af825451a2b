"""What charts share: size, title, legend, footnotes, and the file. Needs no torch.

Colours are Okabe and Ito's; what a colour says, a hatch, a marker or a line style says too.
"""

import io
import textwrap
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.common.errors import UserError
from benchmarks.common.files import replace_atomically
from scripts.results.formatting import printable, printable_lines
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_sets

# a matplotlibrc of the user's would change charts
matplotlib.rcdefaults()
matplotlib.rcParams.update(
    {
        "font.size": 8,
        "figure.figsize": (7.0, 5.0),  # the width of every chart; heights are worked out
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 8,
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "charts",
        "text.parse_math": False,
        "text.usetex": False,
        "axes.titlelocation": "left",
    }
)
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
SET_HATCHES = ("", "....", "\\\\\\\\", "xxxx", "++++", "----", "oo", "**")
LINE_COLORS = tuple(color for color in COLORS if color != "#F0E442")  # yellow is too faint for a line on white
LEGEND_LETTERS, LEGEND_LINE_LETTERS = 90, 130  # of an entry before it is wrapped; of a line of entries with handles
MARKERS = "osD^vP*X<>hpd8H"
LINES = ("-", "--", "-.", ":")
# how each run is drawn, in every chart
RUN_STYLE: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.5,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.7,
    "zorder": 3,
}


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
    title = f"{title}\n{wrap(about or describe_sets(sets), 105)}"
    heights = [*heights, 0.05 + 0.16 * num_legend_rows]
    height = sum(heights) + 0.5 * len(heights) + 0.15 * title.count("\n")
    figure = Figure(figsize=(matplotlib.rcParams["figure.figsize"][0], height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    grid = figure.add_gridspec(len(heights), num_columns, height_ratios=heights)
    panels = [figure.add_subplot(grid[row, column]) for row in range(len(heights) - 1) for column in range(num_columns)]
    legend = figure.add_subplot(grid[-1, :])
    legend.set_axis_off()
    return figure, panels, legend


def legend_shape(labels: list[str]) -> tuple[int, int]:
    """Columns and rows of lines of text that a legend of these entries takes; long ones are wrapped."""
    longest = max(min(len(each), LEGEND_LETTERS) for each in labels)
    num_columns = max(1, min(3, len(labels), LEGEND_LINE_LETTERS // (longest + 12)))
    return num_columns, -(-sum(wrap(each, LEGEND_LETTERS).count("\n") + 1 for each in labels) // num_columns)


def draw_legend(legend: Axes, handles: list, labels: list[str], num_columns: int) -> None:
    """Entries for lines or points, at the place that make_figure keeps."""
    wrapped = [wrap(each, LEGEND_LETTERS) for each in labels]
    legend.legend(handles, wrapped, loc="center", ncols=num_columns, fontsize=7, frameon=False, handlelength=4)


def footnote(figure: Figure, lines: list[str]) -> None:
    """Lines below everything else, and in the figure's label, for captions."""
    lines = [textwrap.shorten(printable(line), 330, placeholder=" ...") for line in lines]
    figure.set_label("; ".join(line.rstrip(".") for line in lines))
    text = "\n".join(wrap(line, 140) for line in lines)
    figure.text(0.01, -0.01, text, va="top", ha="left", fontsize=6.5)


def save_chart(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `folder/name.png` and `.svg`, each whole or not at all. Raises UserError where it cannot write."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_save(figure, folder / f"{name}.{kind}") for kind in ("png", "svg")]
    except OSError as error:
        raise UserError(f"cannot write charts in {folder}: {error.strerror}; name another folder: --output") from None


def _save(figure: Figure, path: Path) -> Path:
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    options: dict[str, Any] = {"dpi": 200, "bbox_inches": "tight", "pad_inches": 0.1}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a device may be named in any script
        figure.savefig(out := io.BytesIO(), format=path.suffix[1:], metadata=metadata, **options)
    content = out.getvalue()
    if path.suffix == ".svg":  # it has the texts of a set in comments
        content = printable_lines(content.decode()).encode()
    replace_atomically(path, lambda file: file.write(content))
    return path


def wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(printable(text), width)) or "?"


def label_with_set(group: RunGroup, results: ResultSet, sets: list[ResultSet]) -> str:
    """The group's label, with the name of its set where there are several."""
    return printable(f"{group.label} in {results.name}" if len(sets) > 1 else group.label)
