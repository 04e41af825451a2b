"""The charts of throughput: bars from zero, with every run as a point, the 95 % interval and n. Needs no torch."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.charts.bars import Bar, draw_bars, finish, make_bar_figure
from scripts.results.formatting import format_interval, format_number, format_setting
from scripts.results.intervals import NO_REPEAT, strategy_throughput
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.strategy_cells import over_which_baseline
from scripts.shared.strategy_list import BASELINE

# Seconds of one ImageNet epoch on 4 Tesla V100-PCIe: the chart in the README of
# github.com/tczhangzhi/pytorch-distributed. ResNet-18, 224 px, global batch 3200; Apex 6400; one run, no interval.
PUBLISHED_EPOCH_S = (
    ("DataParallel", 4138.3),
    ("Horovod", 1200.3),
    ("Distributed (DDP)", 1188.5),
    ("Apex, batch 6400", 1186.5),
)


def throughput_chart(sets: list[ResultSet]) -> Figure | None:
    """Images/s by strategy, the fastest first; a panel for each model and size of image."""
    works = {
        work: [_throughput_bar(group, number) for number, group in found]
        for work, found in groups_by_model(sets).items()
    }
    if not works:
        return None
    figure, panels, legend = _bar_panels("Training throughput", sets, works, "images/s [95 %]")
    panels[-1].set_xlabel("images/s   (bar: geometric mean of runs, dots: runs, line: 95 % interval)")
    finish(figure, legend, sets, _all(works), [_about_n(_all(works))])
    return figure


def _throughput_bar(group: RunGroup, number: int) -> Bar:
    estimate = group.timed_throughput
    points = [strategy_throughput([run]).value for run in group.windows_of_runs]
    cells = _n(group), format_number(estimate.value), format_interval(estimate.low, estimate.high, format_number)
    return Bar(group.label, estimate.value, estimate.low, estimate.high, points, cells, group.is_parallel, number)


def speedup_chart(sets: list[ResultSet]) -> Figure | None:
    """Throughput of each group over that of the same set's baseline with the same settings, the fastest first."""
    works = {
        work: [bar for number, group in found if (bar := _speedup_bar(sets[number], group, number))]
        for work, found in groups_by_model(sets).items()
    }
    works = {work: _fastest_first(bars) for work, bars in works.items() if bars}
    if not works:
        return None
    title = f"Speed-up over one process ({BASELINE})"
    figure, panels, legend = _bar_panels(title, sets, works, f"x {BASELINE} [95 %]")
    for axes in panels:
        axes.axvline(1, color="black", linewidth=1, linestyle="--")
    panels[-1].set_xlabel(
        f"throughput / throughput of {BASELINE}   (dots: rounds, line: 95 % for all at once, dashed: {BASELINE})"
    )
    note, having = [_about_n(_all(works))], [results for results in sets if results.timed_groups_of(BASELINE)]
    if any(bar.ideal for bar in _all(works)):
        note.append(f"thick mark: ideal, as many times {BASELINE} as there are devices.")
    bases: dict[str, list[str]] = {}
    for of, to in (pair for results in having for pair in results.baseline_label_of.items() if pair[1] != BASELINE):
        bases.setdefault(to, []).append(of)
    note += [f"{', '.join(dict.fromkeys(of))}: over {to}." for to, of in bases.items()]
    if without := [results.name for results in sets if results not in having]:
        note.append(f"without ok runs of {BASELINE}, so not shown: {', '.join(without)}")
    others = [group for results in having for group in results.timed_groups if group.strategy != BASELINE]
    if unlike := [group.label for group in others if not any(each.baseline_of(group) for each in having)]:
        note.append(f"without ok runs of {BASELINE} in the same settings, so not shown: {'; '.join(unlike)}")
    whys = dict.fromkeys(each.why for results in having for each in results.speedups.values() if each.low is None)
    finish(figure, legend, sets, _all(works), note, no_interval="; ".join(filter(None, whys)) or NO_REPEAT)
    return figure


def _speedup_bar(results: ResultSet, group: RunGroup, number: int) -> Bar | None:
    over, single = results.speedups.get(group.label), results.baseline_of(group)
    if over is None or single is None:
        return None
    runs, baseline = group.sample.by_round(), single.sample.by_round()
    points = [math.exp(log - baseline[key]) for key, log in runs.items() if key in baseline]
    cells = _n(group), _times(over.value), format_interval(over.low, over.high, _times)
    mark = over_which_baseline(results, group)
    label = f"{group.label} ({mark})" if mark else group.label
    ideal = _ideal(group, single)
    return Bar(label, over.value, over.low, over.high, points, cells, group.is_parallel, number, ideal)


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 100 else format_number(value)


def _ideal(group: RunGroup, single: RunGroup) -> float | None:
    """Devices over the baseline's; None where the work is not divided, or ranks share cores."""
    num_devices = [set(each.ok_runs.world_size) for each in (group, single)]
    if (
        not group.is_parallel
        or (group.ok_runs.oversubscribed == "yes").any()
        or [len(each) for each in num_devices] != [1, 1]
    ):
        return None
    ideal = num_devices[0].pop() / num_devices[1].pop()
    return ideal if ideal > 1 else None


def groups_by_model(sets: list[ResultSet]) -> dict[str, list[tuple[int, RunGroup]]]:
    """(number of the set, group) of every group with a throughput, by model and size of image: the fastest strategy
    first, and the same strategy of all sets together."""
    found: dict[str, list[tuple[int, RunGroup]]] = {}
    for number, results in enumerate(sets):
        for group in results.groups:
            if group.throughput:
                row = group.ok_runs.iloc[0]
                found.setdefault(f"{format_setting(row.arch)}, {format_setting(row.image_size)} px", []).append(
                    (number, group)
                )
    for pairs in found.values():
        best: dict[str, float] = {}
        for _, group in pairs:
            best[group.label] = max(group.timed_throughput.value, best.get(group.label, 0.0))
        pairs.sort(key=lambda pair: (-best[pair[1].label], pair[1].label, pair[0]))
    return found


def _fastest_first(bars: list[Bar]) -> list[Bar]:
    best: dict[str, float] = {}
    for bar in bars:
        best[bar.label] = max(bar.value, best.get(bar.label, 0.0))
    return sorted(bars, key=lambda bar: (-best[bar.label], bar.label, bar.set_number))


def _bar_panels(
    title: str, sets: list[ResultSet], works: dict[str, list[Bar]], header: str
) -> tuple[Figure, list[Axes], Axes]:
    figure, panels, legend = make_bar_figure(title, sets, *map(len, works.values()))
    for axes, (work, bars) in zip(panels, works.items(), strict=True):
        draw_bars(axes, bars, len(sets), header)
        if len(works) > 1:
            axes.set_title(work, pad=14)
    return figure, panels, legend


def _all(works: dict[str, list[Bar]]) -> list[Bar]:
    return [bar for bars in works.values() for bar in bars]


def _about_n(bars: list[Bar]) -> str:
    return f"n: runs x timed windows of each; {', '.join(dict.fromkeys(bar.cells[0] for bar in bars))}."


def _n(group: RunGroup) -> str:
    sizes = sorted({len(run) for run in group.windows_of_runs})
    return f"{len(group.windows_of_runs)} x {'/'.join(map(str, sizes))}"
