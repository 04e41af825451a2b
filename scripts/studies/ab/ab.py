"""Is B faster than A? Two variants of one strategy, in one session, in balanced blocks.

    ./bench ab HEAD~1 tree: --strategy ddp
    ./bench ab flags: "flags:--bucket-cap-mb 100" --fail-over 5%

What A and B can be: scripts/studies/ab/variants.py. Both have this checkout's planner and, unless it is compared, its
interpreter; each has its own launchers and code. Of each run only the timed part is run. Two rounds are a block,
A B B A all along or B A A B all along, by chance. sequential.py says after each round whether another is needed.
--repeats is the most rounds (20); --budget 20m ends it earlier. Rows go to the result sets A and B of the comparison's
folder, what was compared and found to its ab.json.

Exit code: 0; 1 with --fail-over where B is slower by more than that with confidence; 2 for a mistake; 3 with
--fail-over where that is not decided; 4 where a variant's run fails or this program crashes; 128 + a signal.
"""

import dataclasses
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_json
from benchmarks.common.rows import WARM_UP, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.options.run_options import AbOptions
from scripts.results.formatting import format_setting, parse_percent, plural
from scripts.results.identity import Identity, differing_fields
from scripts.results.result_set import load_set
from scripts.runner import loop, plan, preflight
from scripts.runner.request import Request, read_request, with_images
from scripts.shared import source_version, strategy_list
from scripts.shared.forward_signals import SignalForwarder, forward_signals
from scripts.shared.repository import ROOT
from scripts.studies.ab import variants, worktrees
from scripts.studies.ab.paired_rounds import PairedRounds, format_ratio, report_verdict
from scripts.studies.ab.sequential import MAX_ROUNDS, SequentialResult, last_look, look_at_rounds
from scripts.studies.ab.variants import Variant

VariantPair = tuple[Variant, Variant]

RUN_FAILED = 4
"""The exit code where nothing can be compared, since a variant's run failed."""


class RunFailed(Exception):
    """A variant's run did not end ok. The text says why, and names its log."""


def main(options: AbOptions, flags: Sequence[str] = (), found: dict[str, Any] | None = None) -> int:
    """Compare A and B. flags: of the configuration of both. found: gets the result, for --json."""
    request = read_request(options, flags)
    if not any(text.startswith("config:") for text in (options.a, options.b)):
        request = with_images(request)
    limit = parse_percent(options.fail_over, "--fail-over") if options.fail_over else None
    most = options.repeats or MAX_ROUNDS
    if machine.number_from_env("NNODES", "a number of nodes") not in (None, 1):
        raise UserError(
            "./bench ab is for one machine, or Slurm: two nodes of torchrun choose two orders; leave NNODES out"
        )
    strategy = strategy_list.parse_strategy(options.strategy)
    a, b = (
        variants.parse_variant(name, text.strip(), request, strategy)
        for name, text in (("A", options.a), ("B", options.b))
    )
    runs = {variant.name: run_of_variant(variant, strategy, request) for variant in (a, b)}
    preflight.check_ranks([run.config for run in runs.values()], [request.ranks_here])
    print("\n".join(describe_comparison((a, b), runs, most)), flush=True)
    if request.plan:
        return 0
    if request.results and (request.results / "ab.json").exists():
        raise UserError(f"{request.results} holds a comparison already, of another session; choose another --results")
    refuse_results_that_git_sees((a, b), request.results)
    results = preflight.open_result_set(request.results, "ab-")
    with loop.lock_result_set(results), forward_signals() as child_runner, variants.checkouts((a, b)) as where:
        paired = PairedRounds(time.time_ns() % 2**32, time.monotonic())
        run_variant = VariantRunner(results, runs, {"A": a, "B": b}, where, child_runner)
        try:
            result = run_rounds(run_variant, paired, most, limit or 0.0, request.budget_s)
        except RunFailed as failed:
            print(f"failed: {failed}", file=sys.stderr)
            if found is not None:
                found["failed"] = str(failed)
            return RUN_FAILED
        if child_runner.signum:
            return 128 + child_runner.signum
    for name in ("A", "B"):
        if (results / name / "runs.csv").exists():
            load_set(results / name).refuse_contradictions()
    if found is not None and (results / "ab.json").exists():
        found |= json.loads((results / "ab.json").read_text()) | {"results": str(results)}
    return report_verdict(result, paired, results, limit)


