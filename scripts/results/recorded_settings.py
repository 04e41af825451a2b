"""Read the settings of runs from the set's settings.csv."""

import json
from pathlib import Path

import pandas

from scripts.results.formatting import plural
from scripts.results.frames import iterate_rows
from scripts.results.identity import LOST, Identity


def identities_of_runs(path: Path, runs: pandas.DataFrame, table: pandas.DataFrame) -> tuple[list[Identity], list[str]]:
    """The identity of each row of runs.csv, and a sentence for each hash that settings.csv lacks.

    path: the set. table: its settings.csv.
    """
    known = identities_by_hash(table)
    found: list[Identity] = []
    lost: dict[str, list[str]] = {}
    for row in iterate_rows(runs):
        found.append(known.get(row.settings) or Identity({"strategy": row.strategy, LOST: row.settings}, {}))
        if row.settings not in known:
            lost.setdefault(row.settings, []).append(row.run_id)
    remarks = [
        f"{path}: settings.csv lacks the hash {name!r} ({plural(len(ids), 'run')}, such as {ids[0]})"
        for name, ids in lost.items()
    ]
    return found, remarks


def identities_by_hash(table: pandas.DataFrame) -> dict[str, Identity]:
    """Identities of a settings.csv by hash. Rows that cannot be read are left out."""
    found = {row.settings: read_identity(row.asked, row.met) for row in iterate_rows(table)}
    return {name: identity for name, identity in found.items() if identity}


def read_identity(asked: str, met: str) -> Identity | None:
    """Two cells of JSON as an identity; None where they hold no settings."""
    try:
        return Identity(json.loads(asked), json.loads(met or "{}"))
    except ValueError:
        return None
