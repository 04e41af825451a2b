"""Is B faster than A? Two things by one strategy, in one sitting, round by round in random order.

    A=HEAD~1 B=tree: STRATEGY=ddp python -m scripts.studies.ab.ab          # or: make ab A=HEAD~1 B=tree:
    A=flags: B="flags:--bucket-cap-mb 100" FAIL_OVER=5% python -m scripts.studies.ab.ab

What A and B can be: scripts/studies/ab/variants.py. Both have this checkout's planner and, unless it is compared, its
interpreter; each has its own launchers and code. Of each run only the timed part of CONFIG is run. After each round
scripts/stats/sequential.py says whether another is needed: the error rate holds however often it looks. REPEATS is
the most rounds (20); BUDGET=20m ends it earlier. Rows go to the result sets RESULTS/A and RESULTS/B, what was compared
and found to RESULTS/ab.json. PLAN=yes starts nothing.

Exit code: 0; 1 where a side's run fails, or with FAIL_OVER where B is slower by more than that with confidence; 2 for
a mistake, and with FAIL_OVER where that is not decided; 129, 130, 131 or 143 after a signal. The last line says which.
"""

import dataclasses
import math
import os
import random
import sys
import time
from pathlib import Path

import tyro

from benchmarks.common.store.results import WARM_UP, read_table, write_json
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.forward_signals import SignalForwarder, forward_signals
from benchmarks.common.system.programs import run_program
from scripts.runner import preflight, run_plan, schedule, source_version
from scripts.runner.round_order import timed_part
from scripts.sets.identity import Identity, differing_fields
from scripts.sets.result_set import load_set
from scripts.stats.formatting import format_interval, format_number, format_setting, parse_percent, plural
from scripts.stats.sequential import MAX_ROUNDS, SequentialResult, look_at_rounds
from scripts.studies.ab import variants
from scripts.studies.ab.variants import Side

Pair = tuple[Side, Side]


@dataclasses.dataclass
class Sitting:
    """What has been measured so far, of A and B: images/s of each round, and which ran first."""

    seed: int
    began: float
    rates: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {"A": [], "B": []})
    first: list[str] = dataclasses.field(default_factory=list)

    @property
    def log_ratios(self) -> list[float]:
        return [math.log(b / a) for a, b in zip(self.rates["A"], self.rates["B"], strict=True)]

    @property
    def sd(self) -> float | None:
        """From run to run, of log throughput: a round's ratio has that of two runs."""
        logs = self.log_ratios
        mean = sum(logs) / max(1, len(logs))
        return math.sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1) / 2) if len(logs) > 1 else None


class Failed(Exception):
    """A side's run has not become ok: a sentence with its log."""


def main() -> int:
    given = run_plan.read_variables()
    limit = parse_percent(os.environ["FAIL_OVER"], "FAIL_OVER") if os.environ.get("FAIL_OVER") else None
    most = given.repeats if os.environ.get("REPEATS") else MAX_ROUNDS
    if not given.strategy:
        raise UserError("STRATEGY is not set; for example: make ab A=HEAD~1 B=tree: STRATEGY=ddp")
    if machine.number_from_env("NNODES", "a number of nodes") not in (None, 1):
        raise UserError(
            "make ab is for one machine, or Slurm: two nodes of torchrun choose two orders; leave NNODES out"
        )
    strategy = preflight.only(given.strategy)
    a, b = (variants.read_side(name, os.environ.get(name, "").strip(), given, strategy) for name in ("A", "B"))
    runs = {side.name: run_of(side, strategy, given) for side in (a, b)}
    preflight.check_ranks([run.config for run in runs.values()], [given.ranks_here])
    print("\n".join(in_words((a, b), runs, most)), flush=True)
    if os.environ.get("PLAN") == "yes":
        return 0
    if given.results and (given.results / "ab.json").exists():
        raise UserError(f"{given.results} holds a comparison already, of another sitting; choose another RESULTS=")
    results = preflight.open_set(given.results, "ab-")
    with schedule.claimed(results), forward_signals() as children, variants.checkouts((a, b)) as where:
        for name in ("A", "B"):
            schedule.record_lost(results / name)
        sitting = Sitting(time.time_ns() % 2**32, time.monotonic())
        measure = Measure(results, runs, {"A": a, "B": b}, where, children)
        try:
            step = sit(measure, sitting, most, limit or 0.0, given.budget_s)
        except Failed as failed:
            print(f"failed: {failed}", file=sys.stderr)
            return 1
        if children.signum:
            return 128 + children.signum
    for name in ("A", "B"):
        if (results / name / "runs.csv").exists():
            load_set(results / name).refuse_contradictions()
    return verdict(step, sitting, results, limit)


