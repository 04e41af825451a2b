"""The decision between machines in words: tables, one sentence for each way to compare, and notes.

No sentence says more than the intervals do. Needs no torch.
"""

import math
from collections.abc import Sequence

from scripts.report.headline import join
from scripts.results.formatting import format_number, format_setting, format_with_interval, printable, text_table
from scripts.results.identity import compute_precision
from scripts.studies.compare.two_days import UNKNOWN_DAY_EFFECT
from scripts.studies.decide.analysis import Family, Winner, cheapest
from scripts.studies.decide.candidates import Candidate, Interval
from scripts.studies.decide.training_cost import NUM_EPOCHS

CANDIDATE_COLUMNS = (
    "machine", "strategy", "precision", "batch", "devices", "n", "images/s [95 %]", f"{NUM_EPOCHS} epochs, h",
    "cost", "x lowest cost", "J/image",
)  # fmt: skip
TEXT_COLUMNS = (0, 1, 2)
NO_EQUAL_SETTINGS = "no strategy ran with equal settings on all machines"
DAYS_UNKNOWN = "it is not known how much a machine's speed changes from day to day"


MOST_NAMES = 3  # in a sentence; more are counted


def format_interval_of(interval: Interval | None) -> str:
    """A value with its interval; '' for None."""
    if interval is None:
        return ""
    return format_with_interval(interval.value, interval.low, interval.high, format_number)


def candidate_table(rows: Sequence[tuple[Candidate, Candidate]], family: Family) -> str:
    """A line for each candidate; `x lowest cost` is over the second of each pair, on another machine or the same."""
    lines: list[tuple[str, ...]] = [CANDIDATE_COLUMNS]
    for candidate, lowest in rows:
        first = candidate.group.ok_runs.iloc[0]
        times_lowest = "1" if candidate is lowest else ""
        if candidate.machine != lowest.machine:
            times_lowest = family.cost_ratio(candidate, lowest).text()
        cells = (
            candidate.machine,
            candidate.label + ("" if candidate.group.is_parallel else " (not parallel)"),
            compute_precision(candidate.group.identity) or format_setting(first.precision),
            format_setting(first.global_batch),
            format_setting(first.world_size),
            str(candidate.num_runs),
            *map(format_interval_of, (candidate.images_per_s, candidate.hours, candidate.money)),
            times_lowest,
            format_interval_of(candidate.joules_per_image),
        )
        lines.append(tuple(map(printable, cells)))
    return text_table(lines, left_aligned=TEXT_COLUMNS)


# --- sentences ----------------------------------------------------------------------------------------------------


def best_sentence(cheap: Winner, fast: Winner) -> str:
    """The decision between the machines, each with its own best settings; or why the intervals do not allow one."""
    candidate, other = cheap.candidate, fast.candidate
    figures = f"{NUM_EPOCHS} epochs cost {format_interval_of(candidate.money)} and take {_hours(candidate)}"
    if candidate.money.low is not None:
        figures += (
            " (95 % intervals over the runs of this set, without the picking; of the lowest of "
            f"{cheap.num_candidates} the true cost may be higher; no other day or machine is in them)"
        )
    if not cheap.is_sure:
        also = "" if candidate is other else f"; {_fastest(fast)}"
        lowest = f"{printable(candidate.name)} has the lowest mean cost: {figures}"
        return f"No decision on cost: {_why_unsure(cheap)}; {lowest}{_what_would_decide(cheap)}{also}."
    if candidate is other:
        time = "and less time" if fast.is_sure else f"but not surely less time ({_why_unsure(fast)})"
        return f"Take {printable(candidate.name)}: {figures}, less money {time} than on any other machine."
    return f"Take {printable(candidate.name)} for the lowest cost: {figures}; {_fastest(fast)}."


def _hours(candidate: Candidate) -> str:
    return f"{format_interval_of(candidate.hours)} h"


def _fastest(fast: Winner) -> str:
    """What the fastest takes and costs, where it is not the cheapest."""
    candidate = fast.candidate
    figures = f"{_hours(candidate)} for {format_interval_of(candidate.money)}"
    if fast.is_sure:
        return f"{printable(candidate.name)} is the fastest: {figures}"
    return f"{printable(candidate.name)} has the shortest mean time, {figures}, but is not shown to be the fastest"


