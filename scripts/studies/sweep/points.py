"""The sweeps of a set: what sweeps.json says was planned, and what the runs of each point measured. Needs no torch."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_json, write_text_atomically
from benchmarks.common.rows import lock_tables, table_text
from scripts.results.formatting import format_number, format_with_interval, text_table
from scripts.results.intervals import RatioEstimate, ratios_to_baseline
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.step_breakdown import PipelineBubble, pipeline_bubbles

FOLDERS = ("sweeps",)  # of a set, in which sweeps may be as sets of their own
FILE = "sweeps.json"
RANKS, EACH_OPTION = "ranks", "each option"
SWEEP_COLUMNS = (
    *("strategy", "key", "point", "num_runs", "images_per_s", "ci_low", "ci_high", "to", "ratio", "ratio_low"),
    *("ratio_high", "efficiency", "bubble", "bubble_in_theory", "why_not"),
)


@dataclasses.dataclass(frozen=True)
class Point:
    """ranks: on this machine; 0: as many as other runs have. threads: of a rank; 0: its share."""

    label: str
    fields: dict[str, Any]
    ranks: int = 0
    threads: int = 0
    why_not: str = ""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The all-reduce of a step. bus_bytes_per_s: as nccl-tests defines it."""

    gradient_bytes: int
    bus_bytes_per_s: float

    def seconds(self, num_ranks: int) -> float:
        return self.gradient_bytes * 2 * (num_ranks - 1) / num_ranks / self.bus_bytes_per_s


@dataclasses.dataclass(frozen=True)
class Sweep:
    """As planned. points: the hash of each one's requested settings, by its label. flags: what all have."""

    strategy: str
    key: str
    to: str
    weak: bool
    flags: str
    points: dict[str, str]
    exchange: Exchange | None = None

    @property
    def name(self) -> tuple[str, str, bool, str]:
        """Equal for two calls whose points stand in one table."""
        return self.strategy, self.key, self.weak, self.flags


def record_sweep(results: Path, sweep: Sweep) -> None:
    """Add it to sweeps.json of the set, or its points to the same sweep."""
    with lock_tables(results):
        sweeps = {each.name: each for each in load_sweeps(results)}
        if before := sweeps.get(sweep.name):
            sweep = dataclasses.replace(sweep, points=before.points | sweep.points)
        sweeps[sweep.name] = sweep
        write_json(results / FILE, {"sweeps": [dataclasses.asdict(each) for each in sweeps.values()]})


def load_sweeps(results: Path) -> list[Sweep]:
    try:
        found = json.loads((results / FILE).read_bytes())["sweeps"]
        sweeps = [Sweep(**each) for each in found]
        return [
            dataclasses.replace(each, exchange=Exchange(**raw["exchange"]) if raw["exchange"] else None)
            for each, raw in zip(sweeps, found, strict=True)
        ]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{results}/{FILE} is damaged: {error}; move it away, and start the sweep again") from None


@dataclasses.dataclass(frozen=True, eq=False)
class TimedPoint:
    """ratio: over the point that the sweep names; None of that point itself, and where it was not timed."""

    label: str
    group: RunGroup
    ratio: RatioEstimate | None
    bubbles: list[PipelineBubble]

    @property
    def speed(self) -> float:
        """images/s."""
        return self.group.timed_throughput.value

    @property
    def num_ranks(self) -> int:
        return int(self.group.ok_runs.world_size.iloc[0])

    @property
    def oversubscribed(self) -> bool:
        return bool((self.group.ok_runs.oversubscribed == "yes").any())

    @property
    def bubble(self) -> tuple[float, float] | None:
        """(the share of its time that a rank waited, on average over ranks; (p - 1) / (m + p - 1)); None without."""
        if not self.bubbles:
            return None
        return sum(each.waited.value for each in self.bubbles) / len(self.bubbles), self.bubbles[0].ideal


@dataclasses.dataclass(frozen=True, eq=False)
class SweepResult:
    """timed: in the order of their numbers, else as planned. untimed: why, by label."""

    sweep: Sweep
    timed: list[TimedPoint]
    untimed: dict[str, str]

    def efficiency(self, point: TimedPoint) -> float:
        """Throughput a rank over that of the fewest ranks; 1 is ideal."""
        first = self.timed[0]
        return point.speed / point.num_ranks / (first.speed / first.num_ranks)

    def summed_speed(self, num_ranks: int) -> float | None:
        """images/s of num_ranks: a step's computing, at the images/s of a rank alone, plus its all-reduce; None
        without a measured all-reduce, or a point of one rank."""
        exchange, first = self.sweep.exchange, self.timed[0]
        if exchange is None or first.num_ranks != 1:
            return None
        batch = float(first.group.ok_runs.global_batch.iloc[0])
        images_of_rank = batch if self.sweep.weak else batch / num_ranks
        return num_ranks * images_of_rank / (images_of_rank / first.speed + exchange.seconds(num_ranks))


