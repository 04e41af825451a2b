"""A table of a result set, maybe somebody else's: it loads, with warnings, or one sentence says why not.

The first line of an input is the name of the file in the set.
"""

import shutil
from pathlib import Path

from fuzz.edits import edited
from fuzz.targets.small_set import TABLES, write_small_set
from hypothesis import strategies as st

from benchmarks.common.store.results import append_rows, read_table
from benchmarks.common.system.errors import UserError
from scripts.sets.result_set import load_set

FILES = (*(f"{name}.csv" for name in TABLES), "environment.json")
TOKENS = [b"ok", b"OK", b"failed", b"warm-up", b"nan", b"inf", b"-1", b"0", b"1e308", b"1e-308", b"9" * 400, b"yes"]
TOKENS += [b"\xef\xbb\xbf", b"\r", b"\r\n", b'"', b'""', b"'=1+1", b"=cmd()", b"{}", b"[]", b"null", b'"{""a"": 1}"']
TOKENS += [
    b"single",
    b"ddp",
    b"../../x",
    b"run_id",
    b"status",
    b"2026-01-01T00:00:00+00:00",
    b"\xff",
    b"," * 60,
    b"{" * 2000,
]
ADDED = {"run_id": "added-1", "strategy": "single", "status": "failed", "repeat": 9}


def seeds(folder: Path) -> list[bytes]:
    write_small_set(folder)
    (folder / "changed").mkdir()
    return [name.encode() + b"\n" + (folder / name).read_bytes() for name in FILES]


def inputs(found: list[bytes]) -> st.SearchStrategy[bytes]:
    named = [seed.partition(b"\n")[::2] for seed in found]
    # the name stays; runs.csv, which decides most, is changed as often as all others together
    return st.one_of([_of_one(*named[0])] * len(named) + [_of_one(*one) for one in named])


def _of_one(name: bytes, content: bytes) -> st.SearchStrategy[bytes]:
    return edited([content], TOKENS).map(lambda changed: name + b"\n" + changed)


def attempt(content: bytes, folder: Path) -> str:
    name, _, text = content.partition(b"\n")
    file, changed = name.decode(errors="replace"), folder / "changed"
    if file not in FILES:
        return "no table"
    for one in FILES:
        shutil.copyfile(folder / one, changed / one)
    (changed / file).write_bytes(text)
    try:
        results = load_set(changed)
        output = f"{len(results.groups)} groups"
        assert results.environment is not None and results.loads_before is not None
        assert all(group.throughput for group in results.timed_groups)
        assert results.speedups is not None and results.rankable_groups is not None
        for table in TABLES:
            results.table(table)
    except UserError:
        output = "refused"
    return f"{output}, {_append(changed)}" if file == "runs.csv" else output


def _append(folder: Path) -> str:
    """A row that was added without an error must be there."""
    try:
        before = set(read_table(folder, "runs").run_id)
        append_rows(folder, "runs", [ADDED])
    except UserError:
        return "no row added"
    after = set(read_table(folder, "runs").run_id)
    assert before | {ADDED["run_id"]} <= after, f"rows lost: {before - after or 'the new one'}"
    return "row added"
