"""Draw what ./bench study loaders measured: images/s of every loader.

Needs no torch.
"""

import pandas
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scripts.charts.figures import COLORS, footnote
from scripts.results.formatting import format_number

BAR_STYLES = {"ours": (COLORS[0], ""), "": (COLORS[1], "///")}  # by a name's first word


def loaders_chart(rates: pandas.DataFrame) -> Figure:
    """Bars of images/s, a panel per number of cores. rates: as scripts.studies.loaders.measure writes them."""
    by_cores = [*rates.groupby("cores", sort=True)]
    heights = [0.4 + 0.24 * len(of_cores) for _, of_cores in by_cores]
    figure = Figure(figsize=(7.5, sum(heights) + 0.7 * len(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    size, machine = rates.image_size.iloc[0], rates.machine.iloc[0]
    figure.suptitle(f"Loaders at {size} px, without training\n{machine}", x=0.01, ha="left", fontsize=9)
    panels = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    for axes, (cores, of_cores) in zip(panels, by_cores, strict=True):
        _draw_rates(axes, of_cores)
        axes.set_title(f"{cores} {'core' if cores == 1 else 'cores'}", loc="left", fontsize=8)
    note = (
        "Blue: this suite. Hatched: torchvision. Bars: images over seconds of all windows; lines: 95 % intervals over "
        "windows, cut where they leave the chart; n: windows."
    )
    footnote(figure, [note])
    return figure


def _draw_rates(axes: Axes, rates: pandas.DataFrame) -> None:
    # an interval that is wide for want of windows must not squeeze the bars
    end_of_axis = min(rates[["images_per_s", "high"]].max().max(), 1.6 * rates.images_per_s.max())
    for place, row in enumerate(rates.to_dict("records")):
        color, hatch = BAR_STYLES.get(row["loader"].split(",")[0], BAR_STYLES[""])
        axes.barh(place, row["images_per_s"], height=0.72, color=color, hatch=hatch, edgecolor="black", linewidth=0.8)
        end = row["images_per_s"]
        if pandas.notna(row["low"]):
            axes.plot([row["low"], row["high"]], [place, place], color="black", linewidth=1.5, marker="|", markersize=6)
            end = max(end, min(row["high"], end_of_axis))
        times = f", {row['times_plain']:.2f}x" if pandas.notna(row["times_plain"]) else ""
        axes.annotate(
            f"{format_number(row['images_per_s'])}{times}  (n = {row['n']})",
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            annotation_clip=False,
        )
    axes.set_yticks(range(len(rates)), rates.loader, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * end_of_axis)
    axes.set_xlabel("images/s   (x: times torchvision's plain pipeline with Pillow)", fontsize=7)