def find_result(results: ResultSet, sweep: Sweep) -> SweepResult:
    """The intervals of all ratios hold together. Raises UserError where a point was measured on several machines."""
    groups = groups_by_request(results)
    timed: dict[str, RunGroup] = {}
    untimed: dict[str, str] = {}
    for label, requested in sweep.points.items():
        found = [group for group in groups.get(requested, []) if group.windows_of_runs]
        if len(found) > 1:
            labels = " and ".join(group.label for group in found[:2])
            raise UserError(f"{results.path}: point {label} was measured in several ways, {labels}; use a new set")
        if found:
            timed[label] = found[0]
        else:
            reasons = [text for group in groups.get(requested, []) for text in group.rows.reason if text]
            untimed[label] = next(iter(reasons), "not run yet").removeprefix("skipped: ")
    ratios: dict[str, RatioEstimate] = {}
    if sweep.to in timed:  # two points may come to the same runs, such as `auto` and what it became
        logs = {label: group.log_by_round for label, group in timed.items() if group is not timed[sweep.to]}
        ratios = ratios_to_baseline(sweep.to, {sweep.to: timed[sweep.to].log_by_round} | logs)
    steps = results.table("steps")
    points = [
        TimedPoint(label, group, ratios.get(label), pipeline_bubbles(group, steps)) for label, group in timed.items()
    ]
    if all(parse_number(point.label) is not None for point in points):
        points.sort(key=lambda point: float(point.label))
    return SweepResult(sweep, points, untimed)


def results_of_sweeps(results: ResultSet) -> list[SweepResult]:
    return [find_result(results, sweep) for sweep in load_sweeps(results.path)]


def groups_by_request(results: ResultSet) -> dict[str, list[RunGroup]]:
    """By the hash of their requested settings. Two requests may come to one group."""
    settings = results.table("settings")
    hashes = dict(zip(settings.settings, settings.asked_hash, strict=True))
    found: dict[str, list[RunGroup]] = {}
    for group in results.groups:
        for requested in dict.fromkeys(hashes.get(name) for name in group.rows.settings):
            found.setdefault(str(requested), []).append(group)
    return found


def parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def sweep_rows(result: SweepResult) -> list[dict[str, Any]]:
    sweep, rows = result.sweep, []
    for point in result.timed:
        speed, ratio = point.group.timed_throughput, point.ratio
        row = {"point": point.label, "num_runs": speed.num_runs, "images_per_s": speed.value}
        row |= {"ci_low": speed.low, "ci_high": speed.high}
        row["efficiency"] = result.efficiency(point) if sweep.key == RANKS else None
        row |= {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high} if ratio else {}
        row |= dict(zip(("bubble", "bubble_in_theory"), point.bubble or (), strict=False))
        rows.append(row)
    rows += [{"point": label, "why_not": why} for label, why in result.untimed.items()]
    return [{"strategy": sweep.strategy, "key": sweep.key, "to": sweep.to} | row for row in rows]


def write_csv(results: Path, rows: list[dict[str, Any]]) -> Path:
    write_text_atomically(path := results / "sweep.csv", table_text(SWEEP_COLUMNS, rows))
    return path


def table_lines(result: SweepResult) -> list[tuple[str, ...]]:
    """The header and a line a point."""
    to = result.sweep.to
    lines: list[tuple[str, ...]] = [(result.sweep.key, "images/s [95 %]", "n", f"x {to} [95 %]", "")]
    for point in result.timed:
        speed, notes = point.group.timed_throughput, []
        if result.sweep.key == RANKS:
            notes.append(f"efficiency {100 * result.efficiency(point):.0f} %")
        if point.bubble:
            measured, theory = (100 * each for each in point.bubble)
            notes.append(f"bubble {measured:.0f} %, in theory {theory:.0f} %")
        if point.oversubscribed:
            notes.append("oversubscribed")
        rate = format_with_interval(speed.value, speed.low, speed.high, format_number)
        ratio = point.ratio.text() if point.ratio else "1" if point.label == to else ""
        lines.append((point.label, rate, str(speed.num_runs), ratio, "; ".join(notes)))
    return [*lines, *((label, "", "", "", why) for label, why in result.untimed.items())]


def table(result: SweepResult) -> str:
    return text_table(table_lines(result), left_aligned=(0, 1, 3, 4))
