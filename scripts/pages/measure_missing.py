"""Measures what a whole report of a set still lacks: is the loader the limit? do the strategies compute the same
update? how does STRATEGY scale? Each part is a command of another room, in a process of its own."""

import collections
import os
import sys
from pathlib import Path

from benchmarks.common.config.config import read_yaml
from benchmarks.common.store.results import read_table
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.forward_signals import forward_signals
from scripts.runner import preflight
from scripts.sets.safe_names import WORD, file_inside, read_text

ROOT = Path(__file__).resolve().parents[2]
# Of a set's configuration: it writes nowhere but into the set, and listens for nobody.
OVERRIDDEN = {
    "checkpoint_dir": "--checkpoint-dir=",
    "checkpoint_steps": "--checkpoint-steps=0",
    "checkpoint_keep": "--no-checkpoint-keep",
    "resume": "--no-resume",
    "rendezvous": "--rendezvous=file",
}
MOST_OF_CORES = 8  # ranks on CPUs: three points or more where there are cores, and batches of some images


def measure(results: Path) -> int:
    """Returns 0; 1 where a part failed, which leaves a gap in the report; 128 + the signal where one ended it all.

    Raises UserError for a published set.
    """
    if not (results / "runs.csv").exists():
        return 0
    if why := preflight.why_published(results):  # nobody measures beside what was measured elsewhere
        raise UserError(f"{why}; MEASURE=no draws its report")
    parts = missing_parts(results)
    if parts:
        print("measuring what the report still lacks; some minutes, or MEASURE=no", flush=True)
    failed = 0
    with forward_signals() as children:
        for command, variables in parts:
            failed |= children.run(command, cwd=ROOT, env=os.environ | variables) != 0
            if children.signum:
                return 128 + children.signum
    return failed


def missing_parts(results: Path) -> list[tuple[list, dict[str, str]]]:
    """(command, its own variables) of each part that the set may lack, at the settings of most of the set's runs.

    What is not proved yet, verify knows; which runs of a scaling study are left, its plan.
    """
    python, parts = sys.executable, []
    told = {"PYTHON": os.environ.get("PYTHON") or python, "RESULTS": str(results)}
    as_measured = told | settings_of(results)
    runs = read_table(results, "runs")
    read_nothing = {*runs[runs.status == "ok"].loader} == {"synthetic"}
    if not (read_nothing or (results / "loader.csv").exists()):
        parts.append(([python, "-m", "scripts.studies.loaders.verdict_measure", "--results", results], as_measured))
    parts.append(([python, "-m", "scripts.proof.verify", "--missing"], told | {"CONFIG": "", "ARGS": ""}))
    ranks = ranks_to_scale_to(results)
    if os.environ.get("STRATEGY") and len(ranks) > 1:
        scaled = {"RANKS": " ".join(map(str, ranks)), "THREADS_PER_RANK": "", "RESULTS": str(results / "scaling")}
        parts.append((["launchers/all.sh", "scaling"], as_measured | scaled))
    return parts


def ranks_to_scale_to(results: Path) -> list[int]:
    """1, 2, 4 ... up to NPROC, the GPUs, or the cores, as far as the set's batch divides by them."""
    given = os.environ.get("NPROC") or machine.num_gpus()
    most = machine.num_ranks() if given else min(machine.num_cores(), MOST_OF_CORES)
    batch = read_table(results, "runs").global_batch.max()
    return [n for power in range(most.bit_length()) if not batch % (n := 2**power) > 0]


def settings_of(results: Path) -> dict[str, str]:
    """CONFIG that most ok runs have whose folder is still there, since a baseline in another precision has its own;
    nothing where none is. ARGS override what a set may not choose. DATA is the user's, else the set's, and only read.
    """
    runs = read_table(results, "runs")
    ids = [run_id for run_id in runs[runs.status == "ok"].run_id if WORD.fullmatch(run_id)]
    folders = (RunFolder(results / "logs" / run_id) for run_id in ids)
    files = [folder.config for folder in folders if file_inside(results, str(folder.config.relative_to(results)))]
    texts = {path: read_text(path) for path in files}
    if not texts:
        return {}
    most = collections.Counter(texts.values()).most_common(1)[0][0]
    found = next(config for config, text in texts.items() if text == most)
    return {"CONFIG": str(found.resolve()), "ARGS": _overriding(found), "DATA": os.environ.get("DATA", "")}


def _overriding(config: Path) -> str:
    try:
        names = {*read_yaml(str(config))}
    except UserError:  # the part that reads it says so, and leaves its gap
        names = {*OVERRIDDEN}
    return " ".join(flag for name, flag in OVERRIDDEN.items() if name in names)
