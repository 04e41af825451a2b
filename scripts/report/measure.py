"""Measures what a whole report of a set still lacks: is the loader the limit? do the strategies compute the same
update? how does STRATEGY scale? Each part is a command of another room, in a process of its own."""

import os
import sys
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.relay import relay

ROOT = Path(__file__).resolve().parents[2]


def measure(results: Path) -> int:
    """Returns 0; 1 where a part failed, which leaves a gap in the report; 128 + the signal where one ended it all."""
    published = results.resolve().parent.name == "published"
    if published or not (results / "runs.csv").exists():  # nobody measures beside what was measured elsewhere
        return 0
    parts = missing_parts(results)
    if parts:
        print("measuring what the report still lacks; some minutes, or MEASURE=no", flush=True)
    failed = 0
    with relay() as children:
        for command, variables in parts:
            failed |= children.run(command, cwd=ROOT, env=os.environ | variables) != 0
            if children.signum:
                return 128 + children.signum
    return failed


def missing_parts(results: Path) -> list[tuple[list, dict[str, str]]]:
    """(command, its own variables) of each part whose table the set lacks; what is not proved yet, verify knows."""
    python, parts = sys.executable, []
    told = {"PYTHON": os.environ.get("PYTHON") or python, "RESULTS": str(results)}
    if not (results / "loader.csv").exists():
        parts.append(([python, "-m", "scripts.probe.loader", "--results", results], told))
    parts.append(([python, "-m", "scripts.proof.verify", "--missing"], told | {"CONFIG": "", "ARGS": ""}))
    ranks = [2**n for n in range(machine.num_ranks().bit_length())]
    scaled = os.environ.get("STRATEGY") and len(ranks) > 1
    if scaled and not (results / "scaling" / "scaling.csv").exists():
        told |= {"RANKS": " ".join(map(str, ranks)), "THREADS_PER_RANK": ""}
        parts.append((["launchers/all.sh", "scaling"], told | {"RESULTS": str(results / "scaling")}))
    return parts
