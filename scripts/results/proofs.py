"""Whether the proof of a strategy (./bench verify) covers the settings of a group's runs: the column `same update?`."""

from typing import Any

import numpy
import pandas

from scripts.results.identity import (
    AA_LABEL,
    DERIVED_FIELDS,
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
        return ""
    if not rows:
        return f"{NO_PROOF} yet: ./bench verify"
    proofs = [(row, read_identity(row.asked, row.met)) for row in rows]
    gaps = [(row, proof, _differing(proof, group.identity)) for row, proof in proofs]
    covering = [(row, proof, names) for row, proof, names in gaps if not _forbidden(names)]
    if not covering:
        return f"{NO_PROOF} of these settings: {', '.join(_forbidden(gaps[-1][2]))}"
    row, proof, names = covering[-1]
    others = [MAY_DIFFER[name.removesuffix(RESOLVED_SUFFIX)] for name in names] + _other_source(proof, group)
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


def _other_source(proof: Identity, group: RunGroup) -> list[str]:
    """'commit', 'local changes': in what the code of the proof differs from that of the runs."""
    if not proof.has_resolved_settings:
        return []
    pairs = {name: (proof.resolved.get(name), group.identity.resolved.get(name)) for name in SOURCE_FIELDS}
    return [name.replace("_", " ") for name, (one, other) in pairs.items() if (one or "") != (other or "")]
