"""The charts of result sets, as matplotlib figures that plot_results and the report share.

Bars start at zero and carry every repeat as a point, the 95 % interval and n. Each function returns None where
the sets hold nothing to draw. Needs no torch.
"""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scripts.analysis.sets import BASELINE, PLAUSIBLE, Group, ResultSet
from scripts.analysis.stats import strategy_throughput
from scripts.analysis.words import clean, count, digits
from scripts.report.figures import (
    COLORS,
    LINES,
    MARKERS,
    Bar,
    draw_bars,
    finish,
    footnote,
    make_bar_figure,
    make_figure,
)

IMAGENET_TRAIN_IMAGES = 1_281_167  # ILSVRC 2012 training set
# Seconds of one ImageNet epoch on 4 Tesla V100-PCIe: the chart in the README of
# github.com/tczhangzhi/pytorch-distributed. ResNet-18, global batch 3200; Apex 6400.
PUBLISHED_EPOCH_S = (
    ("DataParallel", 4138.3),
    ("Horovod", 1200.3),
    ("Distributed (DDP)", 1188.5),
    ("Apex, batch 6400", 1186.5),
)
PUBLISHED_TITLE = (
    "published by tczhangzhi/pytorch-distributed: OTHER HARDWARE, 4 Tesla V100-PCIe,\n"
    "ResNet-18, 224 px, global batch 3200 (Apex 6400), one run, no interval"
)


def throughput_chart(sets: list[ResultSet]) -> Figure | None:
    """Images/s by strategy."""
    bars = []
    for number, group in _timed_groups(sets):
        estimate = group.throughput
        points = [strategy_throughput([run]).value for run in group.samples]
        text = f"{digits(estimate.value)}  ({_n(group)})"
        bars.append(Bar(group.label, estimate.value, estimate.low, estimate.high, points, text, group.parallel, number))
    if not bars:
        return None
    figure, (axes,), legend = make_bar_figure("Training throughput", sets, len(bars))
    draw_bars(axes, bars, len(sets))
    axes.set_xlabel("images/s   (bar: mean of repeats, dots: repeats, line: 95 % interval)")
    finish(figure, legend, sets, bars)
    return figure


def speedup_chart(sets: list[ResultSet]) -> Figure | None:
    """Throughput of each group over that of the same set's baseline with the same settings."""
    bars = []
    for number, group in _timed_groups(sets):
        estimate, single = sets[number].over_baseline.get(group.label), sets[number].baseline_of(group)
        if estimate is None:
            continue
        points = [strategy_throughput([run]).value / single.throughput.value for run in group.samples]
        text = f"{estimate.value:.2f}x  ({_n(group)})"
        bars.append(Bar(group.label, estimate.value, estimate.low, estimate.high, points, text, group.parallel, number))
    if not bars:
        return None
    figure, (axes,), legend = make_bar_figure(f"Speed-up over one process ({BASELINE})", sets, len(bars))
    draw_bars(axes, bars, len(sets))
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set_xlabel(
        f"throughput / throughput of {BASELINE}   (dots: repeats, line: 95 % for all at once, dashed: {BASELINE})"
    )
    note, having = [], [results for results in sets if results.timed(BASELINE)]
    if without := [results.name for results in sets if results not in having]:
        note.append(f"without ok runs of {BASELINE}, so not shown: {', '.join(without)}")
    others = [group for results in having for group in results.groups if group.samples and group.strategy != BASELINE]
    if unlike := [group.label for group in others if not any(each.baseline_of(group) for each in having)]:
        note.append(f"without ok runs of {BASELINE} in the same settings, so not shown: {'; '.join(unlike)}")
    finish(figure, legend, sets, bars, note)
    return figure


def epoch_chart(sets: list[ResultSet]) -> Figure | None:
    """Seconds of one ImageNet-1k epoch, measured or worked out, and below it the published figures."""
    bars = []
    for number, group in _timed_groups(sets):
        bars.append(_epoch_bar(sets[number], group, number))
    if not bars:
        return None
    published = [Bar(name, seconds, None, None, [], f"{seconds:,.1f}", True, -1) for name, seconds in PUBLISHED_EPOCH_S]
    title = f"Seconds of one ImageNet-1k epoch ({IMAGENET_TRAIN_IMAGES:,} images)"
    figure, (ours, theirs), legend = make_bar_figure(title, sets, len(bars), len(published))
    draw_bars(ours, bars, len(sets))
    draw_bars(theirs, published, 1, color="white", hatch="||||")
    ours.set_title("this suite, on the hardware named above")
    theirs.set_title(PUBLISHED_TITLE)
    limits = [axes.get_xlim()[1] for axes in (ours, theirs)]
    if max(limits) < 8 * min(limits):
        for axes in (ours, theirs):
            axes.set_xlim(0, max(limits))
        theirs.set_xlabel("seconds   (dots: repeats, line: 95 % interval)")
    else:
        ours.set_xlabel("seconds   (dots: repeats, line: 95 % interval)")
        theirs.set_xlabel("seconds   (a scale of its own)")
    notes = []
    if any("worked out" in bar.text for bar in bars):
        notes.append(f"worked out: {IMAGENET_TRAIN_IMAGES:,} images / measured images/s; no such epoch was run.")
    done = {(row.arch, row.image_size) for results in sets for row in results.ok.itertuples()}
    if done != {("resnet18", 224)}:
        notes.append("The panels trained other models or sizes of image: only ratios within a panel compare.")
    finish(figure, legend, sets, bars, notes)
    return figure


