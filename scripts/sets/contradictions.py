"""Contradictions in the tables of a set: a sentence for each, which names the lines. Needs no torch.

    for sentence in find_contradictions(path, tables, groups): ...

A run has one row and one run_id; a round has one ok run of the same settings; rates are images over seconds; a run has
at most the requested number of windows, and a window is as long as its steps, within TOLERANCE or CLOCKS_APART_S,
whichever is more. The row of a run says what its settings, its last evaluation and its step breakdown say. A run that
failed, was interrupted or warmed the machine may be repeated in its round.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pandas

from benchmarks.common.store.frames import iterate_rows
from benchmarks.common.store.safe_cells import format_cell, unguard_cell, without_controls
from scripts.sets.identity import Identity
from scripts.sets.run_group import RunGroup

TOLERANCE = 0.01
SMALLEST_DIFFERENCE = 1e-4
# A GPU's events and the host's clock: between their readings a busy machine can stop the process.
CLOCKS_APART_S = 0.05
MOST_APART = 0.2  # of a short window
MAX_LINES = 5  # that a sentence names
ROUNDING_MS = 1e-3
PHASE_COLUMNS = ["data_ms", "forward_ms", "backward_ms"]  # of the steps of the breakdown, after the windows


def find_contradictions(
    path: Path, tables: dict[str, tuple[pandas.DataFrame, list[int]]], groups: Sequence[RunGroup]
) -> list[str]:
    """The contradictions in runs.csv, windows.csv, epochs.csv and steps.csv of the set in `path`; [] where there are
    none.

    tables: these four as read, each with the line numbers of its rows.
    """
    names = ("runs", "windows", "epochs", "steps")
    runs, windows, epochs, steps = (tables[name][0].assign(line=tables[name][1]) for name in names)
    identities = {run_id: group.identity for group in groups for run_id in group.ok_runs.run_id}
    found = [*_twice(runs, windows, steps), *_rounds(runs, groups), *_rates(windows)]
    of_windows = steps[steps[PHASE_COLUMNS].isna().all(axis=1) & steps.step_ms.notna()]
    windows_of, steps_of = (dict([*rows.groupby("run_id")]) for rows in (windows, of_windows))
    evaluated = epochs[epochs.phase == "val"].drop_duplicates("run_id", keep="last").set_index("run_id")
    exposed_ms = _exposed_ms(steps)
    for row in iterate_rows(runs[(runs.status == "ok") & runs.run_id.isin(windows_of)]):
        identity = identities.get(row.run_id, Identity({}, {}, recorded=False))
        found += _of_run(row, windows_of[row.run_id], steps_of.get(row.run_id), identity.requested)
        found += _of_row(row, identity, evaluated, exposed_ms)
    found += _phases(steps[steps.run_id.isin(identities)])
    return [f"{path}/{sentence}" for sentence in found]


def _twice(runs: pandas.DataFrame, windows: pandas.DataFrame, steps: pandas.DataFrame) -> Iterator[str]:
    keys = {
        "runs.csv": (runs, ["run_id"], "a run_id more than once"),
        "windows.csv": (windows, ["run_id", "window", "images", "seconds"], "a window more than once"),
        "steps.csv": (steps, ["run_id", "rank", "step", "step_ms", *PHASE_COLUMNS], "a step more than once"),
    }
    for name, (rows, columns, what) in keys.items():
        again = rows[rows.duplicated(columns)]
        if len(again):
            yield f"{name}, {lines(again.line)}: {what}"


def _rounds(runs: pandas.DataFrame, groups: Sequence[RunGroup]) -> Iterator[str]:
    for group in groups:
        ok = group.ok_runs.dropna(subset=["repeat"])
        # a group may have a round twice, requested in two ways; _twice reports the same row
        again = ok[ok.duplicated(["repeat", "settings"]) & ~ok.duplicated(["run_id"])]
        if len(again):
            at = runs[runs.run_id.isin(again.run_id) & (runs.status == "ok")].line
            yield f"runs.csv, {lines(at)}: a second ok run of {group.strategy} with the same settings in a round"


def _rates(windows: pandas.DataFrame) -> Iterator[str]:
    known = windows.dropna(subset=["images", "seconds", "images_per_s"])
    wrong = known[~_alike(known.images_per_s * known.seconds, known.images)]
    if len(wrong):
        yield f"windows.csv, {lines(wrong.line)}: images_per_s is not images / seconds"


def _of_run(
    row: Any, windows: pandas.DataFrame, steps: pandas.DataFrame | None, requested: dict[str, Any]
) -> Iterator[str]:
    """Contradictions of one ok run.

    A requeued job timed windows in several processes. Each process numbered them from 0, and the row has the last
    process's rate.
    """
    numbers, images, seconds = (windows[name].to_numpy(float) for name in ("window", "images", "seconds"))
    starts = numpy.flatnonzero(numpy.diff(numbers) <= 0) + 1
    last = slice(starts[-1] if len(starts) else 0, None)
    sums = [(numpy.nansum(images[part]), numpy.nansum(seconds[part])) for part in (slice(None), last)]
    rates = [num_images / sum_s for num_images, sum_s in sums if sum_s > 0]
    if row.images_per_s > 0 and rates and not any(_alike(row.images_per_s, rate) for rate in rates):
        yield (
            f"runs.csv, line {row.line}: images_per_s is {row.images_per_s:.5g}, but by windows.csv, "
            f"{lines(windows.line)}, it is {rates[-1]:.5g}"
        )
    most, num_last = requested.get("windows"), len(numbers[last])
    if type(most) is int and num_last > most:
        yield f"windows.csv, {lines(windows.line)}: {num_last} windows, but {most} were requested"
    if steps is None or not row.global_batch > 0:
        return
    num_steps = numpy.round(images / row.global_batch)
    if numpy.isnan(num_steps).any() or num_steps.sum() != len(steps):  # some steps are missing
        return
    ends = num_steps.cumsum().astype(int)
    sums_s = [part.sum() / 1000 for part in numpy.split(steps.step_ms.to_numpy(float), ends)[:-1]]
    allowed_s = numpy.maximum(TOLERANCE * seconds, numpy.minimum(CLOCKS_APART_S, MOST_APART * seconds))
    wrong = windows[~(abs(numpy.array(sums_s) - seconds) <= allowed_s)]  # also where seconds are missing
    if len(wrong):
        yield f"windows.csv, {lines(wrong.line)}: seconds are not the sum of the window's steps in steps.csv"


def _of_row(row: Any, identity: Identity, evaluated: pandas.DataFrame, exposed_ms: pandas.Series) -> Iterator[str]:
    """What the row of an ok run says otherwise than its settings, its last evaluation and its step breakdown.

    evaluated: the last `val` row of epochs.csv of each run, by run_id. exposed_ms: of each run, by run_id.
    """
    numbers = {"exit_code": (0.0, "of a run that ended well it is")}
    if row.run_id in evaluated.index:
        last = evaluated.loc[row.run_id]
        numbers |= {"acc1": (last.acc1, "by epochs.csv it is"), "val_samples": (last.images, "by epochs.csv it is")}
    resolved = identity.resolved if identity.recorded else {}
    if isinstance(resolved.get("world_size"), int | float):
        numbers["world_size"] = (resolved["world_size"], "by its settings it is")
    if resolved and row.run_id in exposed_ms.index:
        numbers["exposed_comm_ms"] = (exposed_ms[row.run_id], "by steps.csv it is")
    for name, (number, by) in numbers.items():
        cell = getattr(row, name)
        if abs(cell - number) > max(TOLERANCE * abs(number), SMALLEST_DIFFERENCE):
            yield f"runs.csv, line {row.line}: {name} is {cell:g}, but {by} {number:g}"
    for name in ("precision", "device_name"):
        cell, text = getattr(row, name), resolved.get(name)
        if isinstance(text, str) and cell and cell != without_controls(unguard_cell(format_cell(text))):
            yield f"runs.csv, line {row.line}: {name} is {cell}, but by its settings it is {text}"


def _phases(steps: pandas.DataFrame) -> Iterator[str]:
    """Times below 0, but for rounding, or not finite. Noise can make a difference, exposed_comm_ms, negative."""
    for name in [name for name in map(str, steps.columns) if name.endswith("_ms")]:
        lowest_ms = -numpy.inf if name == "exposed_comm_ms" else -ROUNDING_MS
        wrong = steps[(steps[name] < lowest_ms) | numpy.isinf(steps[name])]
        if len(wrong):
            yield f"steps.csv, {lines(wrong.line)}: {name} is no time that a step has"


def _exposed_ms(steps: pandas.DataFrame) -> pandas.Series:
    """The mean of exposed_comm_ms over the accounted steps of the lowest rank, by run_id; of a requeued job over those
    of its last process."""
    known = steps[steps.exposed_comm_ms.notna()]
    known = known[known["rank"] == known.groupby("run_id")["rank"].transform("min")]
    starts = known.groupby("run_id").step.diff() <= 0
    processes = starts.groupby(known.run_id).cumsum()
    last = processes == processes.groupby(known.run_id).transform("max")
    return known[last].groupby("run_id").exposed_comm_ms.mean()


def _alike(one: Any, other: Any) -> Any:
    """Whether two numbers, or each two of two columns, differ by at most TOLERANCE."""
    return abs(one - other) <= TOLERANCE * abs(other)


def lines(numbers: Iterable[Any]) -> str:
    """line 3; lines 3, 5, 6 and 20 more."""
    texts = [str(int(number)) for number in numbers]
    more = f" and {len(texts) - MAX_LINES} more" if len(texts) > MAX_LINES else ""
    return ("line " if len(texts) == 1 else "lines ") + ", ".join(texts[:MAX_LINES]) + more
