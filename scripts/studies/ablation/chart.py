"""Draw what each option is worth, from a set that make ablate made.

    python -m scripts.studies.ablation.chart --results results/latest --strategy ddp

Prints a table, writes its lines to ablate.csv of the set, also those of what was not run and why, and draws
charts/ablate_<strategy>.png and .svg. Exit code: 1 where no run is ok, 2 for a mistake. Needs no torch.
"""

import dataclasses
from pathlib import Path

import numpy
import tyro
from matplotlib.figure import Figure

from benchmarks.common.system.programs import run_program
from scripts.charts.bars import Bar, draw_bars, make_bar_figure
from scripts.charts.chart_command import report_nothing, save_study_chart
from scripts.charts.figures import describe_rows, footnote
from scripts.sets.result_set import ResultSet, load_set
from scripts.sets.safe_names import refuse_links
from scripts.stats.families import find_spread
from scripts.stats.formatting import format_interval, format_number, text_table
from scripts.studies.ablation.analysis import Point, points_of, write_csv


@dataclasses.dataclass(frozen=True)
class Options:
    """Draw what each option is worth."""

    results: Path
    strategy: str


def table(points: list[Point]) -> str:
    """The points as text, each over the baseline; or why there is nothing."""
    lines = [("option", "images/s", "n", "x baseline", "95 %, together", "")]
    for point in points:
        if point.group is None:
            lines.append((point.name, "", "", "", "", point.why_not))
            continue
        speed, worth = point.group.throughput, point.worth
        over = (f"{worth.value:.3f}", format_interval(worth.low, worth.high, "{:.3f}".format)) if worth else ("1", "")
        lines.append(
            (
                point.name,
                format_number(speed.value),
                str(speed.num_runs),
                *over,
                worth.why or worth.verdict if worth else "",
            )
        )
    return text_table(lines, left=(0, 4, 5))


def ablate_chart(results: ResultSet, strategy: str, points: list[Point]) -> Figure:
    """Bars of throughput over the baseline's mean, from 0, with every repeat, the family's intervals and n."""
    timed = [point for point in points if point.group is not None]
    base = timed[0].group.throughput.value
    bars = [_bar(point, base) for point in timed]
    title, about = f"{strategy}: what each option is worth", describe_rows(timed[0].group.ok)
    figure, (axes,), _ = make_bar_figure(title, [results], len(bars), about=about)
    draw_bars(axes, bars, 1, "x baseline")
    axes.axvline(1, color="black", linestyle="--", linewidth=0.9)
    axes.set_xlabel("throughput over the baseline's (dashed), one option at a time; 1 = no difference")
    spread = find_spread([point.group.sample for point in timed if len(point.group.samples) > 1] or [])
    notes = [
        f"black lines: 95 % intervals of all ratios together (Dunnett; {spread.words}); dots: repeats over the "
        "baseline's mean."
        if any(bar.low is not None for bar in bars)
        else "no interval: one repeat says nothing about the spread between runs.",
        f"baseline: {format_number(base)} images/s.",
        *(f"{point.name}: {point.why_not}" for point in points if point.group is None),
    ]
    footnote(figure, notes)
    return figure


def _bar(point: Point, base: float) -> Bar:
    sample, worth = numpy.exp(point.group.sample.logs) / base, point.worth
    value = worth.value if worth else 1.0
    low, high = (worth.low, worth.high) if worth else (None, None)
    cells = (str(len(sample)), f"{value:.2f}", format_interval(low, high, "{:.2f}".format))
    return Bar(point.name, value, low, high, [*map(float, sample)], cells, point.group.parallel, 0)


def main(options: Options) -> int:
    refuse_links(options.results)
    results, strategy = load_set(options.results), options.strategy
    if not any(group.samples and group.strategy == strategy for group in results.groups):
        return report_nothing(results, f"no ok run of {strategy} in {results.path}")
    points = points_of(results, strategy)
    print(table(points))
    written = write_csv(results, strategy, points, f"{strategy}, {describe_rows(points[0].group.ok)}")
    return save_study_chart(results, written, ablate_chart(results, strategy, points), f"ablate_{strategy}")


if __name__ == "__main__":
    run_program(lambda: main(tyro.cli(Options)))
