"""What a paper says of how a set was measured: a paragraph of methods, and the checklist that reviewers ask for.

A sentence about what a set did not record is left out, never guessed. Needs no torch.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy
import pandas

from benchmarks.common.store.results import WARM_UP, read_table
from scripts.pages.report_tables import describe_shared_drift, table_rows
from scripts.sets.accuracy import recorded_seeds
from scripts.sets.identity import compute_precision
from scripts.sets.proofs import BIT_IDENTICAL, EXCEPTIONS, THE_SAME, other_exceptions
from scripts.sets.result_set import ResultSet
from scripts.sets.run_group import RunGroup
from scripts.sets.set_text import describe_images, describe_sets
from scripts.sets.set_warnings import several_sessions, uncommitted_changes
from scripts.stats.families import count_compared, method_text
from scripts.stats.formatting import format_number, format_setting, plural, plural_of_several
from scripts.strategies.strategy_list import BASELINE


def methods(results: ResultSet) -> list[str]:
    """How it was measured, on what, with which versions: sentences for one paragraph."""
    timed = results.timed_groups
    sentences = [f"We trained {describe_sets([results])}. Data: {describe_images(timed)}."]
    configurations = results.timed_groups_without_aa
    names = "; ".join(group.label for group in configurations)  # labels have commas
    runs = plural_of_several([len(group.windows_of_runs) for group in timed], "run")
    num = plural(len(configurations), "configuration")
    sentences.append(f"{num} ({names}) had {runs} each, every one started anew.")
    copies = [group.label for group in timed if group.is_aa_copy]
    sentences += [f"{label} is a second name of one of them, for A/A." for label in copies]
    if _interleaved(results, timed):
        sentences.append(
            "Runs were interleaved: each round has one of every configuration, in an order of its own, so that a "
            "drift over rounds falls on all."
        )
    if (read_table(results.path, "runs").status == WARM_UP).any():
        sentences.append("A run before the first round warmed the machine and is not counted.")
    sentences += _of_windows(results, timed)
    sentences += _of_arithmetic(timed)
    sentences += [_of_intervals(results, timed), describe_shared_drift(results), *_of_versions(results)]
    return [sentence for sentence in sentences if sentence]


def _interleaved(results: ResultSet, timed: list[RunGroup]) -> bool:
    """Whether every round has one run of every group, in places of their own, in that order and the same sessions."""
    ok = pandas.concat([group.ok_runs for group in timed]) if timed else pandas.DataFrame()
    if len(timed) < 2 or ok.position.isna().any() or ok.duplicated(["repeat", "position"]).any():
        return False
    rounds = {tuple(sorted(group.ok_runs.repeat)) for group in timed}
    in_turn = ok.sort_values(["repeat", "position"], kind="stable").started_at.is_monotonic_increasing
    return len(rounds) == 1 and in_turn and not [*several_sessions(results)]


def _requested(timed: Iterable[RunGroup], name: str) -> str:
    values = {
        format_setting(group.identity.requested.get(name)) if group.identity.recorded else "unknown" for group in timed
    }
    return values.pop() if len(values) == 1 and "unknown" not in values else ""


def _of_windows(results: ResultSet, timed: list[RunGroup]) -> list[str]:
    warm_up, window = _requested(timed, "warmup_steps"), _requested(timed, "window_steps")
    taken = _windows(results, timed)
    if not (warm_up and window and taken):
        return []
    loaders = {format_setting(loader) for group in timed for loader in group.ok_runs.loader}
    loading = ", data loading included" if loaders.isdisjoint({"synthetic", "unknown"}) else ""
    return [
        f"After {warm_up} warm-up steps a run times {taken} of {window} whole optimizer steps{loading}, with the "
        "device synchronised before and after each and nothing else inside."
    ]


def _windows(results: ResultSet, timed: list[RunGroup]) -> str:
    ids = set(results.table("windows").run_id)
    if not all(group.ok_runs.run_id.isin(ids).all() for group in timed):
        return ""
    return plural_of_several([len(run) for group in timed for run in group.windows_of_runs], "window")


def _of_arithmetic(timed: list[RunGroup]) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for group in timed:
        kinds.setdefault(compute_precision(group.identity) or "unknown", []).append(group.label)
    kinds.pop("unknown", None)
    if len(kinds) == 1:
        return [f"All compute in {next(iter(kinds))}."]
    most = max(kinds, key=lambda kind: len(kinds[kind])) if kinds else ""
    others = ", and ".join(f"{'; '.join(names)} in {kind}" for kind, names in kinds.items() if kind != most)
    return [f"They compute in {most}, but for {others}."] if kinds else []


def _of_intervals(results: ResultSet, timed: list[RunGroup]) -> str:
    text = "Throughput is the geometric mean over runs of total images over total seconds"
    if not any(len(group.windows_of_runs) > 1 for group in timed):
        return f"{text}; one run has no interval."
    text += ", with Student's 95 % interval on the logarithms of the runs, which are assumed independent"
    if once := [group.label for group in timed if len(group.windows_of_runs) == 1]:
        text += f", but for {'; '.join(once)}, of which one run has none"
    if not any(over.low is not None for over in results.speedups.values()):
        return text + "."
    return (
        f"{text}; ratios to {BASELINE} in the same precision have simultaneous 95 % intervals "
        f"({method_text(count_compared(results.speedups.values()))})."
    )


def _of_versions(results: ResultSet) -> list[str]:
    environment_, ok = results.environment, results.ok_runs

    def values(column: str) -> str:
        found = [format_setting(value) for value in dict.fromkeys(ok[column])]
        return ", ".join(text for text in found if text not in ("unknown", "none"))

    machine = [f"{values('device_name') or 'unknown hardware'}"]
    if "num_cores" in environment_:
        machine.append(f"{format_setting(environment_['num_cores'])} cores")
    if "memory_gb" in environment_:
        machine.append(f"{environment_['memory_gb']:.0f} GB of memory")
    software = [f"{name} {version}" for name, version in environment_.get("packages", {}).items() if version]
    software = software or [f"torch {values('torch')}"]
    if "python" in environment_:
        software.append(f"Python {environment_['python']}")
    if "platform" in environment_:
        software.append(environment_["platform"])
    backends = f"; collectives by {values('backend')}" if values("backend") else ""
    commits = values("commit") or "unknown"
    return [
        f"The machine: {', '.join(machine)}{backends}.",
        f"Software: {', '.join(software)}; the suite's commit {commits}.",
    ]


def checklist(results: ResultSet) -> list[tuple[str, str]]:
    """What reviewers ask for: a question and its answer, each from the set's files."""
    timed = results.timed_groups
    found = [("Seeds", _seeds(timed)), ("Runs", _runs(results)), ("Intervals", _intervals(results, timed))]
    found += [("Compute", compute(results.path)), ("Energy", energy(results))]
    fingerprints = {_requested([group], "fingerprint") for group in timed} - {""}
    data = f"{describe_images(timed)}; fingerprint {', '.join(sorted(fingerprints)) or 'none'}"
    found.append(("Data", data))
    found.append(("Code", _code(results)))
    found.append(("Equivalence", _proofs(results)))
    return found


