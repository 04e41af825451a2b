"""May a result set be published? What speaks against it, a line each: what is wrong, and what to do.

Needs no torch.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.config.settings import STRATEGY_SOURCE
from benchmarks.common.store.frames import iterate_rows
from benchmarks.common.store.results import WARM_UP, read_table
from benchmarks.common.system.commands import bench_command
from scripts.sets.identity import comparable, incomparable_fields
from scripts.sets.proofs import EXCEPTIONS, LOCAL_CHANGES, proof_text
from scripts.sets.result_set import ResultSet
from scripts.sets.run_group import RunGroup
from scripts.sets.set_warnings import busy, oversubscribed, several_sessions, throttled, uncommitted_changes
from scripts.stats.formatting import format_setting, plural
from scripts.stats.intervals import MIN_ROUNDS
from scripts.strategies.strategy_list import BASELINE

RULE = 2  # of these checks; a set that an older rule let in says so in its published.json. From 2 on it has a manifest
NEEDED = {
    **dict.fromkeys(("runs.csv", "settings.csv", "windows.csv", "epochs.csv", "steps.csv"), "run"),
    **dict.fromkeys(("wall.csv", "telemetry.csv", "environment.json"), "run"),
    "equivalence.csv": "verify",
}


def missing_files(path: Path) -> list[str]:
    """A line for each file without which nothing can be said of the set in `path`."""
    lines = {name: f"{path} lacks {name}; {bench_command(command, results=path)}" for name, command in NEEDED.items()}
    return [line for name, line in lines.items() if not (path / name).is_file()]


def find_problems(results: ResultSet) -> list[str]:
    """What speaks against publishing the set. [] where nothing does."""
    timed = results.timed_groups
    if not timed:
        return [f"{results.path} has no ok run with a throughput; ./bench run"]
    rules = (
        results.contradictions,
        _source(results),
        _rows(results),
        _rounds(timed),
        _protocol(results, timed),
        _proofs(results, timed),
    )
    return [sentence for rule in rules for sentence in rule]


def _source(results: ResultSet) -> Iterator[str]:
    """One commit, and nothing beside it."""
    commits = sorted(set(results.ok_runs.commit) - {""})
    if len(commits) > 1:
        yield f"its runs are of {len(commits)} commits ({', '.join(commits)}); measure all with one, in a new set"
    if "" in set(results.ok_runs.commit):
        yield "runs without a commit: nobody could make them again; measure in a git checkout"
    yield from uncommitted_changes(results)
    for group in results.groups:
        if STRATEGY_SOURCE in group.identity.requested:
            yield f"{group.label} is of another repository (--strategy-dir), and no commit has its code; leave it out"
    if not all(group.identity.recorded for group in results.timed_groups):
        yield "runs whose settings were not recorded, by an older version of the suite; measure again"


def _rows(results: ResultSet) -> Iterator[str]:
    """The last attempt of each round is ok, or was skipped for a reason."""
    for group in results.groups:
        last = group.rows.drop_duplicates("repeat", keep="last")
        for row in iterate_rows(last):
            if row.status in ("failed", "timeout", "interrupted", "invalid"):
                yield (
                    f"{group.label}, round {format_setting(row.repeat)}: {row.status}: {row.reason or 'no reason'}; "
                    f"{bench_command('run', retry=row.status, results=results.path)}"
                )
        if (last.status == "skipped").any() and not last.reason[last.status == "skipped"].all():
            yield f"{group.label} is skipped without a reason; run it again"


def _rounds(timed: list[RunGroup]) -> Iterator[str]:
    most = max(len({*group.round_numbers}) for group in timed)
    for group in timed:
        number = len({*group.round_numbers})
        if number < max(MIN_ROUNDS, most):
            needed = max(MIN_ROUNDS, most)
            again = bench_command("run", repeats=needed)
            yield f"{group.label} has {number} of at least {needed} rounds; {again} on this set"


def _protocol(results: ResultSet, timed: list[RunGroup]) -> Iterator[str]:
    """A warm machine, rounds in an order, the same settings but for what strategies are, and nothing else running."""
    runs = read_table(results.path, "runs")
    if not ((runs.status == WARM_UP) & (runs.images_per_s > 0)).any():
        yield "no run of round 0 warmed the machine, so that the first had a colder one; ./bench run, in a new set"
    for group in timed:
        if number := int(group.ok_runs.position.isna().sum()):
            yield (
                f"{group.label}: {number} of {plural(len(group.ok_runs), 'run')} without a place in the order of the "
                "round (position): started by hand, or by an older suite; ./bench run, in a new set"
            )
    singles = [group for group in timed if group.strategy == BASELINE]
    if not singles:
        yield f"no timed runs of {BASELINE}, which speed-ups are over; ./bench run {BASELINE} on this set"
    for group in timed:
        if singles and not any(comparable(group.identity, single.identity) for single in singles):
            names = ", ".join(incomparable_fields(group.identity, singles[0].identity)) or "settings not recorded"
            yield f"{group.label} ran on other settings than {BASELINE} ({names}); keep it in a set of its own"
    for column in ("device_name", "torch"):
        if len(found := set(results.ok_runs[column])) > 1:
            yield f"several values of {column}: {', '.join(sorted(found))}; measure on one machine and version"
    for rule in (busy, throttled, oversubscribed, several_sessions):
        yield from (sentence for warning in rule(results) for sentence in warning.sentences)


def _proofs(results: ResultSet, timed: list[RunGroup]) -> Iterator[str]:
    verify = bench_command("verify", results=results.path)
    if not (results.path / "equivalence.csv").is_file():
        return  # missing_files has it
    for group in timed:
        said = proof_text(group, results.table("equivalence"))
        if not said.startswith("yes"):
            yield f"{group.label}: {said or 'no proof'}; {verify}"
        elif "commit" in (differs := said.partition(EXCEPTIONS)[2].split(", ")):
            yield f"{group.label} was proved at another commit; {verify}"
        elif LOCAL_CHANGES in differs:
            yield f"{group.label} was proved with other local changes; {verify}"
