"""The report for a paper: report.tex with its table, charts, failures and commands, all from one set's files.

The values are those of report.html. Needs no torch.
"""

from collections.abc import Mapping

from matplotlib.figure import Figure

from scripts.report.headline import headline
from scripts.report.latex import Tex, escape_tex, tex_column_format, tex_command, tex_fixed, tex_interval, tex_number
from scripts.report.page_templates import TEMPLATES, tex_template
from scripts.report.provenance import reproduction_commands
from scripts.results.accuracy import describe_top1, top1_accuracy
from scripts.results.intervals import mean_interval
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_failures, describe_images
from scripts.results.strategy_cells import over_which_baseline

NUMBERS = ("n", "devices", "speed", "times", "joules")


def paper_tex(results: ResultSet, drawn: Mapping[str, Figure]) -> str:
    """report.tex of a set. drawn: its charts as in the report, whose titles and footnotes are the captions here."""
    rows = [_row(results, group) for group in results.timed_groups]
    return tex_template(TEMPLATES / "report.tex.j2").render(
        name=results.name,
        images=describe_images(group for group in results.timed_groups),
        headline=headline(results),
        rows=rows,
        formats={name: Tex(tex_column_format([row[name] for row in rows])) for name in NUMBERS},
        with_intervals=any(row["speed_bounds"] for row in rows),
        with_energy=any(row["joules"] for row in rows),
        about_top1=describe_top1(results.groups).rstrip("."),
        charts=[(Tex(name), *caption(figure)) for name, figure in drawn.items()],  # words: page.report_figures
        commands=[tex_command(line) for line in reproduction_commands(results)],
        troubles=describe_failures(results),
    )  # fmt: skip


def _row(results: ResultSet, group: RunGroup) -> dict[str, str]:
    rate, over = group.timed_throughput, results.speedups.get(group.label)
    joules = group.ok_runs.energy_j_per_image.dropna()
    energy = mean_interval(joules.to_numpy(float)) if len(joules) else None
    accuracy, mark = top1_accuracy(group), escape_tex(over_which_baseline(results, group))
    times_bounds = tex_interval(over.low, over.high, tex_fixed) if over else ""
    return {
        "strategy": group.label + ("" if group.is_parallel else " (not parallel)"),
        "devices": Tex(f"{group.ok_runs.world_size.max():.0f}" if group.ok_runs.world_size.max() > 0 else ""),
        "n": Tex(str(rate.num_runs)),
        "speed": tex_number(rate.value),
        "speed_bounds": tex_interval(rate.low, rate.high),
        "times": tex_fixed(over.value) if over else Tex(""),
        "times_bounds": Tex(", ".join(filter(None, [times_bounds, mark]))) if over else Tex(""),
        "top1": accuracy.text if accuracy else "",
        "joules": tex_number(energy[0]) if energy else Tex(""),
        "joules_bounds": tex_interval(*energy[1:]) if energy else Tex(""),
    }


def caption(figure: Figure) -> tuple[str, str]:
    """The chart's title, and what is said above and below it."""
    title, _, about = figure.get_suptitle().partition("\n")
    return title, f"{' '.join(about.split())}; {figure.get_label()}".strip("; ")
