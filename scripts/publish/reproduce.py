"""Runs a published set again: the same settings, at its commit, in a git worktree; then compares, as `compare` does.

    ./bench reproduce results/published/x

What ran is read in the set's manifest.json, after every file has been checked against it. This checkout's planner and
interpreter start the launchers and the code of the set's commit. DATA is where the same images are: their fingerprint
has to be the set's. STRATEGIES chooses some of its strategies, REPEATS another number of rounds. ARGS, which is what
follows --, has options of ./bench compare such as "--day-sd 2%": two sets are two days, so that without one
there are ratios and no verdict. RESULTS given again runs only what is missing. PLAN=yes starts nothing.

A set may come from somebody else, so it chooses no program, container image, partition or folder. A run gets only the
settings that scripts/proof/allowed_settings.py allows. The user gives CONTAINER, PARTITION and DATA.

Exit code: 0; 1 where a run failed, or as --fail-over says; 2 for a mistake; 129, 130, 131 or 143 after a signal.
"""

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import tyro

from benchmarks.common.config.config import FIELDS, Config
from benchmarks.common.config.settings import IMAGE_FIELDS, seed_of_round, settings_hash
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.store.safe_names import COMMIT
from benchmarks.common.system import machine, source_version
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.forward_signals import forward_signals
from benchmarks.common.system.options_as_typed import option_as_typed
from benchmarks.common.system.programs import run_main_and_exit
from scripts.options.set_options import CompareOptions
from scripts.proof import allowed_settings
from scripts.publish.manifest import MANIFEST, find_faults, read_manifest
from scripts.runner import bench, preflight, round_order, rounds, run_plan, schedule
from scripts.runner.make_variables import read_variables
from scripts.sets.result_set import ResultSet, load_set
from scripts.setup.hardware import why_too_many
from scripts.stats.formatting import printable
from scripts.strategies.strategy_list import all_strategies
from scripts.studies.ab import worktrees
from scripts.studies.compare import compare

SET_VARIABLES = ("CONFIG", "NPROC", "THREADS_PER_RANK", "SEEDS", "RETRY", "TIMEOUT")  # the set says these itself
OTHER_MACHINES = ("NODES", "TASKS_PER_NODE", "HOSTS")  # the runs' machines are not this one, or not this one alone


def main() -> int:
    published, variables = find_published_set(), read_variables()
    if variables.results and (variables.results / MANIFEST).exists():
        raise UserError(
            f"{option_as_typed('RESULTS', variables.results)} is a published set; leave it out for a new one"
        )
    manifest = read_manifest(published)
    if lines := find_faults(published, manifest):
        raise UserError(f"{published} is not what was published: {'; '.join(map(printable, lines))}")
    options = read_options(published, variables.results)
    preflight.check_rendezvous()
    commit, chosen = commit_of_set(manifest, published), choose_runs(manifest["runs"], variables.strategies, published)
    for run in chosen:
        check_startable(run, commit, published)
        if not options.anyway:
            check_device(run, published)
    if not os.environ.get("REPEATS"):
        variables = dataclasses.replace(variables, repeats=max(run["rounds"] for run in chosen))
    of_round = plan_rounds(chosen, published, options.anyway)
    runs = [
        run
        for round_number in range(1, rounds.num_planned_rounds(variables, of_round) + 1)
        for run in of_round(round_number)
    ]
    rounds.check_rounds(runs, variables)
    left = run_plan.remaining_runs(runs, variables.results)
    print(f"{published}, made at commit {commit[:12]} on {_device(chosen)}: again, at that commit", flush=True)
    if not commit.startswith(source_version.commit() or "-"):
        print("what was fixed since that commit is not fixed in its runs (SECURITY.md)", flush=True)
    if os.environ.get("PLAN") == "yes":
        print(bench.plan_text(left, runs, variables))
        return 0
    before, results_folder = load_set(published), preflight.open_result_set(variables.results, "reproduce-")
    args = allowed_settings.one_line(before.environment.get("variables", {}).get("ARGS"))
    code = 0
    if left:
        batches = rounds.generate_rounds(left, of_round, variables, results_folder)
        code = start_rounds(batches, results_folder, commit, len(left), args)
    if code > 1 or not (results_folder / "runs.csv").exists():  # of two machines, the first one's rows are all
        return code
    return max(code, compare_with_published(before, results_folder, options))


def find_published_set() -> Path:
    """SET. Raises UserError where it is none, or where a variable contradicts it."""
    text = os.environ.get("SET", "").strip()
    if not text:
        raise UserError("no published set is named; for example: ./bench reproduce results/published/x")
    if not Path(text).is_dir():
        raise UserError(f"{text} is no folder; published sets are in results/published")
    if variables := [name for name in SET_VARIABLES if os.environ.get(name)]:
        raise UserError(f"{variables[0]} is the set's own in ./bench reproduce; leave it out")
    return Path(text)


