"""Is B faster than A? Two variants of one strategy, in one session, in blocks A B B A or B A A B.

    ./bench ab HEAD~1 tree: --strategy ddp
    ./bench ab flags: "flags:--bucket-cap-mb 100" --fail-over 5%

What A and B can be: variants.py. Of each run only the timed part is run. Rows go to the sets A and B of the
comparison's folder, what was compared and found to its ab.json.

Exit code: 0; 1 with --fail-over where B is slower by more than that with confidence; 2 for a mistake; 3 with
--fail-over where that is not decided; 4 where a variant's run fails or this program crashes; 128 + a signal.
"""

import dataclasses
import math
import random
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import yaml

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_json, write_text_atomically
from benchmarks.common.rows import WARM_UP, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.results.formatting import format_number, format_setting, format_with_interval, parse_percent, plural
from scripts.results.identity import Identity, differing_fields
from scripts.results.intervals import RatioEstimate
from scripts.runner import loop, plan, preflight
from scripts.runner.request import Request, read_request, with_images
from scripts.shared import source_version, strategy_list
from scripts.shared.forward_signals import SignalForwarder, forward_signals
from scripts.shared.repository import ROOT
from scripts.studies.ab.variants import Variant, parse_variant
from scripts.studies.ab.worktrees import checked_out
from scripts.studies.options import AbOptions
from scripts.studies.paired import describe_rounds_needed, is_slower, order_of_round, ratio_of_speeds

DEFAULT_ROUNDS = 10
RUN_FAILED = 4  # exit code


class RunFailed(Exception):
    """The text says why, and names the log."""


@dataclasses.dataclass
class Speeds:
    """images/s of A and of B in each round. first: which of them ran first in round 1."""

    first: str
    of: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {"A": [], "B": []})

    @property
    def num_rounds(self) -> int:
        return len(self.of["A"])

    @property
    def ratio(self) -> RatioEstimate:
        return ratio_of_speeds(self.of["A"], self.of["B"])

    @property
    def sd(self) -> float:
        """Of a round's log ratio; 0 with one round."""
        logs = numpy.log(self.of["B"]) - numpy.log(self.of["A"])
        return float(logs.std(ddof=1)) if len(logs) > 1 else 0.0


def main(options: AbOptions, flags: Sequence[str]) -> int:
    """flags: of the configuration of both."""
    try:
        return compare(options, flags)
    except (UserError, ValueError, OSError):
        raise
    except Exception as failed:  # not 1, which says that B is slower
        if not isinstance(failed, RunFailed):
            traceback.print_exc()
        print(f"failed: {failed}", file=sys.stderr)
        return RUN_FAILED


def compare(options: AbOptions, flags: Sequence[str]) -> int:
    request = read_request(options, flags)
    if not any(text.startswith("config:") for text in (options.a, options.b)):
        request = with_images(request)
    limit = parse_percent(options.fail_over, "--fail-over") if options.fail_over else None
    num_rounds = options.repeats or DEFAULT_ROUNDS
    if machine.number_from_env("NNODES", "a number of nodes") not in (None, 1):
        raise UserError("./bench ab is for one machine, or Slurm: nodes of torchrun cannot agree; leave NNODES out")
    strategy = strategy_list.parse_strategy(options.strategy)
    a, b = (parse_variant(name, text.strip(), request, strategy) for name, text in (("A", options.a), ("B", options.b)))
    runs = {variant.name: run_of_variant(variant, strategy, request) for variant in (a, b)}
    preflight.check_ranks([run.config for run in runs.values()], [request.ranks_here])
    print("\n".join(describe_comparison(a, b, runs, num_rounds)), flush=True)
    if request.plan:
        return 0
    if request.results and (request.results / "ab.json").exists():
        raise UserError(f"{request.results} holds a comparison already, of another session; choose another --results")
    results = preflight.open_result_set(request.results, "ab-")
    commits = [variant.commit for variant in (a, b) if variant.commit]
    with loop.lock_result_set(results), forward_signals() as child_runner, checked_out(commits) as folders:
        session = Session(results, runs, {"A": a, "B": b}, folders, child_runner)
        speeds = session.run_rounds(num_rounds, request.budget_s)
    if child_runner.signum:
        return 128 + child_runner.signum
    return report(speeds, results, limit)


def run_of_variant(variant: Variant, strategy: str, request: Request) -> plan.Run:
    whole = plan.make_run(request, strategy, variant.config, variant.flags)
    (run,) = plan.skip_what_does_not_fit([whole.timed_part()])
    return run


def describe_comparison(a: Variant, b: Variant, runs: dict[str, plan.Run], num_rounds: int) -> list[str]:
    lines = [
        f"{variant.name}: {runs['A'].strategy}, {variant.text}: {variant.source or 'no git'}, {variant.python}"
        for variant in (a, b)
    ]
    one, other = (Identity(runs[name].requested, {}) for name in "AB")
    values = [
        f"{name} ({format_setting(one.fields.get(name))} against {format_setting(other.fields.get(name))})"
        for name in differing_fields([one, other])
    ]
    if a.content == b.content:
        lines.append("A and B are the same: an A/A run, which finds a difference in about 1 of 20")
    elif values:
        lines.append(f"they differ in {', '.join(values)}")
    if a.commit and b.commit and source_version.local_changes():
        lines.append("local changes are not measured: A and B are commits")
    return [*lines, f"{plural(num_rounds, 'round')}, after a warm-up of each"]