def refuse_results_that_git_sees(pair: VariantPair, results: Path | None) -> None:
    """Raises UserError where the comparison's own files would count as changes of this checkout. A published set, which
    is refused in any case, is left to preflight.py."""
    here = [variant for variant in pair if not variant.commit]
    if results is None or not here or source_version.commit() is None or preflight.why_not_writable(results):
        return
    inside = results.resolve().is_relative_to(ROOT.resolve())
    if inside and source_version.git("check-ignore", "--quiet", str(results.resolve() / "A")) is None:
        raise UserError(
            f"{results} lies in this checkout and git does not ignore it, so that its files would be changes of "
            f"{here[0].name}; choose a folder below results/, or outside"
        )


def run_of_variant(variant: Variant, strategy: str, request: Request) -> plan.Run:
    """The timed part of the variant's run, as a run of round 1."""
    whole = plan.make_run(request, plan.RunTemplate(strategy, variant.config, variant.flags))
    (run,) = plan.skip_what_does_not_fit([whole.timed_part()])
    return run


def describe_comparison(pair: VariantPair, runs: dict[str, plan.Run], most: int) -> list[str]:
    """What is compared, a line each, before anything is started."""
    strategy = runs["A"].strategy
    lines = [
        f"{variant.name}: {strategy}, {variant.text}: {variant.source or 'no git'}, {variant.python}"
        for variant in pair
    ]
    a, b = (Identity(runs[variant.name].requested, {}) for variant in pair)
    names = differing_fields([a, b])
    values = (
        f"{name} ({format_setting(a.fields.get(name))} against {format_setting(b.fields.get(name))})" for name in names
    )
    if pair[0].content == pair[1].content:
        lines.append(
            "A and B are the same: an A/A run, which finds a difference in about 1 of 20 at most, those without a "
            "verdict counted, where rounds are independent or AR(1) up to 0.5, without rare stalls of one, and no "
            "disturbance has the period of a block"
        )
    elif names:
        lines.append(f"they differ in {', '.join(values)}")
    if all(variant.commit for variant in pair) and source_version.local_changes():
        lines.append("local changes are not measured: A and B are commits")
    if all(runs[variant.name].config.loader == "synthetic" for variant in pair):
        lines.append("both train on one synthetic batch again and again: no images are read")
    return [*lines, f"at most {plural(most, 'round')}, after a warm-up of each; fewer where the answer is clear"]


