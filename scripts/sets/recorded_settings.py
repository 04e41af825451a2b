"""Read the settings of runs: from the set's settings.csv, else the run's own file, else columns of runs.csv.

No row is lost: a sentence says which settings are missing, and what replaces them.
"""

import json
from pathlib import Path
from typing import Any

import pandas

from benchmarks.common.config.settings import SCHEMA, drop_not_compared
from benchmarks.common.store.frames import iterate_rows
from benchmarks.common.store.results import strange_setting
from benchmarks.common.store.safe_names import SAFE_NAME, file_inside
from benchmarks.common.system.files import read_set_file
from scripts.sets.identity import Identity
from scripts.stats.formatting import plural

# Of sets made before settings were recorded (schema 1), and of rows whose settings were lost.
REQUESTED_COLUMNS = ("arch", "image_size", "global_batch", "memory_format", "loader", "config")
RESOLVED_COLUMNS = (
    "precision", "device", "device_name", "world_size", "nodes", "threads_per_rank", "backend", "torch", "commit",
)  # fmt: skip
LIMIT_BYTES = 2**26  # of one run's settings
BY_COLUMNS = "their settings are read from the columns of runs.csv and the flags in them"


def identities_of_runs(path: Path, runs: pandas.DataFrame, table: pandas.DataFrame) -> tuple[list[Identity], list[str]]:
    """The identity of each row of runs.csv, and a sentence for each way in which settings are missing.

    path: the set. table: its settings.csv.
    """
    known, twice = identities_by_hash(table)
    found: list[Identity] = []
    troubled: dict[str, list[str]] = {}
    for row in iterate_rows(runs):
        identity, trouble = known.get(row.settings), ""
        if identity is None:
            identity, trouble = _from_its_folder(path, row, row.settings in twice)
        found.append(identity)
        if trouble:
            troubled.setdefault(trouble, []).append(row.run_id)
    remarks = [f"{path}: {trouble} ({plural(len(ids), 'run')}, such as {ids[0]})" for trouble, ids in troubled.items()]
    return found, remarks


def identities_by_hash(table: pandas.DataFrame) -> tuple[dict[str, Identity], set[str]]:
    """Identities of a settings.csv by hash, and the hashes that stand for different settings, which are not among
    them. Rows that cannot be read are left out."""
    known: dict[str, Identity] = {}
    twice: set[str] = set()
    for row in iterate_rows(table):
        identity = read_identity(row.asked, row.met)
        if identity is None:
            continue
        before = known.setdefault(row.settings, identity)
        if counted_settings(before) != counted_settings(identity):
            twice.add(row.settings)
    return {name: identity for name, identity in known.items() if name not in twice}, twice


def counted_settings(identity: Identity) -> str:
    """The compared fields of both halves as JSON: equal text for equal settings."""
    return json.dumps([drop_not_compared(half) for half in (identity.requested, identity.resolved)], sort_keys=True)


def read_identity(asked: str, met: str) -> Identity | None:
    """Two cells of JSON as an identity; None where they hold no settings."""
    try:
        halves = json.loads(asked), json.loads(met or "{}")
    except (ValueError, RecursionError):
        return None
    return Identity(*halves) if all(isinstance(half, dict) for half in halves) else None


def _from_its_folder(path: Path, row: Any, twice: bool) -> tuple[Identity, str]:
    """The identity of a row whose hash is not in settings.csv, or is there twice, and a sentence on that."""
    if twice:
        trouble = f"settings.csv has different settings under one hash, {row.settings}"
    else:
        trouble = f"settings.csv lacks the hash {row.settings}" if row.settings else ""
    identity, problem = _read_file(path, row.run_id)
    if identity:
        return identity, trouble and f"{trouble}: taken from logs/<run_id>/settings.json"
    if not trouble and not row.schema >= 2 and not problem:
        trouble = "settings were not recorded, the set is of an older schema"
    else:
        trouble = ", and ".join(filter(None, [trouble, problem or "there is no logs/<run_id>/settings.json"]))
    return identity_from_columns(row), f"{trouble}: {BY_COLUMNS}"


def _read_file(path: Path, run_id: str) -> tuple[Identity | None, str]:
    """The settings in a run's folder, or what is wrong with them; neither where there are none."""
    file = file_inside(path, f"logs/{run_id}/settings.json") if SAFE_NAME.fullmatch(run_id) else None
    if file is None:
        return None, ""
    try:
        settings = json.loads(read_set_file(file, LIMIT_BYTES))
        if not isinstance(settings["schema"], int) or settings["schema"] > SCHEMA:
            newer = f"a settings.json is of schema {settings['schema']}, this suite reads up to {SCHEMA}: update it"
            return None, newer
        identity = Identity(dict(settings["asked"]), dict(settings.get("met") or {}))
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None, "a settings.json cannot be read"
    if strange_setting(identity.requested) or strange_setting(identity.resolved):
        return None, "a settings.json has what is no value of a setting"
    return identity, ""


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