def run_of(side: Side, strategy: str, given: run_plan.Given) -> run_plan.Run:
    """The timed part of what the side asks for, as a run of round 1."""
    whole = run_plan.make_run(given, strategy, 1, side.config, flags=side.flags)
    short = timed_part(whole.config, whole.asked["fingerprint"], whole.asked["ranks"])
    (run,) = run_plan.fitted([dataclasses.replace(whole, config=short, asked=whole.asked | dataclasses.asdict(short))])
    return run


def in_words(pair: Pair, runs: dict[str, run_plan.Run], most: int) -> list[str]:
    """What is compared, a line each, before anything is started."""
    strategy = runs["A"].strategy
    lines = [f"{side.name}: {strategy}, {side.text}: {side.source or 'no git'}, {side.python}" for side in pair]
    a, b = (Identity(runs[side.name].asked, {}) for side in pair)
    names = differing_fields([a, b])
    values = (
        f"{name} ({format_setting(a.fields.get(name))} against {format_setting(b.fields.get(name))})" for name in names
    )
    if pair[0].what == pair[1].what:
        lines.append("A and B are the same: an A/A run, which finds a difference in 1 of 20")
    elif names:
        lines.append(f"they differ in {', '.join(values)}")
    if all(side.commit for side in pair) and source_version.local_changes():
        lines.append("local changes are not measured: both sides are commits")
    return [*lines, f"at most {plural(most, 'round')}, after a warm-up of each; fewer where the answer is clear"]


@dataclasses.dataclass(frozen=True)
class Measure:
    """How a run of a side is made."""

    results: Path
    runs: dict[str, run_plan.Run]
    sides: dict[str, Side]
    where: dict[str, Path]
    children: SignalForwarder

    def __call__(self, name: str, number: int, position: int, label: str) -> float | None:
        """images/s of a run; None after a signal, or of the warm-up. Raises Failed where it is not ok."""
        side, folder = self.sides[name], preflight.open_set(self.results / name)
        run = dataclasses.replace(self.runs[name], round=number, position=position)
        made, told = run_plan.begin(run, folder, label)
        variants.write_config(side, made, run.config)
        told["PYTHON"] = side.python
        schedule.describe(folder, run, self.children, side.python)
        code = schedule.start(run, made, told, self.children, self.where[name])
        if self.children.signum:
            return None
        return self._rate(name, made, number, code)

    def _rate(self, name: str, made: RunFolder, number: int, code: int) -> float | None:
        rows = read_table(made.results, "runs")
        row = next((row for row in rows.itertuples() if row.run_id == made.run_id), None)
        if row is None or code or row.status not in ("ok", WARM_UP) or row.reason.startswith("skipped"):
            why = f"{row.status}: {row.reason}" if row is not None else f"its launcher ended with code {code}"
            log = made.log if made.log.exists() else made.path
            raise Failed(f"{name}, {self.sides[name].text}: {why}; its log: {log}")
        met = made.settings().get("met", {})
        if f"{met.get('commit')} {met.get('local_changes')}".strip() != self.sides[name].source:
            why = "its files were changed while they were measured (or git sees those in RESULTS)"
            raise Failed(f"{name}, {self.sides[name].text}: {why}")
        if not number:
            return None
        if not row.images_per_s > 0:
            raise Failed(f"{name}, {self.sides[name].text}: timed nothing; its log: {made.log}")
        return row.images_per_s


