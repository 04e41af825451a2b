"""What every table says of a strategy: the cells that the terminal's table and the report's have in common.

Every value is text, empty where it was not measured. Needs no torch.
"""

from scripts.results.accuracy import top1_accuracy
from scripts.results.formatting import format_number, format_with_interval, plural
from scripts.results.identity import compute_precision
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.shared.strategy_list import BASELINE

STRATEGY_COLUMNS = ("strategy", "images/s", "n", "x single", "status", "top-1 %")


def over_which_baseline(results: ResultSet, group: RunGroup) -> str:
    """'over bf16 single' where that is not the precision of most groups, or another run is called plain BASELINE."""
    base = results.baseline_of(group)
    if base is None or base.strategy != BASELINE:
        return f"over {base.label}" if base else ""
    precision = compute_precision(base.identity)
    found = {each.label: compute_precision(each.identity) for each in results.timed_groups_of(BASELINE)}
    plain = {found[BASELINE]} if BASELINE in found else {*found.values()}
    of_most = {compute_precision(each.identity) for each in results.rankable_groups}
    return "" if plain == of_most == {precision} else f"over {precision or 'another'} {BASELINE}"


def ratio_with_baseline(ratio: str, mark: str) -> str:
    """'1.11 [0.97, 1.27], over bf16 single'. mark: of over_which_baseline."""
    return f"{ratio}, {mark}" if mark else ratio


def strategy_cells(results: ResultSet, group: RunGroup) -> dict[str, str]:
    """A cell for each of STRATEGY_COLUMNS."""
    estimate, over, accuracy = group.throughput, results.speedups.get(group.label), top1_accuracy(group)
    status = ", ".join(f"{count} {name or 'no status'}" for name, count in group.status_counts.items())
    cells = dict.fromkeys(STRATEGY_COLUMNS, "") | {"strategy": group.label}
    cells["status"] = status + ("" if group.is_parallel else "; not parallel")
    if estimate:
        cells["images/s"] = format_with_interval(estimate.value, estimate.low, estimate.high, format_number)
        cells["n"] = f"{plural(estimate.num_runs, 'run')} [{plural(estimate.num_windows, 'window')}]"
    if estimate and over:
        cells["x single"] = ratio_with_baseline(over.text(), over_which_baseline(results, group))
    cells["top-1 %"] = accuracy.text if accuracy else ""
    return cells