@dataclasses.dataclass(frozen=True)
class VariantRunner:
    """Runs one variant of the comparison."""

    results: Path
    runs: dict[str, plan.Run]
    variants: dict[str, Variant]
    checkouts: dict[str, Path]
    child_runner: SignalForwarder

    def __call__(self, name: str, round_number: int, position: int, run_number: str) -> float | None:
        """images/s of a run; None after a signal, or of the warm-up. Raises RunFailed where it is not ok."""
        variant, folder = self.variants[name], preflight.open_result_set(self.results / name)
        run = dataclasses.replace(self.runs[name], round=round_number, position=position)
        run_folder, env = plan.create_run_folder(run, folder, run_number)
        worktrees.write_plan(run_folder, variant.fields)
        env["PYTHON"] = variant.python
        loop.record_environment(folder, run, self.child_runner, variant.python)
        code = loop.start_launcher(run, run_folder, env, self.child_runner, self.checkouts[name])
        if self.child_runner.signum:
            return None
        return self._rate(name, run_folder, round_number, code)

    def _rate(self, name: str, run_folder: RunFolder, round_number: int, code: int) -> float | None:
        rows = read_table(run_folder.results, "runs")
        row: Any = next((row for row in rows.itertuples() if row.run_id == run_folder.run_id), None)
        if row is None or code or row.status not in ("ok", WARM_UP) or row.reason.startswith("skipped"):
            why = f"{row.status}: {row.reason}" if row is not None else f"its launcher ended with code {code}"
            log = run_folder.log if run_folder.log.exists() else run_folder.path
            raise RunFailed(f"{name}, {self.variants[name].text}: {why}; its log: {log}")
        resolved = run_folder.resolved()
        if f"{resolved.get('commit')} {resolved.get('local_changes')}".strip() != self.variants[name].source:
            why = "its files were changed while they were measured, or git sees the result set; git status names them"
            raise RunFailed(f"{name}, {self.variants[name].text}: {why}")
        if not round_number:
            return None
        if not row.images_per_s > 0:
            raise RunFailed(f"{name}, {self.variants[name].text}: timed nothing; its log: {run_folder.log}")
        return row.images_per_s


def run_rounds(
    run_variant: VariantRunner, paired: PairedRounds, most: int, limit: float, budget_s: float | None
) -> SequentialResult:
    """Rounds until the answer is clear, or there are no more, or time is over, or a signal comes."""
    start = random.Random(paired.seed).choice("AB")
    pair = start + "AB".replace(start, "")
    for name in reversed(pair):  # so that the first run follows one of its own, as the first of each block does
        if not run_variant.child_runner.signum:
            run_variant(name, 0, 0, f"{name} {WARM_UP}")
    result, longest_s = look_at_rounds([], most, limit), 0.0
    while result.more and not run_variant.child_runner.signum:
        round_number, began = len(paired.first) + 1, time.monotonic()
        spent_s = began - paired.began
        if budget_s is not None and spent_s + longest_s > budget_s:
            why = f"another round, of about {longest_s:.0f} s, does not fit"
            if not paired.first:
                why = f"the warm-up alone took {spent_s:.0f} s; give more"
            print(f"--budget {budget_s:g}s: {why}")
            if paired.first:
                write_result(run_variant, paired, result := last_look(paired.log_ratios, most, limit))
            break
        order = pair if round_number % 2 else pair[::-1]
        rates = {}
        for position, name in enumerate(order, 1):
            if not run_variant.child_runner.signum:
                rates[name] = run_variant(name, round_number, position, f"{name} {round_number}/{most}")
        if run_variant.child_runner.signum:
            break
        for name, rate in rates.items():
            if rate is not None:
                paired.rates[name].append(rate)
        paired.first.append(order[0])
        result, longest_s = look_at_rounds(paired.log_ratios, most, limit), max(longest_s, time.monotonic() - began)
        write_result(run_variant, paired, result)
        print(f"round {round_number}: {format_ratio(result)}", flush=True)
    return result


def write_result(run_variant: VariantRunner, paired: PairedRounds, result: SequentialResult) -> None:
    """ab.json: what is compared, and what was found so far; no round is lost."""
    compared = {
        name: {"is": variant.text, "source": variant.source, "python": variant.python}
        for name, variant in run_variant.variants.items()
    }
    found = dataclasses.asdict(result.estimate) | {"paired": True, "lag_1_correlation": result.correlation}
    found["num_rounds"] = result.num_rounds or len(paired.first)
    found |= {"carry_over": paired.carry_over.value, "sd_of_runs": paired.sd}
    found |= {"seconds": time.monotonic() - paired.began}
    rounds = {"order_seed": paired.seed, "first": paired.first, "images_per_s": paired.rates}
    strategy = run_variant.runs["A"].strategy
    write_json(run_variant.results / "ab.json", {"strategy": strategy, **compared, "rounds": rounds, "b_over_a": found})