def _epoch_bar(results: ResultSet, group: Group, number: int) -> Bar:
    """Measured where every ok run trained on a whole ImageNet from files; else from its throughput."""
    epochs = results.table("epochs")
    measured = []
    for _, row in group.ok.iterrows():
        whole = IMAGENET_TRAIN_IMAGES - (row.global_batch if row.global_batch > 0 else 0)
        mine = epochs[(epochs.run_id == row.run_id) & (epochs.phase == "train") & (epochs.images >= whole)]
        mine = mine[mine.seconds.between(*PLAUSIBLE)]
        if row.loader == "folder" and len(mine):
            measured.append(mine[["images", "seconds"]].to_numpy(float))
    if measured and len(measured) == len(group.ok):
        estimate, samples, how = strategy_throughput(measured), measured, "measured"
    else:
        estimate, samples, how = group.throughput, group.samples, "worked out"
    points = [IMAGENET_TRAIN_IMAGES / strategy_throughput([run]).value for run in samples]
    value = IMAGENET_TRAIN_IMAGES / estimate.value
    low, high = (IMAGENET_TRAIN_IMAGES / bound if bound else None for bound in (estimate.high, estimate.low))
    n = _n(group) if how == "worked out" else f"n = {count(len(samples), 'run')}"
    return Bar(group.label, value, low, high, points, f"{digits(value)} {how}  ({n})", group.parallel, number)


def learning_chart(sets: list[ResultSet]) -> Figure | None:
    """Train loss, validation loss and top-1 by epoch: the mean over repeats thick, each repeat thin."""
    panels = [("train", "loss", "train loss"), ("val", "loss", "val loss"), ("val", "acc1", "val top-1, %")]
    lines = [
        (f"{group.label} in {results.name}" if len(sets) > 1 else group.label, results.table("epochs"), group)
        for results in sets
        for group in results.groups
        if results.table("epochs").run_id.isin(group.ok.run_id).any()
    ]
    figure, axes_row, legend = make_figure(
        "Loss and accuracy by epoch", sets, [2.4], (len(lines) + 2) // 3, num_columns=3
    )
    num_drawn = 0
    for number, (label, epochs, group) in enumerate(lines):
        color, style = COLORS[number % len(COLORS)], LINES[number % len(LINES)]
        for axes, (phase, column, _) in zip(axes_row, panels, strict=True):
            rows = epochs[epochs.run_id.isin(group.ok.run_id) & (epochs.phase == phase)]
            rows = rows[rows[column].abs().lt(PLAUSIBLE[1]) & rows.epoch.between(0, PLAUSIBLE[1])]
            table = rows.pivot_table(index="epoch", columns="run_id", values=column, aggfunc="last")
            if table.empty:
                continue
            num_drawn += 1
            axes.plot(table.index + 1, table, color=color, linewidth=0.5, alpha=0.6)
            # curves of strategies that do the same work lie on each other: the first drawn is the widest
            width = 1 + 2.5 * (1 - number / len(lines))
            axes.plot(
                table.index + 1,
                table.mean(axis=1),
                color=color,
                linestyle=style,
                linewidth=width,
                marker=MARKERS[number % len(MARKERS)],
                markersize=3 + 1.5 * width,
                markerfacecolor="none",
                markevery=max(1, len(table) // 8),
                label=f"{clean(label)} (n = {count(table.shape[1], 'run')})",
            )
    if not num_drawn:
        return None
    for axes, (_, _, title) in zip(axes_row, panels, strict=True):
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axes.margins(x=0.08)
        axes.grid(alpha=0.3)
    labelled = [pair for axes in axes_row for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {text: handle for handle, text in labelled}
    legend.legend(handles.values(), handles.keys(), loc="center", ncols=3, fontsize=7, frameon=False, handlelength=5)
    footnote(figure, ["thick: mean over repeats; thin: each repeat. Curves that do the same work lie on each other."])
    return figure


def _timed_groups(sets: list[ResultSet]) -> list[tuple[int, Group]]:
    """(number of the set, group) of every group with a throughput, the same strategy of all sets together."""
    labels = list(dict.fromkeys(group.label for results in sets for group in results.groups))
    found = [(number, group) for number, results in enumerate(sets) for group in results.groups if group.throughput]
    return sorted(found, key=lambda pair: (labels.index(pair[1].label), pair[0]))


def _n(group: Group) -> str:
    return f"n = {count(len(group.samples), 'run')}, {count(sum(map(len, group.samples)), 'window')}"
