"""Which machine should train ImageNet? Hours, money and energy of 90 epochs, from a result set of each machine.

    ./bench decide results/v100 results/a100 results/h100 --price v100=3 --price a100=8 --price h100=20

Machines are compared twice: at equal settings, and each at its best. Sets of unequal models, image sizes or data are
refused. Prints tables and a sentence each, and writes decide.csv and a chart; the last line is the decision. Exit
code: 0 where one machine is the cheapest with confidence, 3 where none is, 1 where nothing can be written, 2 for a
mistake. Needs no torch.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.rows import table_text
from scripts.charts.figures import save_chart
from scripts.charts.plot import load_sets
from scripts.options.set_options import DecideOptions
from scripts.results.formatting import printable
from scripts.results.identity import compute_precision
from scripts.results.result_set import ResultSet
from scripts.results.set_warnings import warnings_by_cause
from scripts.shared.commands import shell_word
from scripts.studies.compare.analysis import find_day_spread
from scripts.studies.decide.analysis import (
    Family,
    Winner,
    best_of_each,
    cheapest,
    family_of_all,
    family_of_shared,
    fastest,
    pareto_frontier,
)
from scripts.studies.decide.candidates import (
    Candidate,
    Interval,
    candidates_by_machine,
    cores_that_differ,
    describe_left_out,
    refuse_unequal_work,
    shared_candidates,
    software_that_differs,
)
from scripts.studies.decide.chart import decide_chart
from scripts.studies.decide.decision_text import (
    TABLE_NOTES,
    best_sentence,
    candidate_table,
    equal_settings_sentence,
    notes,
)
from scripts.studies.decide.training_cost import NUM_EPOCHS, read_prices

UNDECIDED = 3
INTERVALS = ("images_per_s", "hours", "money", "joules_per_image")
DECIDE_COLUMNS = (
    *("machine", "strategy", "precision", "global_batch", "num_devices", "num_nodes", "money_per_hour", "num_runs"),
    *(f"{name}{end}" for name in INTERVALS for end in ("", "_low", "_high")),
    *("is_measured", "equal_settings", "best_of_machine", "on_frontier"),
)


TO_DECIDE = (
    "to decide, give the day-to-day standard deviation of such machines (--day-sd 2%), or three sets of one of them "
    "with the same settings, each of another day (--day-sets)"
)
CHART_NOTES = (
    "Bars, where they reach out of a marker: 95 % intervals over the n runs of each strategy. They cover neither "
    "another day nor another machine of this kind. Both bars of a point are one interval, since cost is price times "
    "hours.",
    "Lines: all costs at a machine's price. No other point is both faster and cheaper than one with a ring.",
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Both comparisons of the machines, and what they found."""

    sets: list[ResultSet]
    prices: dict[str, float]
    machines: dict[str, list[Candidate]]
    shared: list[list[Candidate]]
    """With equal settings on all machines."""
    of_all: Family
    of_shared: Family

    @property
    def candidates(self) -> list[Candidate]:
        return [candidate for candidates in self.machines.values() for candidate in candidates]

    @functools.cached_property
    def cheap(self) -> Winner:
        return cheapest(self.candidates, self.of_all)

    @functools.cached_property
    def fast(self) -> Winner:
        return fastest(self.candidates, self.of_all)

    @functools.cached_property
    def remarks(self) -> list[str]:
        left_out = describe_left_out(self.machines, self.shared)
        software, cores = software_that_differs(self.shared), cores_that_differ(self.shared)
        return notes(self.candidates, left_out, software, cores)


def main(options: DecideOptions, found: dict[str, Any] | None = None) -> int:
    """found: gets the decision and all candidates, for --json."""
    answer = find_answer(options)
    for results in answer.sets:
        for warning in warnings_by_cause(results):
            print(f"warning: {printable(f'{results.name}: {warning.summary}')}", file=sys.stderr)
    print(describe_answer(answer))
    decision = best_sentence(answer.cheap, answer.fast)
    rows = [candidate_fields(candidate, answer) for candidate in answer.candidates]
    written = [write_rows(options.output, rows)]
    clauses = [*re.split(r"(?<=;) ", decision), *CHART_NOTES, *answer.remarks]  # a line each: long ones are cut
    chart = decide_chart(answer.sets, answer.machines, answer.shared, answer.prices, clauses)
    written += save_chart(chart, options.output, "decide")
    print("\nwritten:", *(f"  {path}" for path in written), sep="\n")
    print(f"\n{decision}")
    if found is not None:
        found |= as_fields(answer) | {"decision": decision, "choices": rows}
    return 0 if answer.cheap.is_sure else UNDECIDED


