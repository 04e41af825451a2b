"""Many sets on one page, by the day on which each was measured: days, versions and hardware are marked.

    ./bench trend results/night-1 results/night-2 results/night-3 --output results/trend.html

For a nightly job, which measures a set a night. No two days are compared: no line joins them, and there is neither
ratio nor verdict between them. `./bench ab` compares two versions on one day. The page needs no network and no script.
Exit code: 1 where no set has a timed run, 2 for a mistake. Needs no torch.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.common.store.output_files import write_output
from scripts.charts.plot import load_sets
from scripts.options.set_options import TrendOptions
from scripts.pages.page import inline_svg
from scripts.pages.page_templates import html_template
from scripts.sets.run_group import RunGroup
from scripts.sets.strategy_cells import strategy_cells
from scripts.stats.formatting import plural, printable, printable_lines
from scripts.studies.trend.analysis import VERSIONS, DatedSet, groups_by_hardware_and_work, in_order_of_days
from scripts.studies.trend.chart import trend_chart

TREND_COLUMNS = ("day", "set", "strategy", "images/s", "n", "x single", "commit", *VERSIONS)
TEXT_COLUMNS = ("day", "set", "strategy", "commit", *VERSIONS)


def main(options: TrendOptions) -> int:
    sets = load_sets(options.sets)
    dated = in_order_of_days(sets)
    if not dated:
        print("error: no set has a timed run, so there is nothing to show", file=sys.stderr)
        return 1
    for results in sets:
        if not results.timed_groups_without_aa:
            print(f"warning: {results.path} has no timed run, and is left out", file=sys.stderr)
    write_output(options.output, render_trend(dated))
    print(f"{plural(len(dated), 'set')} of {plural(len({each.day for each in dated}), 'day')}: {options.output}")
    return 0


def render_trend(dated: list[DatedSet]) -> str:
    """The page as HTML, without control characters. dated: in the order of their days."""
    parts = [
        _part(number, about, pairs)
        for number, (about, pairs) in enumerate(groups_by_hardware_and_work(dated).items(), start=1)
    ]
    html = html_template(Path(__file__).with_name("trend.html.j2")).render(
        parts=parts,
        columns=[name for name in TREND_COLUMNS if any(row[name] for part in parts for row in part["rows"])],
        text_columns=TEXT_COLUMNS,
        counts=f"{plural(len(dated), 'set')} of {plural(len({each.day for each in dated}), 'day')}",
        contradictions=[printable(text) for each in dated for text in each.results.contradictions],
    )
    return printable_lines(html)


def _part(number: int, about: str, pairs: list[tuple[DatedSet, RunGroup]]) -> dict[str, Any]:
    """One kind of hardware and images: its chart and its table."""
    chart = inline_svg(trend_chart(about, pairs), f"trend-{number}", f"images/s by day on {about}")
    return {"number": number, "about": about, "chart": chart, "rows": [_row(each, group) for each, group in pairs]}


def _row(dated: DatedSet, group: RunGroup) -> dict[str, str]:
    """The cells of TREND_COLUMNS."""
    cells = {name: text for name, text in strategy_cells(dated.results, group).items() if name in TREND_COLUMNS}
    cells |= {"day": dated.day, "set": dated.results.name, "commit": dated.commit, **dated.versions}
    return {name: printable(text) for name, text in cells.items()}
