"""Draw what ./bench study loaders measured: images/s of every loader, and what ours spends on an image, by cause.

Needs no torch.
"""

import pandas
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scripts.charts.figures import COLORS, footnote
from scripts.stats.formatting import format_number

BAR_STYLES = {"ours": (COLORS[0], ""), "bare": ("white", ""), "": (COLORS[1], "///")}  # by a name's first word
CAUSE_HATCHES = ("", "///", "...", "xxx", "---")


def loaders_chart(rates: pandas.DataFrame, costs: pandas.DataFrame) -> Figure:
    """Bars of images/s, a panel per number of cores, and below them the CPU time of an image by cause.

    rates, costs: as scripts.studies.loaders.measure writes them.
    """
    by_cores = [*rates.groupby("cores", sort=True)]
    heights = [0.4 + 0.24 * len(of_cores) for _, of_cores in by_cores] + [0.7 + 0.3 * costs.loader.nunique()]
    figure = Figure(figsize=(7.5, sum(heights) + 0.7 * len(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    size, machine = rates.image_size.iloc[0], rates.machine.iloc[0]
    figure.suptitle(f"Loaders at {size} px, without training\n{machine}", x=0.01, ha="left", fontsize=9)
    panels = figure.subplots(len(heights), height_ratios=heights)
    for axes, (cores, of_cores) in zip(panels, by_cores, strict=False):
        _draw_rates(axes, of_cores)
        axes.set_title(f"{cores} {'core' if cores == 1 else 'cores'}", loc="left", fontsize=8)
    _draw_costs(panels[-1], costs)
    notes = [
        "Blue: this suite. White: bare loops, with crops drawn beforehand and no batches. Hatched: "
        "other projects. Bars: images over seconds of all windows; lines: 95 % intervals over windows, cut where they "
        "leave the chart; n: windows.",
        f"CPU time: medians of {costs.n.min()} rounds; 95 % intervals of each cause are in costs.csv.",
    ]
    footnote(figure, notes)
    return figure


def _draw_rates(axes: Axes, rates: pandas.DataFrame) -> None:
    # an interval that is wide for want of windows must not squeeze the bars
    end_of_axis = min(rates[["images_per_s", "high"]].max().max(), 1.6 * rates.images_per_s.max())
    for place, row in enumerate(rates.to_dict("records")):
        color, hatch = BAR_STYLES.get(row["loader"].split()[0].strip(","), BAR_STYLES[""])
        axes.barh(place, row["images_per_s"], height=0.72, color=color, hatch=hatch, edgecolor="black", linewidth=0.8)
        end = row["images_per_s"]
        if pandas.notna(row["low"]):
            axes.plot([row["low"], row["high"]], [place, place], color="black", linewidth=1.5, marker="|", markersize=6)
            end = max(end, min(row["high"], end_of_axis))
        times = f", {row['times_plain']:.2f}x" if pandas.notna(row["times_plain"]) else ""
        of_bare = f", {row['times_bare']:.2f} of its bare loop" if pandas.notna(row["times_bare"]) else ""
        text = f"{format_number(row['images_per_s'])}{times}{of_bare}  (n = {row['n']})"
        axes.annotate(
            text,
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


def _draw_costs(axes: Axes, costs: pandas.DataFrame) -> None:
    """A stacked bar per loader. A cause that is below zero, by noise, has no bar; its number stands beside the bar."""
    names, causes = list(dict.fromkeys(costs.loader)), list(dict.fromkeys(costs.cause))
    ends = dict.fromkeys(names, 0.0)
    for number, cause in enumerate(causes):
        for row in costs[costs.cause == cause].to_dict("records"):
            width, place = max(0.0, row["us_per_image"]), names.index(row["loader"])
            axes.barh(
                place,
                width,
                left=ends[row["loader"]],
                height=0.6,
                color="white" if not number else COLORS[(number - 1) % len(COLORS)],
                hatch=CAUSE_HATCHES[number % len(CAUSE_HATCHES)],
                edgecolor="black",
                linewidth=0.6,
                label=cause if row["loader"] == names[0] else None,
            )
            ends[row["loader"]] += width
    for place, name in enumerate(names):
        rows = costs[costs.loader == name]
        of_causes = zip(rows.cause, rows.us_per_image, strict=True)
        below = [f"; {cause}: {us_per_image:.1f}" for cause, us_per_image in of_causes if us_per_image < 0]
        text = f"bare loop: {rows.bare_share.iloc[-1]:.0%}{''.join(below)}"
        axes.annotate(text, (ends[name], place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(names)), [f"ours, {name}" for name in names], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(ends.values()))
    axes.set_xlabel("CPU microseconds an image, by cause", fontsize=7)
    axes.legend(ncols=len(causes), fontsize=6.5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