def commit_of_set(manifest: dict, published: Path) -> str:
    """The whole hash of the set's commit. Raises UserError where no commit has its code, where it is not here, and
    where it is no ancestor of HEAD."""
    if any(run["met"].get("local_changes") for run in manifest["runs"]):
        raise UserError(f"{published} was made with local changes, which no commit has: it cannot be run again")
    commit = worktrees.find_commit(manifest["commit"]) if COMMIT.fullmatch(manifest["commit"]) else ""
    if not commit.startswith(manifest["commit"]) or not commit:  # nor is a branch of that name
        raise UserError(
            f"commit {printable(manifest['commit'])} of {published} is not in this repository, or this is no git "
            "checkout; a clone that is not shallow has it: git fetch --unshallow"
        )
    # Such as one of a fork that was only fetched: nobody has chosen to run it.
    if not source_version.is_in_history(commit):
        raise UserError(
            f"commit {commit[:12]} of {published} is not in the history of this checkout, and a set may not choose "
            "other code; check out a branch that has it, if you trust that one, or: git fetch --unshallow"
        )
    return commit


def choose_runs(runs: list[dict], strategies: str, published: Path) -> list[dict]:
    """The runs of STRATEGIES, all without any. Raises UserError for one that the set has not."""
    known = dict.fromkeys(run["strategy"] for run in runs)
    if unknown := [name for name in strategies.split() if name not in known]:
        raise UserError(f"{published} has no {unknown[0]}; it has {', '.join(map(printable, known))}")
    return [run for run in runs if not strategies or run["strategy"] in strategies.split()]


def check_startable(run: dict, commit: str, published: Path) -> None:
    """Refuse what cannot be run here. Raises UserError."""
    requested, resolved, where = run["asked"], run["met"], f"{published}, {printable(run['label'])}"
    if why := allowed_settings.why_not_allowed(requested, resolved):
        raise UserError(f"{where}: {why}; a set may not choose that")
    if why := why_too_many(requested):
        raise UserError(
            f"{where}: {why}; run it on a machine with more cores, or choose others by {option_as_typed('STRATEGIES')}"
        )
    if name := next(
        (name for name in allowed_settings.CHOSEN_BY_USER if requested.get(name.lower()) and name not in os.environ), ""
    ):
        raise UserError(
            f"{where} ran with {name}={requested[name.lower()]}, and a set may not choose that here; give {name}=... "
            f"yourself, or {name}= for none"
        )
    if why := worktrees.why_not_startable(commit, run["strategy"]):
        raise UserError(f"{where}: {why}, and cannot be run again from here")
    ranks_here, num_gpus = requested["ranks"] // requested["nodes"], machine.num_gpus()
    if resolved.get("device") == "cuda" and num_gpus < ranks_here:
        others = f"{option_as_typed('STRATEGIES')} takes others"
        raise UserError(f"{where} ran on {ranks_here} GPUs a machine, and here are {num_gpus}; {others}")
    if requested["nodes"] > 1 and run["strategy"] in all_strategies():
        try:
            preflight.check_nodes_variables([run["strategy"]])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    ranks_and_nodes = (
        (ranks_here, 1) if worktrees.is_on_one_node(commit, run["strategy"]) else machine.ranks_and_nodes(ranks_here)
    )
    if ranks_and_nodes != (requested["ranks"], requested["nodes"]):
        ran = f"{requested['ranks']} ranks on {requested['nodes']} nodes"
        raise UserError(f"{where} ran {ran}; say where they are: NODES and TASKS_PER_NODE, HOSTS, or NNODES")


