"""Draw the ratio of each option to the baseline, from a set that ./bench study ablation made.

    python -m scripts.studies.ablation.chart --results results/latest --strategy ddp

Prints a table, writes it to ablate.csv of the set, with a row also for each option that was not run and why, and
draws charts/ablate_<strategy>.png and .svg. Exit code: 1 where no run is ok, 2 for a mistake. Needs no torch.
"""

from collections.abc import Sequence

import numpy
import tyro
from matplotlib.figure import Figure

from scripts.charts.bars import Bar, draw_bars, make_bar_figure
from scripts.charts.figures import footnote
from scripts.results.families import count_compared, method_text
from scripts.results.formatting import format_interval, format_number, text_table
from scripts.results.intervals import FEW_ROUNDS
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_rows
from scripts.shared.programs import run_main_and_exit
from scripts.studies.ablation.analysis import OptionResult, option_results, write_csv
from scripts.studies.study_chart import StudyChartOptions, report_nothing, save_study_chart


def table(results: Sequence[OptionResult]) -> str:
    """Each option's throughput and its ratio to the baseline as text; or why the option was not run."""
    lines = [("option", "images/s", "n", "x baseline", "simultaneous 95 %", "")]
    for option in results:
        if option.group is None or (speed := option.group.throughput) is None:
            lines.append((option.name, "", "", "", "", option.why_not))
            continue
        value, bounds, note = "1", "", ""
        if ratio := option.ratio:
            value, bounds = f"{ratio.value:.3f}", format_interval(ratio.low, ratio.high, "{:.3f}".format)
            note = ratio.why or ratio.verdict
        lines.append((option.name, format_number(speed.value), str(speed.num_runs), value, bounds, note))
    return text_table(lines, left_aligned=(0, 4, 5))


def ablate_chart(results: ResultSet, strategy: str, options: Sequence[OptionResult]) -> Figure:
    """Bars of throughput over the baseline's mean, from 0, with every run, the simultaneous intervals and n."""
    groups = [option.group for option in options if option.group is not None]
    baseline = groups[0].throughput
    assert baseline is not None
    bars = [_bar(option, option.group, baseline.value) for option in options if option.group is not None]
    title, about = f"{strategy}: what each option is worth", describe_rows(groups[0].ok_runs)
    figure, (axes,), _ = make_bar_figure(title, [results], len(bars), about=about)
    draw_bars(axes, bars, 1, "x baseline")
    axes.axvline(1, color="black", linestyle="--", linewidth=0.9)
    axes.set_xlabel("throughput over the baseline's (dashed), one option at a time; 1 = no difference")
    compared = count_compared(option.ratio for option in options if option.ratio)
    notes = [
        f"black lines: simultaneous 95 % intervals ({method_text(compared)}); dots: runs over the baseline's."
        if any(bar.low is not None for bar in bars)
        else f"no interval: {FEW_ROUNDS}.",
        f"baseline: {format_number(baseline.value)} images/s.",
        *(f"{option.name}: {option.why_not}" for option in options if option.group is None),
    ]
    footnote(figure, notes)
    return figure


def _bar(option: OptionResult, group: RunGroup, baseline_images_per_s: float) -> Bar:
    ratios_of_runs, ratio = numpy.exp(group.sample.log_throughputs) / baseline_images_per_s, option.ratio
    value = ratio.value if ratio else 1.0
    low, high = (ratio.low, ratio.high) if ratio else (None, None)
    cells = (str(len(ratios_of_runs)), f"{value:.2f}", format_interval(low, high, "{:.2f}".format))
    return Bar(option.name, value, low, high, [*map(float, ratios_of_runs)], cells, group.is_parallel, 0)


def main(options: StudyChartOptions) -> int:
    results, strategy = load_set(options.results), options.strategy
    if not any(group.windows_of_runs and group.strategy == strategy for group in results.groups):
        return report_nothing(results, f"no ok run of {strategy} in {results.path}")
    measured = option_results(results, strategy)
    print(table(measured))
    baseline = measured[0].group
    assert baseline is not None
    written = write_csv(results, strategy, measured, f"{strategy}, {describe_rows(baseline.ok_runs)}")
    return save_study_chart(results, written, ablate_chart(results, strategy, measured), f"ablate_{strategy}")


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(StudyChartOptions, description=__doc__)))