@dataclasses.dataclass(frozen=True)
class Session:
    """checkouts: the folder of each commit, by its hash."""

    results: Path
    runs: dict[str, plan.Run]
    variants: dict[str, Variant]
    checkouts: dict[str, Path]
    child_runner: SignalForwarder

    def run_rounds(self, num_rounds: int, budget_s: float | None) -> Speeds:
        """All rounds, or those before a signal and within the budget. Raises RunFailed."""
        for name, variant in self.variants.items():
            folder = preflight.open_result_set(self.results / name)
            loop.record_environment(folder, self.runs[name], self.child_runner, variant.python)
        began, speeds, longest_s = time.monotonic(), Speeds(random.choice("AB")), 0.0
        for round_number in range(num_rounds + 1):  # round 0 warms up
            round_began = time.monotonic()
            spent_s = round_began - began
            if budget_s is not None and round_number and spent_s + longest_s > budget_s:
                print(f"--budget {budget_s:g}s: another round, of about {longest_s:.0f} s, does not fit")
                break
            round_speeds = {}
            for position, name in enumerate(order_of_round(speeds.first, round_number), 1):
                number = f"{name} {round_number}/{num_rounds}" if round_number else f"{name} {WARM_UP}"
                round_speeds[name] = self.time(name, round_number, position, number)
                if self.child_runner.signum:
                    return speeds
            longest_s = max(longest_s, time.monotonic() - round_began)
            if round_number:
                for name, speed in round_speeds.items():
                    speeds.of[name].append(speed)
                self.write(speeds, time.monotonic() - began)
                print(f"round {round_number}: {ratio_text(speeds.ratio)}", flush=True)
        return speeds

    def time(self, name: str, round_number: int, position: int, number: str) -> float:
        """images/s of one run; 0 after a signal. Raises RunFailed where it is not ok."""
        variant, folder = self.variants[name], preflight.open_result_set(self.results / name)
        run = dataclasses.replace(self.runs[name], round=round_number, position=position if round_number else 0)
        run_folder, env = plan.create_run_folder(run, folder, number)
        if variant.commit:
            leave_known_fields(run_folder, variant)
        checkout = self.checkouts.get(variant.commit, ROOT)
        code = loop.start_launcher(run, run_folder, env | {"PYTHON": variant.python}, self.child_runner, checkout)
        if self.child_runner.signum:
            return 0.0
        rows = read_table(folder, "runs")
        row: Any = next((row for row in rows.itertuples() if row.run_id == run_folder.run_id), None)
        if why := why_unusable(row, code, run_folder, variant):
            raise RunFailed(f"{name}, {variant.text}: {why}")
        return float(row.images_per_s)

    def write(self, speeds: Speeds, seconds: float) -> None:
        """After each round, so that none is lost."""
        compared = {
            name: {"is": variant.text, "source": variant.source, "python": variant.python}
            for name, variant in self.variants.items()
        }
        ratio = speeds.ratio
        found = {"value": ratio.value, "low": ratio.low, "high": ratio.high, "verdict": ratio.verdict}
        found |= {"num_rounds": speeds.num_rounds, "sd_of_rounds": speeds.sd, "seconds": seconds}
        rounds = {"first": speeds.first, "images_per_s": speeds.of}
        head = {"strategy": self.runs["A"].strategy, **compared}
        write_json(self.results / "ab.json", {**head, "rounds": rounds, "b_over_a": found})


def why_unusable(row: Any, code: int, folder: RunFolder, variant: Variant) -> str:
    """row: of runs.csv, or None. code: the launcher's."""
    log, resolved = folder.log if folder.log.exists() else folder.path, folder.resolved()
    if row is None:
        return f"its launcher ended with code {code}; its log: {log}"
    if code or row.status not in ("ok", WARM_UP) or row.reason.startswith("skipped"):
        return f"{row.status}: {row.reason}; its log: {log}"
    if f"{resolved.get('commit')} {resolved.get('local_changes')}".strip() != variant.source:
        return "its files changed meanwhile, or git sees the result set, which then belongs below results/"
    return "" if row.images_per_s > 0 else f"timed nothing; its log: {log}"


def leave_known_fields(folder: RunFolder, variant: Variant) -> None:
    """In run.yaml, those that a commit's code knows. Every one is set: that code's defaults may differ."""
    planned = yaml.safe_load(folder.plan.read_text())
    planned["config"] = {name: value for name, value in planned["config"].items() if name in variant.fields}
    write_text_atomically(folder.plan, yaml.safe_dump(planned, sort_keys=False))


def ratio_text(ratio: RatioEstimate) -> str:
    return f"B/A {format_with_interval(ratio.value, ratio.low, ratio.high, '{:.3f}'.format)}"


def report(speeds: Speeds, results: Path, limit: float | None) -> int:
    """The exit code, which the last line explains."""
    if not speeds.num_rounds:
        print(f"no round was done; {results}", flush=True)
        return 0 if limit is None else 3
    ratio = speeds.ratio
    a, b = (math.exp(float(numpy.log(speeds.of[name]).mean())) for name in "AB")
    print(f"\nA {format_number(a)} images/s, B {format_number(b)}; {plural(speeds.num_rounds, 'round')}; {results}")
    verdict = f"B is {ratio.verdict}" if ratio.verdict in ("faster", "slower") else ratio.verdict
    print(f"{verdict}; {ratio_text(ratio)}", flush=True)
    slower = None if limit is None else is_slower(ratio, speeds.num_rounds, limit)
    if speeds.sd and (ratio.verdict not in ("faster", "slower") or (limit is not None and slower is None)):
        print(describe_rounds_needed(speeds.sd))
    if limit is None:
        return 0
    percent = f"{100 * limit:g} %"
    if slower:
        print(f"failed: B is slower by more than {percent} with confidence", file=sys.stderr)
        return 1
    if slower is None:
        print(f"not decided: whether B is slower by more than {percent}; give more --repeats", file=sys.stderr)
        return 3
    print(f"fine: with 95 % confidence B is not slower by more than {percent}")
    return 0