def _proofs(results: ResultSet) -> str:
    copies = {group.label for group in results.groups if group.is_aa_copy}
    rows = {
        row["strategy"]: row["same update?"].partition(EXCEPTIONS)
        for row in table_rows(results)
        if row["images/s"] and row["strategy"] not in copies
    }
    whole: list[str] = []
    partly: list[str] = []
    within: list[str] = []
    for label, (answer, _, exceptions) in rows.items():
        others = ", ".join(other_exceptions(exceptions))
        named = f"{label}, but for {others}" if others else label
        if answer == BIT_IDENTICAL:
            (partly if others else whole).append(named)
        elif answer.startswith(THE_SAME):
            within.append(f"{named}: {answer.removeprefix(THE_SAME)}")
    text = f"the weights of {len(whole)} of {len(rows)} configurations are bit-identical to those of one process that "
    text += "runs the same parts in turn, at their settings but for the number of steps"
    text += f": {'; '.join(whole)}" if whole else ""
    text += f"; bit-identical with other settings: {'; '.join(partly)}" if partly else ""
    return text + (f"; not bit-identical: {'; '.join(within)}" if within else "")


def _seeds(timed: list[RunGroup]) -> str:
    if not all(group.identity.recorded for group in timed):
        return "not recorded"
    values = sorted({seed for group in timed for seed in recorded_seeds(group)})
    if len(values) == 1:
        return f"{values[0]}, one for all runs: rounds show the spread of timing, not another seed's accuracy"
    return f"{', '.join(values)}, taken in turn by the rounds"