def check_device(run: dict, published: Path) -> None:
    """Refuse other hardware, as `compare` would after hours of runs. Raises UserError. Of other machines than this
    one, and of a set that does not say, nothing is known."""
    device, name = run["met"].get("device"), run["met"].get("device_name")
    if not (device and name) or any(os.environ.get(each) for each in OTHER_MACHINES):
        return
    import torch  # a start takes seconds, which only this question is worth

    from benchmarks.common.dist.devices import device_name

    here = device_name(torch.device(device), run["met"].get("world_size", 1) // run["asked"]["nodes"])
    if here != name:
        raise UserError(
            f"{published}, {printable(run['label'])} ran on {printable(name)}, and this is {here}, whose runs "
            "./bench compare refuses beside them; -- --anyway runs and compares all the same"
        )


def plan_rounds(chosen: Sequence[dict], published: Path, anyway: bool) -> Callable[[int], list[run_plan.Run]]:
    """All runs of a round, in its order, by its number. anyway: also runs in bf16 where this CPU emulates it."""
    data = {run["label"]: _data(run["asked"], published) for run in chosen}

    def of_round(round_number: int) -> list[run_plan.Run]:
        made = [_run(run["asked"], round_number, data[run["label"]]) for run in chosen]
        order = [made[which] for which in round_order.run_order(len(made), round_number)]
        placed = [dataclasses.replace(run, position=position) for position, run in enumerate(order, 1)]
        if not anyway:
            placed = run_plan.skip_emulated_bf16(placed, "-- --anyway")
        return run_plan.skip_what_does_not_fit(placed)

    return of_round


def _data(requested: dict, published: Path) -> str:
    """The folder of the images, which the user chooses. Raises UserError where they are not the set's."""
    folder = os.path.abspath(os.environ.get("DATA") or Config().data)
    config = _config(requested | {"data": folder})
    found = {"fingerprint": run_plan.images_fingerprint(config)}
    for name in IMAGE_FIELDS:
        if requested.get(name) and found[name] != requested[name]:
            raise UserError(
                f"{folder} holds other images ({found[name]}) than {published} was made with ({requested[name]}); "
                f"give {option_as_typed('DATA', '')}"
            )
    return folder


def _config(requested: dict) -> Config:
    """What this checkout knows of a configuration."""
    return Config(**{name: value for name, value in requested.items() if name in FIELDS})


def _run(requested: dict, round_number: int, data: str) -> run_plan.Run:
    """A run of round `round_number` with the requested settings, for whatever fields its commit knows."""
    own = {"data": data, "checkpoint_dir": "", "checkpoint_steps": 0, "resume": False}
    requested = requested | own | {"seed": seed_of_round(requested, round_number)}
    for name in allowed_settings.CHOSEN_BY_USER:
        requested.pop(name.lower(), None)
        if text := os.environ.get(name):
            requested[name.lower()] = text
    variables = run_plan.machine_variables(requested["ranks"] // requested["nodes"], requested["threads_per_rank"])
    variables |= {
        name: str(requested[name.lower()]) for name in run_plan.CLUSTER_VARIABLES if name.lower() in requested
    }
    return run_plan.Run(requested["strategy"], round_number, _config(requested), requested, variables)


def _device(chosen: Sequence[dict]) -> str:
    return printable(
        "/".join(dict.fromkeys(str(run["met"].get("device_name") or "unknown hardware") for run in chosen))
    )


def start_rounds(
    rounds_of_runs: Iterable[list[run_plan.Run]], results_folder: Path, commit: str, total: int, args: str
) -> int:
    """Run `rounds_of_runs`, a round at a time, by the commit's launchers. Returns 0, 1, or 128 + a signal.

    args: ARGS of the published set, for environment.json of the new one: the user's own ARGS are those of `compare`.
    """
    fields, all_ok, num_done = worktrees.fields_of(commit), True, 0

    def configure(run: run_plan.Run, folder: RunFolder) -> None:
        worktrees.write_config(folder, run.requested, fields)

    with (
        schedule.lock_result_set(results_folder),
        forward_signals() as child_runner,
        worktrees.checked_out([commit]) as folders,
    ):
        for runs in rounds_of_runs:
            variables = runs[0].variables | {"ARGS": args}
            schedule.record_environment(results_folder, dataclasses.replace(runs[0], variables=variables), child_runner)
            launchers = schedule.Launchers(folders[commit], configure)
            all_ok &= schedule.run_each(runs, results_folder, child_runner, num_done + 1, total, launchers)
            num_done += len(runs) if runs[0].round else 0
            if child_runner.signum:
                return 128 + child_runner.signum
    return int(not all_ok)


def read_options(published: Path, results_folder: Path | None) -> CompareOptions:
    """ARGS, before hours of runs. results_folder: None where the new set is not made yet. Exits with 2 for an unknown
    flag. Raises UserError for a wrong value."""
    words = [str(published), str(results_folder or published), *shlex.split(os.environ.get("ARGS", ""))]
    options = tyro.cli(CompareOptions, args=words)
    compare.read_gate(options)
    return options


def compare_with_published(before: ResultSet, results_folder: Path, options: CompareOptions) -> int:
    """Compare the runs in `results_folder` with the published set; returns ./bench compare's exit code."""
    limit, day = compare.read_gate(options)
    again = load_set(results_folder)
    print()
    try:
        return compare.compare_two(before, with_labels_of(again, before), options, limit, day)
    except UserError as error:
        raise UserError(f"the runs are in {results_folder}; they cannot be compared: {error}") from None


def with_labels_of(again: ResultSet, published: ResultSet) -> ResultSet:
    """The set with the labels of the published one, which names each group by what it differs in from all others.

    Raises UserError where two groups would have one label: they differ in versions or machines alone.
    """
    labels = {settings_hash(group.identity.requested): group.label for group in published.groups}
    groups = [
        dataclasses.replace(group, label=labels.get(settings_hash(group.identity.requested), group.label))
        for group in again.groups
    ]
    timed = [group.label for group in groups if group.windows_of_runs]
    if twice := [label for label in timed if timed.count(label) > 1]:
        raise UserError(
            f"{again.path} has {twice[0]} of several versions or machines; give a new {option_as_typed('RESULTS', '')}"
        )
    return dataclasses.replace(again, groups=groups)


if __name__ == "__main__":
    run_main_and_exit(lambda: tyro.cli(main, description=__doc__), errors=(UserError, ValueError), writes=MANIFEST)
