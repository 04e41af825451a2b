"""Whether the proof of a strategy covers the runs of a group: the report's column `same update?`.

A proof covers the settings that it ran with, and no other.
"""

import dataclasses
import json
from typing import Any

import numpy
import pandas

from scripts.results.frames import iterate_rows
from scripts.results.identity import AA_LABEL, DERIVED_FIELDS, LOST, RESOLVED_SUFFIX, Identity, differing_fields
from scripts.results.recorded_settings import read_identity
from scripts.results.run_group import RunGroup
from scripts.results.settings import SOURCE_FIELDS

LENGTH, THREADS, LOCAL_CHANGES = "length", "threads", "local changes"
THE_SAME = "yes: "
BIT_IDENTICAL = f"{THE_SAME}bit-identical"
# They change no update.
NOT_OF_UPDATE = {*SOURCE_FIELDS, AA_LABEL, "host", "kernel", "num_cores"}
# What may differ between a proof and the runs that it speaks for, and what the cell calls it.
MAY_DIFFER_FROM_PROOF = {
    **dict.fromkeys(("epochs", "steps", "warmup_steps", "windows", "window_steps", "account_steps"), LENGTH),
    "threads_per_rank": THREADS,
    **dict.fromkeys(("cudnn_benchmark", "cudnn_deterministic"), "cuDNN's algorithms"),
}
EXCEPTIONS = "; the proof differs in "  # what may differ, and did, follows
NO_PROOF = "no proof"
NOT_YET = f"{NO_PROOF} yet: ./bench verify"
UNKNOWN = f"{NO_PROOF}: the settings are unknown"
# Of one step, in proofs of older commits: by a few values on the other side of a ReLU's 0 or of a pool's largest.
FLIP_TOLERANCE = 0.05
FLIPS = ", as by a value that flips"  # in equivalence.csv
SHOWN_FLIPS = ", which a ReLU input that changes its sign can cause (whether one did was not measured)"


def proof_text(group: RunGroup, equivalence: pandas.DataFrame) -> str:
    """What equivalence.csv says of a group's own settings; the last proof that covers them counts, of each seed.

    "yes: ..." names what did differ and may; "no proof of these settings: ..." names what differs and may not.
    """
    rows = [row for row in iterate_rows(equivalence) if row.strategy == group.strategy]
    if not len(group.ok_runs):
        return proof_verdict(rows[-1]) if rows and rows[-1].verdict == "skipped" else ""
    if not rows:
        return NOT_YET
    known = [(row, identity) for row in rows if (identity := read_identity(row.asked, row.met))]
    if not known or LOST in group.identity.requested:
        return UNKNOWN
    texts = [_text_of_seed(group, identity, known) for identity in _of_each_seed(group.identity)]
    return min(texts, key=lambda text: (text.startswith(THE_SAME), text.startswith(BIT_IDENTICAL)))  # the worst


def short_proof(text: str) -> str:
    """proof_text in a few words, for the first table, whose columns are narrow: identical, nearly, no proof, NO, ..."""
    answer, _, exceptions = text.partition(EXCEPTIONS)
    if not answer.startswith(THE_SAME):
        return NO_PROOF if answer.startswith(NO_PROOF) else answer.partition(":")[0]
    words = "identical" if answer == BIT_IDENTICAL else "nearly"
    words += ", not in all steps" if SHOWN_FLIPS in answer else ""
    others = [each for each in exceptions.split(", ") if each not in ("", LENGTH)]  # every proof is shorter
    return ", ".join([words, *(f"other {each}" for each in others)])


def _text_of_seed(group: RunGroup, runs: Identity, known: list) -> str:
    gaps = [(row, _differing(identity, runs)) for row, identity in known]
    covering = [(row, names) for row, names in gaps if not _others(names)]
    if not covering:
        return f"{NO_PROOF} of these settings: {', '.join(_others(gaps[-1][1]))}"
    row, names = covering[-1]
    exceptions = [MAY_DIFFER_FROM_PROOF[name.removesuffix(RESOLVED_SUFFIX)] for name in names] + _other_source(
        row, group
    )
    but = ", ".join(dict.fromkeys(exceptions))
    text = proof_verdict(row)
    return f"{text}{EXCEPTIONS}{but}" if but and text.startswith("yes") else text


def _of_each_seed(identity: Identity) -> list[Identity]:
    if "seeds" not in identity.requested:
        return [identity]
    requested = {name: value for name, value in identity.requested.items() if name != "seeds"}
    return [dataclasses.replace(identity, requested=requested | {"seed": seed}) for seed in identity.requested["seeds"]]


def _other_source(row: Any, group: RunGroup) -> list[str]:
    """'commit' where a run of the group is of another commit than the proof, LOCAL_CHANGES where what was not committed
    differs. What was not recorded counts as none."""
    resolved = json.loads(row.met) if row.met else {}
    commit, changes = (resolved.get(name) for name in SOURCE_FIELDS)
    found = ["commit"] if commit and set(group.ok_runs.commit) - {commit, ""} else []
    differs = resolved and (changes or "") != (group.identity.resolved.get("local_changes") or "")
    return [*found, LOCAL_CHANGES] if differs else found


def _differing(proof: Identity, group: Identity) -> list[str]:
    found = differing_fields([proof, group if proof.has_resolved_settings else Identity(group.requested, {})])
    return [name for name in found if name not in NOT_OF_UPDATE]


def _others(names: list[str]) -> list[str]:
    names = [name for name in names if name.removesuffix(RESOLVED_SUFFIX) not in MAY_DIFFER_FROM_PROOF]
    return [name for name in names if name not in DERIVED_FIELDS and not name.endswith(RESOLVED_SUFFIX)] or names


def proof_verdict(row: Any) -> str:
    """A row of equivalence.csv in words."""
    compared = f"relative difference {row.max_relative_difference:.1e}, tolerance {row.tolerance:.1e}"
    if row.verdict == "ok" and row.bit_identical == "yes":
        return BIT_IDENTICAL
    if row.verdict == "ok":
        within = f"yes: within {row.max_relative_difference:.1e} (tolerance {row.tolerance:.1e})"
        return f"{within}, {reason_of_ok(row.reason)}" if row.reason else within
    if row.verdict == "skipped":
        return f"skipped: {row.reason}" if row.reason else "skipped"
    if row.verdict != "not proved" and numpy.isfinite(row.max_relative_difference):
        return f"NO: {compared}; {row.reason}"
    return f"{row.verdict or 'unknown'}: {row.reason}"


def reason_of_ok(reason: str) -> str:
    """The reason of a row whose verdict is ok, as pages show it: only rows of older commits have one, and the oldest do
    not say what was allowed."""
    allowed = "" if "(allowed" in reason else f" (allowed: {FLIP_TOLERANCE:g})"
    return reason.replace(FLIPS, f"{allowed}{SHOWN_FLIPS}")
