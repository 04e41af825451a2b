"""Measure what a whole report of a set still lacks, each as a process of its own: the proof of its strategies, and
what the studies say is missing."""

import collections
import dataclasses
import os
import shlex
import sys
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.pages.study_sections import Measurement, load_sections
from scripts.runner import preflight
from scripts.sets.safe_names import SAFE_NAME
from scripts.shared.commands import bench_command
from scripts.shared.forward_signals import forward_signals
from scripts.shared.options_as_typed import option_as_typed
from scripts.shared.repository import ROOT
from scripts.studies.hardware import hardware_here, hardware_of_set, why_not_here

# Of a set's configuration, which somebody else may have made: it writes nowhere but into the set.
OVERRIDES = "--checkpoint-dir= --checkpoint-steps=0 --no-checkpoint-keep --no-resume --rendezvous=file"


def measure(results_folder: Path) -> int:
    """Returns 0; 1 where a measurement failed, so that the report has a gap; 128 + the signal. Raises UserError for
    a published set."""
    if not (results_folder / "runs.csv").exists():
        return 0
    if why := preflight.why_not_writable(results_folder):  # nobody measures beside what was measured elsewhere
        raise UserError(f"{why}; {option_as_typed('MEASURE', 'no')} draws its report")
    measurements = missing_measurements(results_folder)
    if why := why_not_here(hardware_of_set(results_folder), hardware_here()):
        print(describe_unmeasured(results_folder, measurements, why), flush=True)
        return 0
    how_long = f"minutes, and with ImageNet hours; or {option_as_typed('MEASURE', 'no')}"
    print(f"measuring what the report lacks, if anything; {how_long}", flush=True)
    failed = 0
    with forward_signals() as child_runner:
        for measurement in measurements:
            failed |= child_runner.run(measurement.command, cwd=ROOT, env=os.environ | measurement.variables) != 0
            if child_runner.signum:
                return 128 + child_runner.signum
    return failed


def describe_unmeasured(results_folder: Path, measurements: list[Measurement], why: str) -> str:
    """What is not measured here, and the commands for a machine like the set's."""
    commands = [each.command for each in measurements]
    names = ", ".join(words[2] if words[1:2] == ["-m"] else shlex.join(words) for words in commands)
    again = bench_command("report", results=results_folder)
    return (
        f"{results_folder}: {why}, so that nothing is measured here; the report may lack what these find: {names}\n"
        f"on such a machine, in {shlex.quote(str(ROOT))}: {again}; on a cluster in a shell of a job, such as of "
        "srun --nodes 1 --ntasks 1 --exclusive --pty bash"
    )


def missing_measurements(results_folder: Path) -> list[Measurement]:
    """The proof, which finds out by itself what is not proved, and what the studies say that the set lacks."""
    common = {"PYTHON": os.environ.get("PYTHON") or sys.executable, "RESULTS": str(results_folder)}
    as_measured = common | usual_settings(results_folder)
    proof = [sys.executable, "-m", "scripts.proof.verify", "--missing"]
    measurements = [Measurement(proof, common | {"CONFIG": "", "ARGS": ""})]
    for section in load_sections():
        missing = section.missing(results_folder)
        measurements += [dataclasses.replace(each, variables=as_measured | each.variables) for each in missing]
    return measurements


def usual_settings(results_folder: Path) -> dict[str, str]:
    """CONFIG that most ok runs have. ARGS override what a set may not choose."""
    found = usual_config(results_folder)
    if found is None:
        return {}
    return {"CONFIG": str(found.resolve()), "ARGS": OVERRIDES, "DATA": os.environ.get("DATA", "")}


def usual_config(results_folder: Path) -> Path | None:
    """The configuration that most ok runs have: a baseline in another precision has its own. None where no run is
    ok."""
    runs = read_table(results_folder, "runs")
    ids = [run_id for run_id in runs[runs.status == "ok"].run_id if SAFE_NAME.fullmatch(run_id)]
    folders = (RunFolder(results_folder / "logs" / run_id) for run_id in ids)
    texts = {each.config: each.config.read_text(errors="replace") for each in folders if each.config.is_file()}
    if not texts:
        return None
    commonest = collections.Counter(texts.values()).most_common(1)[0][0]
    return next(config for config, text in texts.items() if text == commonest)
