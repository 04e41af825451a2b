"""Where a result set is from: its sweeps and scaling studies, commands that make it again, facts of the machine.

    from scripts.pages.provenance import commands, facts

Needs no torch.
"""

import csv
import io
import shlex
import sys
from pathlib import Path

from benchmarks.common.system.errors import UserError
from scripts.sets.device_use import use_of
from scripts.sets.recorded_settings import read_halves
from scripts.sets.result_set import Group, ResultSet
from scripts.sets.safe_names import COMMIT, file_inside, read_text
from scripts.stats.formatting import assigned, clean, show
from scripts.studies.scaling.analysis import Point, scaling_points
from scripts.studies.sweep.analysis import sweep_points


def read_any_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file outside the schema; lines that are not whole are left out; [] without the file."""
    if not path.exists():
        return []
    text = read_text(path).replace("\0", "")
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    return [row for row in reader if None not in row and None not in row.values()]


def sweeps(results: ResultSet) -> dict[tuple[str, str], dict[str, Group]]:
    """The points of every sweep that sweep.csv tells of, by (strategy, key)."""
    rows = read_any_csv(results.path / "sweep.csv")
    names = dict.fromkeys((row.get("strategy", ""), row.get("key", "")) for row in rows)
    found = {name: _or_none(sweep_points, results, *name) for name in names}
    return {name: points for name, points in found.items() if points and len(points) > 1}


def scalings(results: ResultSet) -> dict[str, dict[str, list[Point]]]:
    """Strong and weak scaling of every strategy that ran on several numbers of ranks."""
    strategies = dict.fromkeys(group.strategy for group in results.groups)
    found = {strategy: _or_none(scaling_points, results, strategy) for strategy in strategies}
    return {strategy: modes for strategy, modes in found.items() if modes}


def _or_none(points_of, *arguments):
    """The points, or None and a warning where the set holds several settings of one point."""
    try:
        return points_of(*arguments)
    except UserError as error:
        print(f"warning: a chart is left out: {error}", file=sys.stderr)
        return None


def commands(results: ResultSet) -> list[str]:
    """What makes a set like this one again, on a machine like this one."""
    variables = results.environment.get("variables", {})
    names = (
        "CONFIG",
        "DATA",
        "ARGS",
        "NPROC",
        "THREADS_PER_RANK",
        "TIMEOUT",
        "NODES",
        "TASKS_PER_NODE",
        "GPUS_PER_NODE",
        "CPUS_PER_TASK",
        "PARTITION",
        "TIME",
        "NNODES",
        "RDZV_ENDPOINT",
        "HOSTS",
        "CONTAINER",
    )
    given = {name: variables[name] for name in names if variables.get(name)}
    repeats = results.ok.repeat.max()
    given |= {"REPEATS": f"{repeats:.0f}"} if repeats > 0 else {}
    lines = [_checkout(commit) for commit in sorted(set(results.ok.commit) - {""})]
    strategies = dict.fromkeys(group.strategy for group in results.groups if group.samples)
    swept, scaled = sweeps(results), scalings(results) if (results.path / "scaling.csv").exists() else {}
    for (strategy, key), points in swept.items():
        lines.append(_command("sweep", given, STRATEGY=strategy, KEY=key, VALUES=" ".join(points)))
    for strategy, modes in scaled.items():
        ranks = sorted({point.num_ranks for points in modes.values() for point in points})
        own = {name: value for name, value in given.items() if name != "NPROC"}
        lines.append(_command("scaling", own, STRATEGY=strategy, RANKS=" ".join(map(str, ranks))))
    rest = [name for name in strategies if name not in {*scaled, *(strategy for strategy, _ in swept)}]
    if rest:
        target = "slurm-all" if variables.get("ALLOCATION") else "bench-all"  # launchers/slurm_all.sh
        lines.append(_command(target, given, STRATEGIES=" ".join(rest)))
    return [*lines, "make report"]


def _checkout(commit: str) -> str:
    """The line that people paste. Only a hash is let through: git would also take a flag, a path or a branch."""
    return f"git checkout {commit}" if COMMIT.fullmatch(commit) else "# its commit is left out: it is no hash"


def _command(target: str, given: dict[str, object], **variables: str) -> str:
    words = {name: assigned(name, value) for name, value in (variables | given).items()}
    left_out = [name for name, word in words.items() if not word]
    line = " ".join([f"make {target}", *filter(None, words.values())])
    return line + (f"  # without {', '.join(left_out)}, which make cannot carry" if left_out else "")


def launch_lines(results: ResultSet) -> list[tuple[str, str]]:
    """(strategy, the command that started its first ok run), from the run's log where the set has it.

    Each word is quoted for bash: the log may come from somebody else.
    """
    found = []
    for group in results.groups:
        for log_path in group.ok.log_path.head(1):
            if path := file_inside(results.path, log_path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    words = file.readline(4096).removeprefix("$ ").split()
                found.append((group.label, clean(shlex.join(words))))
    return found


def facts(results: ResultSet) -> list[tuple[str, str]]:
    """The environment as pairs of text for a table; the long text of collect_env is not among them."""

    def values(column: str) -> str:
        texts = dict.fromkeys(map(show, results.ok[column]))
        return ", ".join(text for text in texts if text != "unknown")

    environment = results.environment
    packages = environment.get("packages", {})
    names = (
        "device_name",
        "world_size",
        "nodes",
        "backend",
        "threads_per_rank",
        "governor",
        "precision",
        "memory_format",
        "torch",
        "commit",
        "dirty",
        "config",
        "options",
    )
    pairs = [(name, values(name)) for name in names]
    settings, _ = read_halves(results.table("settings"))
    changes = {show(identity.met.get("local_changes")) for identity in settings.values()} - {"unknown"}
    pairs += [("local changes", ", ".join(sorted(changes)))]
    pairs += [(name, show(environment.get(name, ""))) for name in ("platform", "python", "num_cores", "memory_gb")]
    pairs += [("packages", ", ".join(f"{name} {version}" for name, version in packages.items() if version))]
    uses = [use.peak_from for group in results.groups if (use := use_of(group, environment))]
    pairs += [("peak for MFU", "; ".join(dict.fromkeys(uses)))]
    return [(name, text) for name, text in pairs if text not in ("", "unknown")]
