"""Whether the proof of a strategy (./bench verify) covers the runs of a group: the column `same update?`.

A proof covers the settings that it ran with, and no other.
"""

import json
from typing import Any

import numpy
import pandas

from scripts.results.identity import (
    AA_LABEL,
    DERIVED_FIELDS,
    LOST,
    RESOLVED_SUFFIX,
    Identity,
    differing_fields,
    read_identity,
)
from scripts.results.run_group import RunGroup, iterate_rows
from scripts.results.settings import SOURCE_FIELDS

# They change no update.
NOT_OF_UPDATE = {*SOURCE_FIELDS, AA_LABEL, "host", "kernel", "num_cores", "seed", "seeds"}
# What may differ between a proof and the runs that it speaks for, and what the cell calls it; every proof is shorter.
MAY_DIFFER = {
    **dict.fromkeys(("epochs", "steps", "warmup_steps", "windows", "window_steps", "account_steps"), ""),
    "threads_per_rank": "threads",
    **dict.fromkeys(("cudnn_benchmark", "cudnn_deterministic"), "cuDNN's algorithms"),
}
BIT_IDENTICAL = "yes: bit-identical"
OTHER = "; of other "  # what may differ, and did, follows
NO_PROOF = "no proof"


def proof_text(group: RunGroup, equivalence: pandas.DataFrame) -> str:
    """What equivalence.csv says of a group's own settings; the last proof that covers them counts.

    "yes: ..." names what did differ and may; "no proof of these settings: ..." names what differs and may not.
    """
    rows = [row for row in iterate_rows(equivalence) if row.strategy == group.strategy]
    if not len(group.ok_runs):
        return proof_verdict(rows[-1]) if rows and rows[-1].verdict == "skipped" else ""
    if not rows:
        return f"{NO_PROOF} yet: ./bench verify"
    known = [(row, identity) for row in rows if (identity := read_identity(row.asked, row.met))]
    if not known or LOST in group.identity.requested:
        return f"{NO_PROOF}: the settings are unknown"
    gaps = [(row, _differing(identity, group.identity)) for row, identity in known]
    covering = [(row, names) for row, names in gaps if not _forbidden(names)]
    if not covering:
        return f"{NO_PROOF} of these settings: {', '.join(_forbidden(gaps[-1][1]))}"
    row, names = covering[-1]
    others = [MAY_DIFFER[name.removesuffix(RESOLVED_SUFFIX)] for name in names] + _other_source(row, group)
    text, but = proof_verdict(row), ", ".join(filter(None, dict.fromkeys(others)))
    return f"{text}{OTHER}{but}" if but and text.startswith("yes") else text


def short_proof(text: str) -> str:
    """proof_text in a few words, for the first table: identical, nearly, no proof, NO, ..."""
    answer, other, others = text.partition(OTHER)
    if not answer.startswith("yes"):
        return NO_PROOF if answer.startswith(NO_PROOF) else answer.partition(":")[0]
    words = "identical" if answer == BIT_IDENTICAL else "nearly"
    return f"{words}{other.replace(';', ',')}{others}"


def proof_verdict(row: Any) -> str:
    """A row of equivalence.csv in words."""
    if row.verdict == "ok" and row.bit_identical == "yes":
        return BIT_IDENTICAL
    compared = f"{row.max_relative_difference:.1e} (tolerance {row.tolerance:.1e})"
    if row.verdict == "ok":
        return ", ".join(filter(None, [f"yes: within {compared}", row.reason]))
    if row.verdict == "failed" and numpy.isfinite(row.max_relative_difference):
        return f"NO: relative difference {compared}; {row.reason}"
    return ": ".join(filter(None, [row.verdict or "unknown", row.reason]))


def _differing(proof: Identity, group: Identity) -> list[str]:
    found = differing_fields([proof, group if proof.has_resolved_settings else Identity(group.requested, {})])
    return [name for name in found if name not in NOT_OF_UPDATE]


def _forbidden(names: list[str]) -> list[str]:
    """Those that may not differ, without what follows from others."""
    names = [name for name in names if name.removesuffix(RESOLVED_SUFFIX) not in MAY_DIFFER]
    return [name for name in names if name not in DERIVED_FIELDS and not name.endswith(RESOLVED_SUFFIX)] or names


def _other_source(row: Any, group: RunGroup) -> list[str]:
    """'commit' where a run of the group is of another commit than the proof, 'local changes' where what was not
    committed differs. What was not recorded counts as none."""
    resolved = json.loads(row.met) if row.met else {}
    commit, changes = (resolved.get(name) for name in SOURCE_FIELDS)
    found = ["commit"] if commit and set(group.ok_runs.commit) - {commit, ""} else []
    differs = resolved and (changes or "") != (group.identity.resolved.get("local_changes") or "")
    return [*found, "local changes"] if differs else found
