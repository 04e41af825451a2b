"""Put measured figures into the READMEs, from committed files.

    ./bench readme

A README marks where a figure stands: <!--images_per_s.ddp-->199<!--/-->. What is between the marks is made from the
published set and from results/published/measured/, and a test fails where it is not. A name that nothing makes is
an error that lists those that exist. Exit code: 2 for a mistake. Needs no torch.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy
import pandas

from benchmarks.common.store.frames import iterate_rows
from benchmarks.common.store.results import read_table, write_text_atomically
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.repository import ROOT
from scripts.pages.headline import in_words, join, rank_groups, untimed
from scripts.pages.markdown import code_span, escape_markdown
from scripts.pages.report_tables import shared_drift_test
from scripts.publish.markdown_tables import markdown_table, percents, read_cells
from scripts.publish.readme_columns import column_figures
from scripts.publish.readme_measured import measured_figures
from scripts.sets.accuracy import furthest_apart, top1_accuracy
from scripts.sets.identity import AA_LABEL, ALL_CORES, compute_precision
from scripts.sets.proofs import BIT_IDENTICAL, EXCEPTIONS, THREADS, proof_text, reason_of_ok
from scripts.sets.result_set import ResultSet, load_set
from scripts.sets.run_group import RunGroup
from scripts.sets.set_text import describe_sets
from scripts.sets.step_breakdown import StepMean, exposed_communication
from scripts.sets.strategy_cells import over_which_baseline, ratio_with_baseline
from scripts.stats.families import ratios_of_all_pairs
from scripts.stats.formatting import format_number, plural_of_several
from scripts.stats.intervals import RatioEstimate, log_throughput
from scripts.strategies.strategy_list import BASELINE
from scripts.studies.sweep.analysis import sweep_points

PUBLISHED = ROOT / "results/published"
STALLED = 2.0  # of a window that a reader should know of
SHOWN = "shown.json"  # the published sets that the READMEs show: one of CPUs, one of GPUs
MEASURED = PUBLISHED / "measured"
PAGES = (
    "README.md", "docs/systems.md", "[a-z]*/README.md", "tests/faults/README.md", "scripts/*/README.md",
    "scripts/studies/*/README.md",
)  # fmt: skip
READMES = tuple(sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}))
FIGURE = re.compile(r"<!--([\w.]+)-->.*?<!--/-->", re.DOTALL)


def main() -> None:
    """Make the figures of every README anew."""
    made = all_figures({kind: PUBLISHED / name for kind, name in shown_sets(PUBLISHED).items()}, MEASURED)
    for path in READMES:
        before = path.read_text()
        after = fill_marks(before, made)
        if after != before:
            write_text_atomically(path, after)
            print(f"{path.relative_to(ROOT)} has new figures")


def shown_sets(published: Path) -> dict[str, str]:
    """The name of the set that the READMEs show, by the kind of its devices: cpu, gpu. `./bench publish` writes it."""
    path = published / SHOWN
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def all_figures(sets: dict[str, Path], measured: Path) -> dict[str, str]:
    """Every figure of the shown sets; those of GPUs have names that begin with `gpu.`."""
    made = named_figures(sets["cpu"], measured) if "cpu" in sets else measured_figures(measured) | column_figures()
    if "gpu" in sets:
        made |= {f"gpu.{name}": text for name, text in set_figures(sets["gpu"]).items()}
    return made


def fill_marks(text: str, made: dict[str, str]) -> str:
    """`text` with what is between its marks made anew. Raises UserError for a name that is not in `made`."""

    def figure(found: re.Match) -> str:
        name = found[1]
        if name not in made:
            raise UserError(f"no figure is named {name!r}; there are {', '.join(made)}")
        text = made[name].replace("<", "&lt;").replace(">", "&gt;")  # figures are no HTML, and end no mark
        return f"<!--{name}-->{text}<!--/-->"

    return FIGURE.sub(figure, text)


def named_figures(path: Path, measured: Path) -> dict[str, str]:
    """Every figure by its name, as Markdown: of the result set in `path`, and of the CSV files in `measured`."""
    return set_figures(path) | proof_figures(path, measured) | measured_figures(measured) | column_figures()


def set_figures(path: Path) -> dict[str, str]:
    """The figures of its runs and sweeps."""
    return (
        run_figures(load_set(path))
        | sweep_figures(path / "sweeps")
        | ablation_figures(path / "ablation" / "ablate.csv")
    )


def run_figures(results: ResultSet) -> dict[str, str]:
    """What the runs of the set say: the table of strategies, the hardware, and single figures."""
    timed = [group for group in results.groups if group.throughput]
    over = results.speedups
    if not over or min(len(group.windows_of_runs) for group in timed) < 2:
        raise UserError(f"{results.path} cannot be shown: it needs the baseline, and two or more runs of each strategy")
    shown = {
        group: exposed_communication(group, results.table("steps")) for group in timed
    }  # as step_account.png has it
    exposed = "exposed comm., ms/step ±95%"
    header = ("strategy", "devices", "images/s [95%]", "x single [simultaneous 95%]", exposed, "top-1 % [95%]")
    bases = {*results.baseline_label_of.values()}
    rows = [_strategy_row(results, group, over.get(group.label), group.label in bases, shown[group]) for group in timed]
    images = "/".join(f"{value:,.0f}" for value in sorted(set(results.ok_runs.val_samples)))
    return {
        "strategies": markdown_table(header, rows),
        "top1": _top1_text(timed, images),
        "untimed": _untimed_text(results),
        "hardware": escape_markdown(_hardware(results)),
        "evaluated": f"{images} images in each of {len(results.ok_runs)} runs",
        **_smallest_differences(results),
        "aa.smallest": _smallest_effect(results.aa_comparisons.values()),
        "all_cores": _all_cores_text(results),
        "drift": _drift_text(results),
        "stall": _stall_text(results),
        "rounds": plural_of_several([len(group.windows_of_runs) for group in results.compared_groups], "round"),
        "minutes": f"{len(results.ok_runs)} runs took {_elapsed_s(results) / 60:.0f} minutes",
        **{f"images_per_s.{group.label}": f"{group.timed_throughput.value:,.0f}" for group in timed},
        **{f"exposed_comm_ms.{group.label}": f"{mean.text()} ms" for group, mean in shown.items() if mean},
    }


def _drift_text(results: ResultSet) -> str:
    """The end of a sentence on intervals over runs."""
    test = shared_drift_test(results)
    drifted = f". In this set the mean over strategies drifted ({test}), so these intervals are probably too narrow"
    return drifted if test else ""


def _stall_text(results: ResultSet) -> str:
    """The end of a paragraph on ratios: what one window of the baseline, STALLED times as long as the median of its run
    or longer, does to them; '' where there is none."""
    (baseline,) = [group for group in results.groups if group.label == BASELINE]
    seconds = [run[:, 1] / run[:, 0] for run in baseline.windows_of_runs]
    times, place, window = max(
        (each.max() / numpy.median(each), n, int(each.argmax())) for n, each in enumerate(seconds)
    )
    if times < STALLED:
        return ""
    without = [*baseline.windows_of_runs]
    without[place] = numpy.delete(without[place], window, axis=0)
    logs = [log_throughput(runs) for runs in (baseline.windows_of_runs, without)]
    lower = 100 * (1 - numpy.exp(logs[0].mean() - logs[1].mean()))
    spreads = [f"{100 * each.std(ddof=1):.0f} %" for each in logs]
    return (
        f". In round {baseline.round_numbers[place]:.0f} one window of `{BASELINE}` took {times:.1f} times as long as "
        f"the median of its run; the cause is unknown. Without this window the ratios to `{BASELINE}` would be "
        f"{lower:.0f} % lower, and the standard deviation of its runs {spreads[1]} instead of {spreads[0]}"
    )


def _smallest_effect(family: Iterable[RatioEstimate]) -> str:
    """The minimum detectable effect of each of these comparisons."""
    found = [each.smallest_difference for each in family]
    return " and ".join(f"{format_number(100 * each)} %" for each in found if each is not None) or "unknown"


def _smallest_differences(results: ResultSet) -> dict[str, str]:
    """From the least to the most over the strategies, of the smallest difference of each that the set finds."""
    found = [each.smallest_difference for each in results.speedups_without_aa.values()]
    faster = [each for each in found if each is not None]
    slower = [each / (1 + each) for each in faster]  # as far on a logarithmic scale
    texts = {"smallest_difference": faster, "smallest_difference.slower": slower}
    return {name: percents([100 * each for each in texts[name]]) or "no difference" for name in texts}


def _all_cores_text(results: ResultSet) -> str:
    """How many strategies with several ranks one process on all cores is faster than, by the family of all pairs of
    those that compute in its precision."""
    alike, label = rank_groups(results).comparable_groups, f"{BASELINE}, {ALL_CORES}"
    found = [group for group in alike if group.label == label]
    several = [group for group in alike if group.ok_runs.world_size.max() > 1]
    if not found or not several:
        return "compared with no strategy that has several ranks"
    ratios = ratios_of_all_pairs({group.label: group.sample for group in alike})
    pairs = [ratios.get((label, group.label)) for group in several]
    num_slower = sum(pair is not None and pair.verdict == "faster" for pair in pairs)
    ranks = plural_of_several([int(group.ok_runs.world_size.max()) for group in several], "rank")
    precision = compute_precision(found[0].identity)
    return f"faster than {num_slower} of the {len(several)} {precision} strategies with {ranks}"


def _untimed_text(results: ResultSet) -> str:
    """What has no time in the set, each by its name."""
    parts = [in_words(end, labels, join([*map(code_span, labels)])) for end, labels in untimed(results).items()]
    return join(parts) if parts else "every strategy has a time"


def _top1_text(groups: Sequence[RunGroup], num_images: str) -> str:
    num_seeds = {found.num_seeds for group in groups if (found := top1_accuracy(group))}
    text = f"{num_images} validation images, {plural_of_several(num_seeds, 'seed')}"
    difference = furthest_apart(groups)
    if difference is None:
        return text
    answer = "strategies differ" if difference.is_significant else "no difference between strategies was found"
    return f"{text}; {answer}"


def _elapsed_s(results: ResultSet) -> float:
    """Seconds from the start of the first run, a warm-up or not, to the end of the last: more than the sum of runs."""
    runs = read_table(results.path, "runs")
    began = pandas.to_datetime(runs.started_at, format="ISO8601", utc=True)
    ended = began + pandas.to_timedelta(runs.wall_s.fillna(0), unit="s")
    return (ended.max() - began.min()).total_seconds()


def _strategy_row(
    results: ResultSet, group: RunGroup, over: RatioEstimate | None, base: bool, exposed: StepMean | None
) -> tuple[str, ...]:
    """base: whether it is a baseline."""
    speed, accuracy = group.timed_throughput, top1_accuracy(group)
    return (
        code_span(group.label) + ("" if group.is_parallel else " (not parallel)"),
        f"{group.ok_runs.world_size.max():.0f}",
        f"{speed.value:,.0f} [{speed.low:,.0f}, {speed.high:,.0f}]",
        ratio_with_baseline(over.text(), over_which_baseline(results, group)) if over else "1" if base else "",
        "" if exposed is None else exposed.text(),
        accuracy.text if accuracy else "",
    )


def _hardware(results: ResultSet) -> str:
    environment = results.environment
    torch = "/".join(sorted({version.split("+")[0] for version in results.ok_runs.torch}))
    backends = ", ".join(sorted({*results.ok_runs.backend} - {"none"}))
    compared = results.ok_runs[
        results.ok_runs.run_id.isin([name for group in results.compared_groups for name in group.ok_runs.run_id])
    ]
    threads = "/".join(f"{value:.0f}" for value in sorted({*compared.threads_per_rank}))
    cores = f"{environment['num_cores']} cores, {threads} for each rank"
    timed = max((group.throughput for group in results.groups if group.throughput), key=lambda speed: speed.num_windows)
    length = f"{timed.num_runs} runs of {timed.num_windows // timed.num_runs} windows"
    return f"{describe_sets([results])}, {cores}; torch {torch}, {backends}; {length} per strategy"


def sweep_figures(path: Path) -> dict[str, str]:
    """Images/s at each value of each option that was swept, n, and whether any two differ."""
    rows = read_cells(path / "sweep.csv", ("strategy", "key", "value", "images_per_s", "num_runs"))
    made = {}
    for (strategy, key), points in rows.groupby(["strategy", "key"]):
        pairs = zip(points.value, points.images_per_s, strict=True)
        speeds = [f"{escape_markdown(value)}→{float(speed):.0f}" for value, speed in pairs]
        groups = sweep_points(load_set(path), str(strategy), str(key))
        made[f"sweep.{strategy}.{key}"] = f"{', '.join(speeds)}; {_differences({*points.num_runs}, groups)}"
    return made


def _differences(num_runs: set[str], groups: dict[str, RunGroup]) -> str:
    """n, and whether the simultaneous intervals of all pairs of a sweep's points show a difference."""
    verdicts = {
        each.verdict for each in ratios_of_all_pairs({value: group.sample for value, group in groups.items()}).values()
    }
    seen = "differences seen" if verdicts & {"faster", "slower"} else "no difference seen"
    return f"n={escape_markdown('/'.join(sorted(num_runs)))}, {'no verdict' if verdicts <= {'no verdict'} else seen}"


