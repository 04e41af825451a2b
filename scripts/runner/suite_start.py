"""What a suite prints before its first run: the runs, how long they take, where the charts will be.

    print(start_text(left, results, variables))

How long is the sum of the last runs on this machine with the same requested settings. They are looked for in the
MAX_SETS newest result sets in results/ and beside this set. Where there is none, the text says so.
"""

import platform
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common.store.environment_facts import read_environment
from benchmarks.common.system import machine
from benchmarks.common.system.repository import ROOT
from scripts.runner import rounds
from scripts.runner.make_variables import MakeVariables
from scripts.runner.run_plan import Run
from scripts.stats.formatting import format_duration, plural, printable

if TYPE_CHECKING:
    import pandas

MAX_SETS = 30
"""The newest result sets, in which earlier runs are looked for."""
WIDTH = 100


def start_text(left: Sequence[Run], results: Path, variables: MakeVariables) -> str:
    """Lines on the runs that are left to do. results: the set, which may be new and empty."""
    if not left:
        more = rounds.describe_end(variables)
        return f"{printable(str(results))}: every planned run has a row already{f'; {more}' if more else ''}"
    num_rounds = len({run.round for run in left})
    warm_up = "" if rounds.is_only_run(left, variables) else ", after a warm-up that does not count"
    names = "; ".join(dict.fromkeys(run.name for run in left))
    lines = [
        f"{printable(str(results))}: {plural(len(left), 'run')} in {plural(num_rounds, 'round')}{warm_up}",
        *textwrap.wrap(printable(names), WIDTH, initial_indent="  ", subsequent_indent="  "),
    ]
    if end := rounds.describe_end(variables):
        lines.append(end)
    return "\n".join([*lines, duration_text(left, results), chart_text(left, results)])


def chart_text(left: Sequence[Run], results: Path) -> str:
    """Where and when the first charts are drawn, as FirstCharts of schedule.py does it."""
    first_round = [run for run in left if run.round == left[0].round]
    is_early = len({run.strategy for run in first_round}) > 1 < len(first_round) - 1
    when = "as soon as two strategies have a run" if is_early else f"after round {left[0].round}"
    return f"first charts: {printable(str(results))}/charts, {when}"


def duration_text(left: Sequence[Run], results: Path | None) -> str:
    """How long these runs take, by the last ones with the same requested settings. results: None for a new set."""
    seconds = last_seconds(results)
    known = [seconds[run.requested_hash] for run in left if run.requested_hash in seconds]
    if not known:
        return "how long they take is not known: no run with these settings was made here before"
    about = f"about {format_duration(sum(known))}, by the last runs here"
    num_unknown = len({run.requested_hash for run in left if run.requested_hash not in seconds})
    if not num_unknown:
        return about
    return f"{about}; without {plural(num_unknown, 'kind')} of run that was not made here before"


def last_seconds(results: Path | None) -> dict[str, float]:
    """wall_s of the newest run with each hash of requested settings; 0 for skipped runs.

    Of the newest sets in results/ and beside this set that were measured on this machine. What cannot be read is left
    out: this is an estimate.
    """
    parents = {ROOT / "results", *([results.parent] if results else [])}
    folders = {path.resolve().parent for parent in parents for path in parent.glob("*/runs.csv")}
    found: dict[str, float] = {}
    for folder in sorted(folders, key=_time_of_set, reverse=True)[:MAX_SETS]:
        if _measured_here(folder):
            for name, seconds in _seconds_of_set(folder):
                found.setdefault(name, seconds)
    return found


def _time_of_set(folder: Path) -> int:
    """When runs.csv was changed; 0 where it is gone."""
    try:
        return (folder / "runs.csv").stat().st_mtime_ns
    except OSError:
        return 0


def _measured_here(folder: Path) -> bool:
    """Whether a set's environment.json names this Linux kernel and as many cores; True where it names none."""
    try:
        facts = read_environment(folder / "environment.json")
        return (facts["platform"], facts["num_cores"]) == (platform.platform(), machine.num_cores())
    except (OSError, ValueError, KeyError, RecursionError):
        return True


def _seconds_of_set(folder: Path) -> Iterator[tuple[str, float]]:
    """(hash of the requested settings, seconds) of the runs of a set, the newest first."""
    import pandas  # for which a mistake in a command line need not wait

    try:
        runs, settings = (_columns(folder / f"{name}.csv") for name in ("runs", "settings"))
        hashes = dict(zip(settings.settings, settings.asked_hash, strict=True))
        wall_s = pandas.to_numeric(runs.wall_s, errors="coerce").where(runs.status != "skipped", 0.0)
        counted = runs.status.isin(["ok", "skipped"])
    except (OSError, ValueError, AttributeError):
        return
    for name, seconds in reversed([*zip(runs.settings[counted], wall_s[counted], strict=True)]):
        if name in hashes and seconds >= 0:
            yield hashes[name], float(seconds)


def _columns(path: Path) -> "pandas.DataFrame":
    import pandas

    return pandas.read_csv(path, dtype=str, keep_default_na=False, on_bad_lines="skip")
