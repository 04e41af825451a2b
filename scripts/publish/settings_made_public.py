"""The settings of a copied set without what names a machine or its folders: "host 1" for a host's hash, values of few
variables, and the last names of paths.

    publish_settings(folder)

The hash of settings covers their values, so that it is taken again after a value has changed, in settings.csv and in
runs.csv. A table in which nothing changes stays as it is, to the last byte. Needs no torch.
"""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.config.settings import settings_hash
from benchmarks.common.store.results import json_cell, write_text_atomically
from benchmarks.common.store.safe_cells import format_cell, unguard_cell
from benchmarks.common.system.host import NONE, PREFIXES, WHOLE_NAMES, recorded_value
from scripts.publish.public_paths import PATH_FIELDS, public_arguments, public_path
from scripts.sets.recorded_settings import read_identity

VARIABLE = re.compile(rf"(?:^|(?<= ))({'|'.join([*(f'{each}[A-Za-z0-9_]*' for each in PREFIXES), *WHOLE_NAMES])})=")


def publish_settings(folder: Path) -> None:
    """Change the tables of the set in `folder`, and of the sets inside it. A host has one number in all of them."""
    hosts: dict[str, str] = {}
    inside = {each.parent for name in ("settings", "runs", "equivalence") for each in folder.rglob(f"{name}.csv")}
    for path in sorted({folder, *inside}):
        before = _rows(path / "settings.csv")
        after = [_public_row(row, hosts) for row in before]
        _write(path / "settings.csv", before, after)
        hashes = {old["settings"]: new["settings"] for old, new in zip(before, after, strict=True)}
        for name in ("equivalence.csv", "runs.csv"):
            rows = _rows(path / name)
            _write(path / name, rows, [_with_hash(_public_row(row, hosts), hashes) for row in rows])


def _public_row(row: dict[str, str], hosts: dict[str, str]) -> dict[str, str]:
    """A row without folders of the user, whose cell `met`, where it has one, names no machine. hosts: what stands for
    each; new ones are added."""
    row = row | {name: _changed(row[name], change) for name, change in CELLS_WITH_PATHS.items() if row.get(name)}
    identity = read_identity(row.get("asked") or "", row.get("met") or "")
    if identity is None:
        return row
    public = dict(identity.resolved)
    if host := public.get("host"):
        public["host"] = hosts.setdefault(str(host), f"host {len(hosts) + 1}")
    if variables := public.get("variables"):
        public["variables"] = public_variables(str(variables))
    if public == identity.resolved:
        return row
    own = {"settings": settings_hash(identity.requested, public)} if "settings" in row else {}
    return row | {"met": json_cell(public)} | own


def _changed(cell: str, change: Callable[[str], str]) -> str:
    """The cell of what `change` makes of its text; the same cell where it changes nothing."""
    text = unguard_cell(cell)
    made = change(text)
    return cell if made == text else format_cell(made)


def public_requested(text: str) -> str:
    """The requested half of settings as JSON, without folders of the user in the fields that name a file or a folder.
    These fields are not compared, so that the hash of the settings stays."""
    try:
        half = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(half, dict):
        return text
    places = {name: half[name] for name in PATH_FIELDS if isinstance(half.get(name), str)}
    public = {name: public_path(place) for name, place in places.items()}
    return text if public == places else json_cell(half | public)


CELLS_WITH_PATHS = {"asked": public_requested, "config": public_path, "options": public_arguments}
"""The columns in which a user's paths stand, and what makes each public."""


def public_variables(text: str) -> str:
    """What kernel_variables has written, without values that it would not write today. Values may have spaces."""
    if text == NONE:
        return text
    first, *rest = VARIABLE.split(text)  # "", name, value, name, value, ...
    if first:
        return recorded_value("", text)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return " ".join(f"{name}={recorded_value(name, value.strip())}" for name, value in pairs)


def _with_hash(row: dict[str, str], hashes: dict[str, str]) -> dict[str, str]:
    return row | {"settings": hashes.get(row["settings"], row["settings"])} if "settings" in row else row


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table as text; [] without one."""
    return [*csv.DictReader(io.StringIO(path.read_text(), newline=""))] if path.exists() else []


def _write(path: Path, before: list[dict[str, str]], after: list[dict[str, str]]) -> None:
    """Write a table whose rows have changed."""
    if before == after:
        return
    out = io.StringIO()
    writer = csv.DictWriter(out, [*after[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(after)
    write_text_atomically(path, out.getvalue())
