"""Whether the proof of a strategy (./bench verify) covers the settings of a group's runs: the column `same update?`."""

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


def proof_text(group: RunGroup, equivalence: pandas.DataFrame) -> str:
    """What equivalence.csv says of a group's own settings; the last proof that covers them counts.

    The first table shows what stands before the colon. "identical" and "nearly" name what did differ and may, "no
    proof" what differs and may not.
    """
    rows = [row for row in iterate_rows(equivalence) if row.strategy == group.strategy]
    if not len(group.ok_runs):
        return ""
    if not rows:
        return "no proof: ./bench verify"
    proofs = [(row, read_identity(row.asked, row.met)) for row in rows]
    gaps = [(row, proof, _differing(proof, group.identity)) for row, proof in proofs]
    covering = [(row, proof, names) for row, proof, names in gaps if not _forbidden(names)]
    if not covering:
        return f"no proof: of other {', '.join(_forbidden(gaps[-1][2]))}"
    row, proof, names = covering[-1]
    others = [MAY_DIFFER[name.removesuffix(RESOLVED_SUFFIX)] for name in names] + _other_source(proof, group)
    but = ", ".join(filter(None, dict.fromkeys(others)))
    compared = f"relative difference {row.max_relative_difference:.1e} (tolerance {row.tolerance:.1e})"
    if row.verdict == "ok":
        exact = row.bit_identical == "yes"
        answer = ("identical" if exact else "nearly") + (f", of other {but}" if but else "")
        return answer if exact else f"{answer}: {', '.join(filter(None, [compared, row.reason]))}"
    if row.verdict == "failed" and numpy.isfinite(row.max_relative_difference):
        return f"NO: {compared}; {row.reason}"
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
