"""The manifest of a published set, maybe somebody else's: it is read, or a line says what is wrong with it."""

import copy
import json
from pathlib import Path

from fuzz.edits import PLACES, edited
from fuzz.targets.small_set import small_manifest, write_small_set
from hypothesis import strategies as st

from benchmarks.common.system.errors import UserError
from scripts.publish.manifest import MANIFEST, checksums, find_faults, read_manifest

ODD = [
    -1,
    0,
    2**70,
    1e308,
    None,
    "",
    "x",
    "../../../etc/passwd",
    "/dev/zero",
    "a\0b",
    "\ud800",
    [],
    {},
    [[]],
    True,
    "x" * 5000,
]
TOKENS = [b"null", b"-1", b"1e999", b"NaN", b'"../x"', b"[]", b"{}", b"[" * 3000, b'"\\ud800"', b"true", b"1" * 5000]


def seeds(folder: Path) -> list[bytes]:
    write_small_set(folder)
    return [json.dumps(small_manifest() | {"files": checksums(folder)}, indent=1).encode()]


def inputs(found: list[bytes]) -> st.SearchStrategy[bytes]:
    odd = st.sampled_from([*ODD, "delete"])
    changes = st.lists(st.tuples(PLACES, odd, st.booleans()), min_size=1, max_size=3)
    return st.builds(_with_values, st.just(found[0]), changes) | edited(found, TOKENS)


def _places(value: object, path: tuple = ()) -> list[tuple]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, item in items for one in ((*path, key), *_places(item, (*path, key)))]


def _with_values(content: bytes, changes: list[tuple]) -> bytes:
    """With other values, or names, in some places."""
    reported = json.loads(content)
    for place, value, name in changes:
        value = copy.deepcopy(value)  # or one list could be put into itself
        places = _places(reported)
        if not places:
            break
        *path, last = places[place * len(places) >> 16]
        holder = reported
        for key in path:
            holder = holder[key]
        if value == "delete":
            del holder[last]
        elif name and isinstance(holder, dict) and isinstance(value, str):
            holder[value] = holder.pop(last)
        else:
            holder[last] = value
    return json.dumps(reported).encode()


def attempt(content: bytes, folder: Path) -> str:
    (folder / MANIFEST).write_bytes(content)
    try:
        reported = read_manifest(folder)
        lines = find_faults(folder, reported)
    except UserError:
        return "refused"
    return "has faults" if lines else "read"
