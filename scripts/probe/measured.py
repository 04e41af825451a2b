"""Figures that belong to no result set, in small CSV files; each row says of which commit, when and where it is.

    from scripts.probe.measured import MEASURED, add_rows

What was measured last lies in results/measured/, which git ignores. What a README is to show is copied from there to
results/published/measured/; `make readme` reads it.
"""

import csv
import datetime
import io
import os
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.results import cell, write_whole
from scripts.suite import source

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "results" / "measured"


def add_rows(path: Path, rows: list[dict]) -> None:
    """Add `rows`, which have the same columns, to the CSV file `path`: whole or not at all, with commit, date, machine.

    Raises UserError where the file has other columns or cannot be written.
    """
    columns = [*rows[0], *(of_all := origin())]
    try:
        old = path.read_text() if path.exists() else ",".join(columns) + "\n"
        if old.splitlines()[:1] != [",".join(columns)]:
            raise UserError(f"{path} has other columns than {', '.join(columns)}; move it away")
        out = io.StringIO()
        writer = csv.DictWriter(out, columns, lineterminator="\n")
        writer.writerows({name: cell(value) for name, value in (row | of_all).items()} for row in rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, old + out.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def origin() -> dict[str, str]:
    """commit (with -dirty where files were changed; empty without git), date, machine."""
    import torch

    from benchmarks.common.devices import device_name

    commit = source.commit() or ""
    commit += "-dirty" if commit and source.local_changes() else ""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = f"{device_name(device)}, {len(os.sched_getaffinity(0))} cores"
    return {"commit": commit, "date": datetime.date.today().isoformat(), "machine": machine}
