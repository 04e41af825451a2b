"""Draw the charts of result sets and print their summary table.

    python -m scripts.charts.plot --results results/latest [results/other ...] [--output DIR]

Writes the charts of CHARTS and of DETAIL_CHARTS, each as PNG and SVG: into charts/ of the set, or for
several sets, which are drawn side by side, into charts/with-<others>/ of the first. Exit code: 1 where no run
is ok, 2 for a mistake of the user. Needs no torch.
"""

import dataclasses
import sys
from pathlib import Path

import tyro

from scripts.charts import figures, throughput
from scripts.charts.learning_curves import learning_chart
from scripts.charts.step_chart import step_chart
from scripts.charts.telemetry_chart import telemetry_chart
from scripts.results.accuracy import describe_top1
from scripts.results.formatting import printable, text_table
from scripts.results.options import PlotOptions
from scripts.results.result_set import ResultSet, load_set
from scripts.results.set_text import describe_failures, describe_sets
from scripts.results.set_warnings import find_warnings
from scripts.results.strategy_cells import STRATEGY_COLUMNS, strategy_cells
from scripts.shared.programs import exit_code, run_main_and_exit

CHARTS = {
    "throughput": throughput.throughput_chart,
    "speedup": throughput.speedup_chart,
    "learning": learning_chart,
}
DETAIL_CHARTS = {"step_account": step_chart, "telemetry": telemetry_chart}


def summary_table(results: Path | ResultSet) -> str:
    """One line a strategy of a set, and below it why runs are missing. Raises UserError for a missing folder."""
    results = results if isinstance(results, ResultSet) else load_set(results)
    rows = [strategy_cells(results, group).values() for group in results.groups]
    lines = [STRATEGY_COLUMNS, *([printable(cell) for cell in row] for row in rows)]
    table = text_table(lines, left_aligned=range(len(STRATEGY_COLUMNS)))
    sentences = [printable(each) for each in (describe_top1(results.groups), *describe_failures(results)) if each]
    about = f"{results.name}: {describe_sets([results])}"
    return "\n".join([about, "", table, *([""] if sentences else []), *sentences])


def load_sets(paths: tuple[Path, ...]) -> list[ResultSet]:
    """The sets in `paths`, each once, with names that differ."""
    sets = list({path.resolve(): load_set(path) for path in paths}.values())
    names = [results.name for results in sets]
    return [dataclasses.replace(each, name=str(each.path)) if names.count(each.name) > 1 else each for each in sets]


def draw(sets: list[ResultSet], folder: Path) -> list[Path]:
    """Write every chart that the sets hold something for; returns the paths."""
    drawn = ((name, chart(sets)) for name, chart in (CHARTS | DETAIL_CHARTS).items())
    return [path for name, figure in drawn if figure for path in figures.save_chart(figure, folder, name)]


def main(options: PlotOptions) -> int:
    sets = load_sets(options.results)
    print("\n\n".join(summary_table(results) for results in sets))
    empty = [results for results in sets if results.ok_runs.empty]
    if len(empty) == len(sets):
        names = " or ".join(str(results.path) for results in sets)
        print(f"error: no ok rows in {names}/runs.csv, so there is nothing to draw", file=sys.stderr)
        return 1
    for results in empty:
        print(f"warning: no ok rows in {results.path}; it is left out of the charts", file=sys.stderr)
    print()
    for results in sets:
        for sentence in find_warnings(results):
            print(f"warning: {printable(sentence)}")
    folder = options.output or sets[0].path / "charts"
    if len(sets) > 1 and not options.output:
        folder /= "with-" + "-".join(results.path.resolve().name for results in sets[1:])
    print("\ncharts:")
    for path in draw(sets, folder):
        print(f"  {path}")
    return 0


def run_command_line(args: list[str] | None = None) -> int:
    """The exit code of these words of a command line, or of this program's own."""
    return exit_code(lambda: main(tyro.cli(PlotOptions, args=args)))


if __name__ == "__main__":
    run_main_and_exit(run_command_line)
