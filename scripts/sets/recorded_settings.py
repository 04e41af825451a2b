"""Read the settings of runs: from the set's settings.csv, else from columns of runs.csv, which is said."""

import json
from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.store.frames import iterate_rows
from scripts.sets.identity import Identity
from scripts.stats.formatting import plural

# Of sets made before settings were recorded (schema 1), and of rows whose settings were lost.
REQUESTED_COLUMNS = ("arch", "image_size", "global_batch", "memory_format", "loader", "config")
RESOLVED_COLUMNS = (
    "precision", "device", "device_name", "world_size", "nodes", "threads_per_rank", "backend", "torch", "commit",
)  # fmt: skip
BY_COLUMNS = "their settings are read from the columns of runs.csv and the flags in them"


def identities_of_runs(path: Path, runs: pandas.DataFrame, table: pandas.DataFrame) -> tuple[list[Identity], list[str]]:
    """The identity of each row of runs.csv, and a sentence for each way in which settings are missing.

    path: the set. table: its settings.csv.
    """
    known = identities_by_hash(table)
    found: list[Identity] = []
    troubled: dict[str, list[str]] = {}
    for row in iterate_rows(runs):
        found.append(known[row.settings] if row.settings in known else identity_from_columns(row))
        if row.settings not in known:
            lacks = f"settings.csv lacks the hash {row.settings}" if row.settings else "settings were not recorded"
            troubled.setdefault(f"{lacks}: {BY_COLUMNS}", []).append(row.run_id)
    remarks = [f"{path}: {trouble} ({plural(len(ids), 'run')}, such as {ids[0]})" for trouble, ids in troubled.items()]
    return found, remarks


def identities_by_hash(table: pandas.DataFrame) -> dict[str, Identity]:
    """Identities of a settings.csv by hash. Rows that cannot be read are left out."""
    found = {row.settings: read_identity(row.asked, row.met) for row in iterate_rows(table)}
    return {name: identity for name, identity in found.items() if identity}


def read_identity(asked: str, met: str) -> Identity | None:
    """Two cells of JSON as an identity; None where they hold no settings."""
    try:
        halves = json.loads(asked), json.loads(met or "{}")
    except ValueError:
        return None
    return Identity(*halves) if all(isinstance(half, dict) for half in halves) else None


def identity_from_columns(row: Any) -> Identity:
    """Settings from columns of runs.csv and the flags in `options`. A row that is not ok has no resolved settings."""
    flags = parse_flags(row.options)
    requested = {name: _value(getattr(row, name)) for name in REQUESTED_COLUMNS}
    resolved = {name: _value(getattr(row, name)) for name in RESOLVED_COLUMNS} if row.status == "ok" else {}
    requested = {name: value for name, value in requested.items() if value is not None}
    resolved = {name: value for name, value in resolved.items() if value is not None}
    more = {name: text for name, text in flags.items() if name not in requested | resolved}
    return Identity(requested | more, resolved, recorded=False)


def _value(cell: Any) -> str | int | float | None:
    if isinstance(cell, str):
        return cell or None
    number = float(cell)
    return None if number != number else int(number) if number.is_integer() and abs(number) < 1e15 else number


def parse_flags(options: str) -> dict[str, str]:
    """Field and value of each flag of a runs.csv row, the last one of a field as on a command line; yes and no
    for a boolean's --x and --no-x."""
    words, found = options.split(), {}
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        name, given, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not given and following.startswith("--"):
            name, value = (name[3:], "no") if name.startswith("no_") else (name, "yes")
        elif not given:
            value = following
        if word.startswith("--"):
            found[name] = value
    return found
