"""A run that a person starts by its launcher: makes the run's folder, and starts the launcher again with its run.yaml.

RESULTS=results/mine launchers/ddp.sh --epochs 5 --global-batch 64
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from scripts.runner import plan, preflight, record, variables
from scripts.runner.request import Request, default_config
from scripts.setup.libraries import build_missing, library_of
from scripts.shared import source_version, strategy_list
from scripts.shared.command_line import flags_from_folder
from scripts.shared.external import NAME_VARIABLE
from scripts.shared.programs import run_main_and_exit


def main(folder: Path, launcher: Path, flags: list[str]) -> int:
    """Replaces this process by the launcher. folder: where the person typed the command."""
    variables.prepare(os.environ)
    preflight.check_rendezvous()
    name = os.environ.get(NAME_VARIABLE, "") if launcher.stem == "external" else launcher.stem
    strategy = strategy_list.parse_strategy(name)
    preflight.check_nodes_variables([strategy])
    flags = typed = flags_from_folder(flags, folder)
    if not any(flag.partition("=")[0] == "--config" for flag in flags):
        flags = ["--config", default_config(), *flags]
    config = load_config(flags)
    request = Request(flags=flags, own_flags=tuple(typed), ranks_here=machine.num_ranks())
    (run,) = plan.skip_what_does_not_fit([plan.make_run(request, strategy, config, request.own_text)])
    named = os.environ.get("RESULTS", "")
    results = preflight.open_result_set(folder / named if named else None)
    earlier = [number for name, number in plan.last_statuses(results) if name == run.requested_hash]
    # the checkpoints stay those of the first
    run = dataclasses.replace(run.in_round(1), round=1 + max(earlier, default=0))
    run_folder, env = plan.create_run_folder(run, results)
    library = library_of(strategy)
    if line := source_version.warning_without_commit():
        print(f"warning: {line}", file=sys.stderr)
    print(f"result set: {os.path.relpath(results, folder)}", flush=True)
    if skip := run.skip or (build_missing(library, plan.interpreter_path(), subprocess.call) if library else ""):
        return record.record_skipped(run_folder, skip, os.environ | env)
    # by bash, since an archive may have lost the launcher's right to be executed
    words = ["bash", str(launcher), "--run", str(run_folder.plan)]
    os.execvpe("bash", words, os.environ | env)


if __name__ == "__main__":
    run_main_and_exit(
        lambda: main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]), errors=(UserError, ValueError, OSError)
    )