def find_answer(options: DecideOptions) -> Answer:
    """Compare the sets of the options. Raises UserError where that cannot be done."""
    sets = load_sets(options.sets)
    if len(sets) < 2:
        raise UserError(
            "a decision is between machines: give two sets or more, one of each machine; ./bench compare has the "
            "strategies of one set"
        )
    for results in sets:
        results.refuse_contradictions()
    prices = prices_of(sets, options.price)
    machines = candidates_by_machine(sets, prices, options.strategy)
    refuse_unequal_work(machines)
    day = find_day_spread(options.day_sd, options.day_sets, None, [results.path for results in sets])
    shared = shared_candidates(machines)
    return Answer(
        sets, prices, machines, shared, family_of_all(machines, day), family_of_shared(shared, len(sets), day)
    )


def describe_answer(answer: Answer) -> str:
    """The two tables, a sentence on equal settings, and notes."""
    day, of_shared = answer.of_all.day, answer.of_shared
    lowest = [cheapest(row, of_shared).candidate for row in answer.shared]
    rows = [(candidate, low) for row, low in zip(answer.shared, lowest, strict=True) for candidate in row]
    best = [(candidate, answer.cheap.candidate) for candidate in best_of_each(answer.machines)]
    lines = [
        f"day-to-day sd: {f'unknown; {TO_DECIDE}' if day is None else day.text}",
        "\nAt equal settings",
        *([candidate_table(rows, of_shared), ""] if rows else []),
        equal_settings_sentence(answer.shared, of_shared),
        "\nEach machine at its best",
        candidate_table(best, answer.of_all),
        "",
        *TABLE_NOTES,
        *answer.remarks,
    ]
    return "\n".join(lines)


def prices_of(sets: Sequence[ResultSet], words: Sequence[str]) -> dict[str, float]:
    """The price of an hour of each set's machine. Raises UserError for what is no price, and where one is missing."""
    names = [results.name for results in sets]
    prices = read_prices(words, names)
    if missing := [name for name in names if name not in prices]:
        name, option = printable(missing[0]), shell_word(f"{missing[0]}=2.50")
        raise UserError(f"{name} has no price; give that of one machine for one hour: --price {option}")
    return prices


def candidate_fields(candidate: Candidate, answer: Answer) -> dict[str, Any]:
    """A row of decide.csv, by DECIDE_COLUMNS; None for what was not measured."""
    first = candidate.group.ok_runs.iloc[0]
    row: dict[str, Any] = {
        "machine": candidate.machine,
        "strategy": candidate.label,
        "precision": compute_precision(candidate.group.identity) or first.precision,
        "global_batch": float(first.global_batch),
        "num_devices": float(first.world_size),
        "num_nodes": float(first.nodes),
        "money_per_hour": candidate.money_per_hour,
        "num_runs": candidate.num_runs,
        "is_measured": candidate.is_measured,
        "equal_settings": any(candidate is each for row in answer.shared for each in row),
        "best_of_machine": any(candidate is each for each in best_of_each(answer.machines)),
        "on_frontier": any(candidate is each for each in pareto_frontier(answer.candidates)),
    }
    for name in INTERVALS:
        interval = getattr(candidate, name) or Interval(float("nan"), None, None)
        values = {"": interval.value, "_low": interval.low, "_high": interval.high}
        row |= {f"{name}{end}": value for end, value in values.items()}
    return {name: None if value != value else value for name, value in row.items()}


def write_rows(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write decide.csv; returns its path. Raises UserError where the folder cannot be written."""
    path = folder / "decide.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, table_text(DECIDE_COLUMNS, rows))
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; name another folder: --output") from None
    return path


def as_fields(answer: Answer) -> dict[str, Any]:
    """What was found, for --json."""
    winners = {"cheapest": answer.cheap, "fastest": answer.fast}
    return {
        "num_epochs": NUM_EPOCHS,
        "day_sd": None if answer.of_all.day is None else answer.of_all.day.sd,
        "at_equal_settings": equal_settings_sentence(answer.shared, answer.of_shared),
        "notes": answer.remarks,
        **{
            name: {"machine": winner.candidate.machine, "strategy": winner.candidate.label, "is_sure": winner.is_sure}
            for name, winner in winners.items()
        },
    }
