"""The charts of throughput: bars from zero, with every run as a point and the 95 % interval."""

import math
from collections.abc import Callable

from matplotlib.figure import Figure

from benchmarks.common.config import IMAGENET_TRAIN_IMAGES
from benchmarks.common.errors import UserError
from scripts.charts.bars import Bar, bar_chart
from scripts.results.answer import find_answer, over_which_baseline
from scripts.results.formatting import plural_of_several
from scripts.results.intervals import strategy_throughput
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_rows
from scripts.shared.strategy_list import BASELINE

V100X4_CONFIG = "configs/v100x4.yaml"
# Seconds of one ImageNet epoch on 4 Tesla V100-PCIe: the chart in the README of
# github.com/tczhangzhi/pytorch-distributed. ResNet-18, 224 px, global batch 3200; Apex 6400; one run, no interval.
PUBLISHED_EPOCH_S = {
    "DataParallel": 4138.3,
    "Horovod": 1200.3,
    "Distributed (DDP)": 1188.5,
    "Apex, batch 6400": 1186.5,
}


def throughput_chart(results: ResultSet) -> Figure | None:
    """Images/s by strategy, the fastest first."""
    answer = find_answer(results)
    if answer is None:
        return None
    bars = [_rate_bar(group) for group in _fastest_first(results)]
    axis_label = "images/s   (bar: mean, dots: runs, line: 95 % interval)"
    return bar_chart(answer.fastest_sentence, _about(results, bars), bars, axis_label, "images/s [95 %]")


def speedup_chart(results: ResultSet) -> Figure | None:
    """Over each strategy's own baseline, with the other plain baselines and the ideal."""
    groups = [group for group in results.timed_groups if group.label in results.speedups]
    answer = find_answer(results)
    if not groups or not answer:
        return None
    bars = sorted((_speedup_bar(results, group) for group in groups), key=lambda bar: -bar.value)
    speeds = {group.label: group.timed_throughput.value for group in results.plain_baselines}
    lines = {label: speed / speeds[BASELINE] for label, speed in speeds.items() if BASELINE in speeds}
    axis_label = f"images/s over those of {BASELINE}   (dots: rounds, line: 95 % interval)"
    title, about = answer.baseline_sentence or answer.fastest_sentence, _about(results, bars)
    return bar_chart(title, about, bars, axis_label, f"x {BASELINE} [95 %]", lines)


def published_chart(results: ResultSet) -> Figure:
    """Seconds of an ImageNet epoch beside those published for 4 V100. Raises UserError for a set of other settings."""
    if {*results.ok_runs.config} != {V100X4_CONFIG}:
        raise UserError(
            f"{results.path} was not measured with {V100X4_CONFIG}, so that the published times of 4 V100 are of other "
            f"settings; leave out --beside, or measure: ./bench run all --config {V100X4_CONFIG}"
        )
    own = [
        _rate_bar(group, "{:,.0f}", lambda rate: IMAGENET_TRAIN_IMAGES / rate)
        for group in _fastest_first(results)
        if not group.is_aa_copy
    ]
    published = [Bar(name, value, style="{:,.0f}", is_reference=True) for name, value in PUBLISHED_EPOCH_S.items()]
    title = f"An ImageNet epoch: {own[0].label} {own[0].value:,.0f} s; published for 4 V100: DDP 1,189 s"
    bars, note = [*own, *published], "grey: published, one run each, no interval"
    return bar_chart(title, f"{describe_rows(results.ok_runs)}\n{note}", bars, "seconds of an epoch", "seconds [95 %]")


def _fastest_first(results: ResultSet) -> list[RunGroup]:
    return sorted(results.timed_groups, key=lambda group: -group.timed_throughput.value)


def _rate_bar(group: RunGroup, style: str = "{:,.1f}", convert: Callable[[float], float] = float) -> Bar:
    rate = group.timed_throughput
    low, high = sorted(convert(end) for end in (rate.low, rate.high) if end) or (None, None)
    points = [convert(strategy_throughput([run]).value) for run in group.windows_of_runs]
    return Bar(group.label, convert(rate.value), low, high, points, style, group.is_parallel, _is_reference(group))


def _speedup_bar(results: ResultSet, group: RunGroup) -> Bar:
    over, base = results.speedups[group.label], results.baseline_of(group)
    assert base is not None
    runs, of_base = group.log_by_round, base.log_by_round
    points = [math.exp(log - of_base[key]) for key, log in runs.items() if key in of_base]
    label, has = group.label + over_which_baseline(results, group), (group.is_parallel, _is_reference(group))
    return Bar(label, over.value, over.low, over.high, points, "{:.2f}", *has, _ideal(group, base))


def _is_reference(group: RunGroup) -> bool:
    """A/A runs, and one process in other settings than the plain one."""
    return group.is_aa_copy or (group.strategy == BASELINE and group.label != BASELINE)


def _ideal(group: RunGroup, base: RunGroup) -> float | None:
    """None where the work is not divided, or ranks share cores."""
    ideal = group.ok_runs.world_size.iloc[0] / base.ok_runs.world_size.iloc[0]
    shared = (group.ok_runs.oversubscribed == "yes").any()
    return None if shared or not group.is_parallel or not ideal > 1 else float(ideal)


def _about(results: ResultSet, bars: list[Bar]) -> str:
    sizes = [len(run) for group in results.timed_groups for run in group.windows_of_runs]
    runs = plural_of_several([len(group.windows_of_runs) for group in results.timed_groups], "run")
    n = f"{runs} of {plural_of_several(sizes, 'window')} a strategy"
    grey = "; grey: one process in other settings, or under a second name" * any(bar.is_reference for bar in bars)
    return f"{describe_rows(results.ok_runs)}\n{n}{grey}"
