"""Measure what a whole report of a set still lacks: the proof of its strategies, and what the studies say is missing.

Each part is a command in a process of its own.
"""

import collections
import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.config.config import read_yaml
from benchmarks.common.store.results import read_table
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.commands import bench_command
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.forward_signals import forward_signals
from benchmarks.common.system.options_as_typed import option_as_typed
from benchmarks.common.system.repository import ROOT
from scripts.pages.study_sections import Measurement, load_sections
from scripts.runner import preflight
from scripts.sets.hardware import hardware_here, hardware_of_set, why_not_here, why_not_its_images, why_too_many
from scripts.sets.safe_names import SAFE_NAME, file_inside, read_text

# Of a set's configuration: it writes nowhere but into the set, and listens for nobody.
OVERRIDDEN = {
    "checkpoint_dir": "--checkpoint-dir=",
    "checkpoint_steps": "--checkpoint-steps=0",
    "checkpoint_keep": "--no-checkpoint-keep",
    "resume": "--no-resume",
    "rendezvous": "--rendezvous=file",
}


def measure(results: Path) -> int:
    """Returns 0; 1 where a part failed, which leaves a gap in the report; 128 + the signal where one ended it all.

    Raises UserError for a published set, and for one whose configuration asks for more loader workers than this machine
    starts.
    """
    if not (results / "runs.csv").exists():
        return 0
    if why := preflight.why_not_writable(results):  # nobody measures beside what was measured elsewhere
        raise UserError(f"{why}; {option_as_typed('MEASURE', 'no')} draws its report")
    parts = missing_parts(results)
    if parts and (why := why_not_here(hardware_of_set(results), hardware_here())):
        print(describe_unmeasured(results, parts, why), flush=True)
        return 0
    if parts and (why := why_no_images(results)):
        print(f"{results}: {why}; nothing is measured here, and the report may lack something", flush=True)
        return 0
    if parts:
        refuse_too_many_workers(results)
        how_long = f"minutes, and with ImageNet hours; or {option_as_typed('MEASURE', 'no')}"
        print(f"measuring what the report still lacks; {how_long}", flush=True)
    failed = 0
    with forward_signals() as children:
        for part in parts:
            failed |= children.run(part.command, cwd=ROOT, env=os.environ | part.variables) != 0
            if children.signum:
                return 128 + children.signum
    return failed


def describe_unmeasured(results: Path, parts: list[Measurement], why: str) -> str:
    """What is not measured here, and the commands for a machine like the set's."""
    names = ", ".join(part.command[2] if part.command[1:2] == ["-m"] else shlex.join(part.command) for part in parts)
    command = bench_command("report", results=results)
    return (
        f"{results}: {why}, so that nothing is measured here; the report may lack what these find: {names}\n"
        f"on such a machine: {command}; on a cluster put `srun --nodes 1 --ntasks 1 --exclusive` before it, with the "
        "options for such a node"
    )


def missing_parts(results: Path) -> list[Measurement]:
    """What the set may lack, measured at the settings of most of its runs.

    The proof finds out by itself which strategies it has not proved yet.
    """
    common = {"PYTHON": os.environ.get("PYTHON") or sys.executable, "RESULTS": str(results)}
    as_measured = common | usual_settings(results)
    proof = [sys.executable, "-m", "scripts.proof.verify", "--missing"]
    parts = [Measurement(proof, common | {"CONFIG": "", "ARGS": ""})]
    for section in load_sections():
        parts += [Measurement(part.command, as_measured | part.variables) for part in section.missing(results)]
    return parts


def usual_settings(results: Path) -> dict[str, str]:
    """CONFIG that most ok runs have; nothing where none is. ARGS override what a set may not choose. DATA is the
    user's, else the configuration's, which why_no_images has looked at.
    """
    found = usual_config(results)
    if found is None:
        return {}
    return {"CONFIG": str(found.resolve()), "ARGS": _overriding(found), "DATA": os.environ.get("DATA", "")}


def refuse_too_many_workers(results: Path) -> None:
    """Raises UserError where the configuration of most runs asks for more loader workers than this machine starts."""
    fields: dict[str, Any] = {}
    if found := usual_config(results):
        with contextlib.suppress(UserError):  # the part that reads it says so, and leaves its gap
            fields = read_yaml(str(found))
    if why := why_too_many({"workers": fields.get("workers")}):
        raise UserError(f"{results}: {why}; {option_as_typed('MEASURE', 'no')} draws its report")


def why_no_images(results: Path) -> str:
    """Why the set may not choose the images that would be read; '' where it may, or where the user does."""
    found = usual_config(results)
    if os.environ.get("DATA") or found is None:
        return ""
    fields: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    with contextlib.suppress(UserError):  # the part that reads them says so, and leaves its gap
        fields = read_yaml(str(found))
        resolved = RunFolder(found.parent).settings().get("met") or {}
    if "data" not in fields or fields.get("loader") == "synthetic":
        return ""
    return why_not_its_images(str(fields["data"]), resolved)


def usual_config(results: Path) -> Path | None:
    """The configuration that most ok runs have whose folder is still there, since a baseline in another precision has
    its own; None where none is."""
    runs = read_table(results, "runs")
    ids = [run_id for run_id in runs[runs.status == "ok"].run_id if SAFE_NAME.fullmatch(run_id)]
    folders = (RunFolder(results / "logs" / run_id) for run_id in ids)
    files = [folder.config for folder in folders if file_inside(results, str(folder.config.relative_to(results)))]
    texts = {path: read_text(path) for path in files}
    if not texts:
        return None
    most = collections.Counter(texts.values()).most_common(1)[0][0]
    return next(config for config, text in texts.items() if text == most)


def _overriding(config: Path) -> str:
    try:
        names = {*read_yaml(str(config))}
    except UserError:  # the part that reads it says so, and leaves its gap
        names = {*OVERRIDDEN}
    return " ".join(flag for name, flag in OVERRIDDEN.items() if name in names)