def _why_unsure(winner: Winner) -> str:
    """What forbids to call the lowest mean the lowest."""
    whys = dict.fromkeys(ratio.why for _, ratio in winner.unsure if ratio.why)
    if UNKNOWN_DAY_EFFECT in whys:
        return DAYS_UNKNOWN
    if whys:
        return "; ".join(whys)
    (candidate, ratio), *others = winner.unsure
    more = f", nor do those of {len(others)} more" if others else ""
    which_ratio = f"{printable(candidate.name)} over {printable(winner.candidate.name)}"
    return f"the interval of {which_ratio}, {ratio.text()}, does not lie above 1{more}"


def _what_would_decide(winner: Winner) -> str:
    """Which day-to-day spread would allow the decision, where it is unknown."""
    if UNKNOWN_DAY_EFFECT not in {ratio.why for _, ratio in winner.unsure}:
        return ""
    if winner.close:
        near = printable(winner.close[0].name)
        return f", but the runs do not separate it from {near} even if days did nothing: take more rounds"
    below = math.floor(1000 * winner.day_sd_limit) / 10  # per cent, rounded down
    return (
        "; it would be shown to be the cheapest if the day-to-day standard deviation were known (--day-sd) to be below "
        f"{below:g} %; one measured from a few sets (--day-sets) must be smaller"
    )


def equal_settings_sentence(shared: list[list[Candidate]], family: Family) -> str:
    """Which machine is the cheapest with each strategy that ran with equal settings on all."""
    if not shared:
        return f"At equal settings nothing is compared: {NO_EQUAL_SETTINGS}."
    sure: dict[str, list[str]] = {}
    lowest: dict[str, list[str]] = {}
    whys: dict[str, None] = {}
    for row in shared:
        winner = cheapest(row, family)
        (sure if winner.is_sure else lowest).setdefault(winner.candidate.machine, []).append(winner.candidate.label)
        if not winner.is_sure:
            unknown = any(ratio.why == UNKNOWN_DAY_EFFECT for _, ratio in winner.unsure)
            whys[DAYS_UNKNOWN if unknown else "their intervals do not lie apart"] = None
    parts = [f"{machine} is the cheapest with {_named(labels)}" for machine, labels in sure.items()]
    if lowest:
        named = join([f"that of {machine} with {_named(labels)}" for machine, labels in lowest.items()])
        rest = "for the others " if sure else ""
        parts.append(f"{rest}there is no decision, since {join([*whys])}; the lowest mean cost is {named}")
    return printable(f"At equal settings {'; '.join(parts)}.")


def _named(labels: Sequence[str]) -> str:
    """The strategies, or how many there are where they are many. A label with a comma stands in quotes."""
    if len(labels) > MOST_NAMES:
        return f"{len(labels)} strategies"
    return join([f"'{label}'" if "," in label else label for label in labels])


TABLE_NOTES = (
    "[a, b]: 95 % interval over the runs of a set. It covers neither another day nor another machine of this kind.",
    "x lowest cost: simultaneous 95 % intervals within each of the two comparisons, which include the day-to-day "
    "spread (scripts/results/README.md).",
    "Each machine's best was picked after looking. Its settings are its own, so that accuracy may differ.",
)


def notes(
    candidates: Sequence[Candidate], left_out: Sequence[str], software: Sequence[str], cores: str = ""
) -> list[str]:
    """What the figures are, and what is not compared. cores: of a task on each machine, where they differ."""
    found = [
        "Cost: the price of a machine's hour, times machines, times hours; in the currency of --price. Hours are of "
        f"training alone, {NUM_EPOCHS} passes over ImageNet's 1,281,167 images, without evaluation and start-up."
    ]
    if not all(candidate.is_measured for candidate in candidates):
        found.append("Hours are computed from images/s where no run trained for a whole epoch of ImageNet.")
    if {str(loader) for candidate in candidates for loader in candidate.group.ok_runs.loader} == {"synthetic"}:
        found.append("Images were synthetic: whether loading keeps up with these rates was not measured.")
    found += [f"Left out at equal settings: {phrase}." for phrase in left_out]
    if software:
        found.append(f"Versions differ at equal settings: {', '.join(software)}.")
    if cores:
        found.append(f"Cores of a task (--cpus-per-task) differ, and with them how fast images are loaded: {cores}.")
    return [printable(each) for each in found]