def sit(measure: Measure, sitting: Sitting, most: int, limit: float, budget_s: float | None) -> SequentialResult:
    """Rounds until the answer is clear, or there are no more, or time is over, or a signal comes."""
    for name in ("A", "B"):
        if not measure.children.signum:
            measure(name, 0, 0, f"{name} {WARM_UP}")
    step, longest_s = look_at_rounds([], most, limit), 0.0
    while step.more and not measure.children.signum:
        number, began = len(sitting.first) + 1, time.monotonic()
        if budget_s is not None and began - sitting.began + longest_s > budget_s:
            print(f"BUDGET={budget_s:g}s: another round, of about {longest_s:.0f} s, does not fit")
            break
        order = random.Random(f"{sitting.seed} {number}").sample("AB", 2)
        rates = {}
        for place, name in enumerate(order, 1):
            if not measure.children.signum:
                rates[name] = measure(name, number, place, f"{name} {number}/{most}")
        if measure.children.signum:
            break
        for name, rate in rates.items():
            sitting.rates[name].append(rate)
        sitting.first.append(order[0])
        step, longest_s = look_at_rounds(sitting.log_ratios, most, limit), max(longest_s, time.monotonic() - began)
        record(measure, sitting, step)
        print(f"round {number}: {so_far(step)}", flush=True)
    return step


def so_far(step: SequentialResult) -> str:
    """B's throughput over A's, with its interval where it has been looked at."""
    found = step.estimate
    return f"B/A {found.value:.3f} {format_interval(found.low, found.high, '{:.3f}'.format)}".strip()


def record(measure: Measure, sitting: Sitting, step: SequentialResult) -> None:
    """ab.json: what is compared, and what was found so far; no round is lost."""
    told = {
        name: {"is": side.text, "source": side.source, "python": side.python} for name, side in measure.sides.items()
    }
    found = dataclasses.asdict(step.estimate) | {"sd_of_runs": sitting.sd, "seconds": time.monotonic() - sitting.began}
    rounds = {"order_seed": sitting.seed, "first": sitting.first, "images_per_s": sitting.rates}
    strategy = measure.runs["A"].strategy
    write_json(measure.results / "ab.json", {"strategy": strategy, **told, "rounds": rounds, "b_over_a": found})


def verdict(step: SequentialResult, sitting: Sitting, results: Path, limit: float | None) -> int:
    """Print what was found; returns the exit code, which the last line explains."""
    found, num_rounds = step.estimate, len(sitting.first)
    seconds = time.monotonic() - sitting.began
    rates = ""
    if num_rounds:
        a, b = (math.exp(sum(map(math.log, sitting.rates[name])) / num_rounds) for name in "AB")
        rates = f"A {format_number(a)} images/s, B {format_number(b)}; "
    print(f"\n{rates}{plural(num_rounds, 'round')}, {seconds:.0f} s; {results}")
    if sitting.sd is not None:
        print(f"sd from run to run: {100 * sitting.sd:.1f} %")
    if found.smallest_difference is not None:
        least, look = f"{100 * found.smallest_difference:.1f} %", plural(num_rounds, "round")
        print(f"one look after {look}, had that been set beforehand, finds a difference of {least} with 80 % power")
    if step.early:
        print("it stopped early, where the answer was clear: the interval holds, the ratio is biased outward")
    said = f"B is {found.verdict}" if found.verdict in ("faster", "slower") else found.verdict
    said += f": {found.why}" if found.why else ""
    print(f"{said}; {so_far(step)}" if num_rounds else "no verdict: no round was done", flush=True)
    if limit is None:
        return 0
    percent = f"{100 * limit:g} %"
    if found.high is not None and found.high < 1 - limit:
        print(f"failed: B is slower by more than {percent} with confidence", file=sys.stderr)
        return 1
    if found.low is None or found.low < 1 - limit:
        print(f"not decided: whether B is slower by more than {percent}", file=sys.stderr)
        return 2
    print(f"fine: B is not slower by more than {percent}")
    return 0


if __name__ == "__main__":
    run_program(lambda: tyro.cli(main, description=__doc__), errors=(UserError, ValueError), writes="ab")
