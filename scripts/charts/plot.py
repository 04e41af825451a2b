"""Draw the charts of a result set, and print its table and the answer.

    ./bench plot --results results/latest --format png svg

Also while a training goes on: its learning curve so far. Exit code: 1 where there is nothing to draw, 2 for a mistake.
"""

import sys

import tyro
from matplotlib.figure import Figure

from scripts.charts.figures import save_chart
from scripts.charts.learning_curves import learning_chart
from scripts.charts.step_chart import step_chart
from scripts.charts.telemetry_chart import telemetry_chart
from scripts.charts.throughput import published_chart, speedup_chart, throughput_chart
from scripts.results.answer import terminal_text
from scripts.results.options import PlotOptions
from scripts.results.result_set import ResultSet, load_set
from scripts.shared.programs import exit_code, run_main_and_exit

CHARTS = {
    "throughput": throughput_chart,
    "speedup": speedup_chart,
    "step_account": step_chart,
    "learning": learning_chart,
    "telemetry": telemetry_chart,
}


def draw_charts(results: ResultSet) -> dict[str, Figure]:
    """By name, every chart that the set holds something for."""
    return {name: figure for name, chart in CHARTS.items() if (figure := chart(results))}


def main(options: PlotOptions) -> int:
    results = load_set(options.results)
    figures = draw_charts(results)
    if options.beside:
        figures[f"beside_{options.beside}"] = published_chart(results)
    print(terminal_text(results))
    if not figures:
        print(f"error: {results.path} has no ok run and no epoch, so there is nothing to draw", file=sys.stderr)
        return 1
    folder = options.output or results.path / "charts"
    for name, figure in figures.items():
        save_chart(figure, folder, name, options.format)
    print(f"charts: {folder}")
    return 0


def run_command_line(args: list[str] | None = None) -> int:
    return exit_code(lambda: main(tyro.cli(PlotOptions, args=args)))


if __name__ == "__main__":
    run_main_and_exit(run_command_line)