def _runs(results: ResultSet) -> str:
    counts: dict[str, int] = {}
    for group in results.groups:
        for status, number_of in group.status_counts.items():
            counts[status or "no status"] = counts.get(status or "no status", 0) + number_of
    parts = ", ".join(f"{number_of} {status}" for status, number_of in counts.items())
    return f"all attempts are in runs.csv; in the rounds: {parts}"


def _intervals(results: ResultSet, timed: list[RunGroup]) -> str:
    many, once = (
        [group for group in timed if (len(group.windows_of_runs) > 1) is several] for several in (True, False)
    )
    windows = _windows(results, timed) or "unrecorded windows"
    parts = []
    if many:
        runs = plural_of_several([len(group.windows_of_runs) for group in many], "run")
        parts.append(f"95 %, over {runs} of {windows} each")
    if once:
        parts.append(f"none of {'; '.join(group.label for group in once)}: one run")
    return "; ".join(parts)


def compute(path: Path) -> str:
    """The sum of the times and the device-hours of every attempt in the set and the sets inside it."""
    inside = sorted(each.parent for each in path.glob("*/runs.csv"))
    rows = pandas.concat([read_table(each, "runs") for each in (path, *inside)])
    rows = rows[rows.wall_s > 0]
    hours, known = rows.wall_s.sum() / 3600, rows[rows.world_size > 0]
    text = f"{plural(len(rows), 'attempt')}, failures and warm-ups included, add up to {format_number(hours)} h"
    text += f" ({', '.join(['this set', *(each.name for each in inside)])})" if inside else ""
    for device, name in (("cuda", "GPU-hours"), ("cpu", "core-hours")):
        mine = known[known.device == device]
        used = mine.world_size * (mine.threads_per_rank if device == "cpu" else 1)
        if (total := float((mine.wall_s * used).sum()) / 3600) > 0:
            text += f"; {format_number(total)} {name} of those whose devices are known"
    return text


def energy(results: ResultSet) -> str:
    """What the devices drew over the whole runs, from the samples of their power; or that there are none."""
    samples = results.table("telemetry")
    samples = samples[samples.power_w.notna() & samples.t_s.notna()]
    if samples.empty:
        return "not measured: no power was recorded"
    joules = sum(
        float(numpy.trapezoid(each.power_w, each.t_s))
        for _, each in samples.sort_values("t_s").groupby(["run_id", "device"])
    )
    devices = ", ".join(sorted(set(samples.device)))
    runs = f"{plural(samples.run_id.nunique(), 'run')} of this set alone"
    return f"{format_number(joules / 3.6e6)} kWh, of {devices} over {runs}; J/image is of the timed windows only"


def _code(results: ResultSet) -> str:
    commits = ", ".join(sorted(set(results.ok_runs.commit) - {""})) or "unknown"
    if any(uncommitted_changes(results)):
        return f"commit {commits}, with local changes that no commit has"
    if not (results.ok_runs.dirty == "no").all():
        return f"commit {commits}; whether there were local changes is not known"
    return f"commit {commits}, without local changes"