def ablation_figures(path: Path) -> dict[str, str]:
    """What each option is worth, a row each, also of those that were not run, with the reason."""
    ratio = ("ratio", "ratio_low", "ratio_high")
    rows = read_cells(path, ("option", "num_runs", "images_per_s", *ratio, "why_not", "about"))
    lines = []
    for row in iterate_rows(rows):
        bounds = f" [{float(row.ratio_low):.2f}, {float(row.ratio_high):.2f}]" if row.ratio_low else ""
        worth = f"{float(row.ratio):.2f}{bounds}" if row.ratio else row.why_not or "1"
        speed = format_number(float(row.images_per_s)) if row.images_per_s else ""
        lines.append([escape_markdown(cell) for cell in (row.option, row.num_runs, speed, worth)])
    table = markdown_table(("option", "n", "images/s", "x baseline [simultaneous 95 %]"), lines)
    about = escape_markdown("".join(dict.fromkeys(rows.about)))
    missing = "(not measured yet: `./bench study ablation`)"
    return {"ablation": table or missing, "ablation.about": about}


def proof_figures(path: Path, measured: Path) -> dict[str, str]:
    """What `./bench verify` found for the set, and for other settings in the folders of `measured`."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for folder in (path, *sorted(found.parent for found in measured.glob("*/equivalence.csv"))):
        for row in iterate_rows(_last_proofs(folder)):
            difference = (
                format_number(row.max_relative_difference) if row.max_relative_difference else "0: bit-identical"
            )
            reason = f", {reason_of_ok(row.reason)}" if row.verdict == "ok" and row.reason else ""
            size, ends = (f"{row.world_size:.0f}", f"{row.steps:.0f}"), escape_markdown(row.verdict + reason)
            cells = *size, difference, format_number(row.tolerance), ends
            where = "the published set" if folder == path else folder.name
            alike.setdefault((where, *cells), []).append(row.strategy)
    header = (
        "strategies",
        "settings of",
        "devices",
        "steps",
        "difference nearest its tolerance",
        "tolerance",
        "verdict",
    )
    lines = [(_count_names(names), *cells) for cells, names in alike.items()]
    return {**_proof_counts(load_set(path), _last_proofs(path)), "proofs": markdown_table(header, lines)}


def _proof_counts(results: ResultSet, rows: pandas.DataFrame) -> dict[str, str]:
    """How many configurations each kind of proof is of; a configuration with two labels counts once.

    rows: of equivalence.csv, for the lengths of proofs.
    """
    groups = [group for group in results.groups if group.windows_of_runs and not group.is_aa_copy]
    said = {group: proof_text(group, results.table("equivalence")) for group in groups}
    by_threads = [group for group, text in said.items() if THREADS in text.partition(EXCEPTIONS)[2].split(", ")]
    identical = [group for group, text in said.items() if text.startswith(BIT_IDENTICAL) and group not in by_threads]
    within = [
        group
        for group, text in said.items()
        if text.startswith("yes") and group not in by_threads and group not in identical
    ]
    several = [int(group.ok_runs.world_size.max()) for group in identical if group.ok_runs.world_size.max() > 1]
    on = f", {len(several)} of them on {plural_of_several(several, 'rank')}" if several else ""
    parts = [f"`{group.label}` was not repeated with its own number of threads" for group in by_threads]
    if within:
        ends = "agrees" if len(within) == 1 else "agree"
        names = join([code_span(group.label) for group in within])
        of_within = rows[rows.strategy.isin([group.strategy for group in within]) & (rows.verdict == "ok")]
        further_off = [f", {reason_of_ok(reason)}" for reason in of_within.reason if reason]
        parts.insert(0, f"{names} {ends} within a tolerance for {_lengths(within, rows)}{''.join(further_off)}")
    return {
        "proof": f"{len(identical)} of {len(groups)} configurations{on}",
        "proof.steps": "; ".join([_lengths(identical, rows), *parts]),
    }


def _lengths(groups: Sequence[RunGroup], rows: pandas.DataFrame) -> str:
    return plural_of_several(
        {int(each) for each in rows[rows.strategy.isin([one.strategy for one in groups])].steps}, "step"
    )


def _last_proofs(path: Path) -> pandas.DataFrame:
    """The last row of each configuration in a set's equivalence.csv, but for those that could not run, and for the
    second name of an A/A comparison."""
    rows = read_table(path, "equivalence").drop_duplicates(["strategy", "asked"], keep="last")
    again = [bool(asked and json.loads(asked).get(AA_LABEL)) for asked in rows.asked]
    return rows[(rows.verdict != "skipped") & ~numpy.array(again, dtype=bool)]


def _count_names(names: Sequence[str]) -> str:
    """`ddp`, `single` in 2 configurations"""
    several = {name: f" in {number} configurations" for name, number in Counter(names).items() if number > 1}
    return ", ".join(f"{code_span(name)}{several.get(name, '')}" for name in dict.fromkeys(names))
