"""The plan: from Make's variables to a list of runs, each with its settings resolved, and nothing started.

    python -m scripts.runner.run_plan ddp      # makes the folder of one run, prints what launchers/ddp.sh needs to know
    python -m scripts.runner.run_plan          # makes the set only, and prints what launchers/slurm_all.sh does

Every suite is such a list: round 1 of all its runs, then round 2, so that a slow spell of the machine hits all. What
is resolved here travels as it is: into the run's folder (config.yaml, settings.json), and to its launcher in a few
variables. Needs no torch where nobody has to count GPUs.
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tyro

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import requested_settings, seed_of_round, settings_hash
from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.packed import has_files, open_packs
from benchmarks.common.store.results import read_table
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.programs import run_program
from scripts.runner import memory_check, preflight
from scripts.runner.make_variables import Given, read_variables
from scripts.runner.round_order import places

Point = tuple[str, Config, int, str, int]
"""A run of every round: strategy, configuration, ranks on this machine and no other (0: as many as there are, on all
nodes), flags as typed, threads a rank."""
MOST_RUNS = 20_000
MOST_VALUES = 200
"""The most values of a sweep, and the most numbers of ranks of a scaling study."""
OF_A_CLUSTER = ("GPUS_PER_NODE", "CPUS_PER_TASK", "PARTITION", "CONTAINER")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a round."""

    strategy: str
    round: int
    config: Config
    asked: dict
    variables: dict[str, str]
    """What its launcher is told besides: ranks, threads."""
    flags: str = ""
    """What people typed for it beside the file."""
    position: int = 0
    """Its place in the order of its round, from 1."""

    @functools.cached_property
    def key(self) -> tuple[str, int]:
        """By what its row is known: the hash of what was asked, and the round."""
        return settings_hash(self.asked), self.round


def make_run(
    given: Given,
    strategy: str,
    number: int,
    config: Config,
    *,
    ranks_here: int = 0,
    threads: int = 0,
    flags: str = "",
    num_seeds: int = 0,
    one_node: bool = False,
) -> Run:
    """A run of round `number`; ranks on this machine, and threads of each, are the machine's where they are 0.

    num_seeds: rounds take as many seeds in turn, from the configuration's on, and are alike; 0: its own in each.
    one_node: on this machine only, also where the strategy could span nodes.
    """
    seeds = [config.seed + n for n in range(num_seeds)]
    if seeds:
        config = dataclasses.replace(config, seed=seed_of_round({"seeds": seeds}, number))
    ranks_here = ranks_here or given.ranks_here
    threads = threads or machine.threads_per_rank(ranks_here)
    if given.limit_s is not None:
        config = dataclasses.replace(config, limit_s=given.limit_s)
    if config.checkpoint_dir:
        own = Path(config.checkpoint_dir) / f"{strategy}-{number}"
        config = dataclasses.replace(config, checkpoint_dir=str(own), resume=config.resume or was_requeued())
    place = (ranks_here, 1) if one_node else preflight.ranks_and_nodes(strategy, ranks_here)
    asked = requested_settings(config, strategy, *place, threads, images_of(config))
    asked |= {"seeds": seeds} if seeds else {}
    # a cluster's nodes are known to the launcher only: what was said of them stands for them
    asked |= {name.lower(): os.environ[name] for name in OF_A_CLUSTER if os.environ.get(name)}
    told = of_machine(ranks_here, threads) | ({"NODES": "1", "NNODES": "1"} if one_node else {})
    return Run(strategy, number, config, asked, told, flags)


def was_requeued() -> bool:
    """Whether this is a job of make slurm-all that Slurm has requeued. Then its runs resume."""
    return bool(os.environ.get("ALLOCATION")) and os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def of_machine(ranks_here: int, threads: int) -> dict[str, str]:
    """What a launcher is told of this machine."""
    told = {"NPROC": ranks_here, "NUM_GPUS": machine.num_gpus()}
    told |= {"NUM_CORES": machine.num_cores(), "THREADS_PER_RANK": threads}
    return {name: str(value) for name, value in told.items()}


def fitted(runs: list[Run]) -> list[Run]:
    """The plan, with SKIP in the variables of each run that has no room on the GPUs: its launcher writes that reason
    into the row, and starts nothing."""
    points = [(run.strategy, run.config, run.asked["ranks"], run.asked["nodes"]) for run in runs]
    found = memory_check.reasons(points, max((int(run.variables["NPROC"]) for run in runs), default=0))
    told = [run.variables | {"SKIP": run.variables.get("SKIP") or why} for run, why in zip(runs, found, strict=True)]
    return [dataclasses.replace(run, variables=variables) for run, variables in zip(runs, told, strict=True)]


def images_of(config: Config) -> str:
    """The fingerprint of the images that a run reads; '' where these are synthetic. Raises UserError without any."""
    if config.loader == "synthetic":
        return ""
    return _fingerprint(config.data, config.pack if config.loader == "packed" else "")


@functools.cache
def _fingerprint(data: str, pack: str = "") -> str:
    """pack: what packed images are, where these are read; they are enough where their folder is not here."""
    if pack and not has_files(data):
        return open_packs(Config(data=data, loader="packed", pack=pack))[0].metadata["fingerprint"]
    preflight.check_data(data)
    return cached_fingerprint(Path(data))


def bench(given: Given) -> list[Run]:
    """STRATEGIES (the core, where none is named), and the baseline in every precision that these compute in, REPEATS
    times. On CPUs the core and `all` have a reference row besides: the baseline's one process with all cores."""
    config, strategies = load_config(given.flags), preflight.chosen(given.strategies or " ".join(preflight.CORE))
    preflight.check_ranks([config], [given.ranks_here])
    share, cores = machine.threads_per_rank(given.ranks_here), machine.num_cores()
    points = [(name, config, 0, given.args, share) for name in strategies]
    baselines = baselines_in_other_precisions(given, config, strategies)
    # on one GPU it may be there already
    points += [baseline for baseline in baselines if baseline[:3] not in [point[:3] for point in points]]
    if given.strategies in ("", "all") and not machine.num_gpus() and share != cores:
        points.append((preflight.CORE[0], config, 0, given.args, cores))
    return runs_of_points(given, points)


def baselines_in_other_precisions(given: Given, config: Config, strategies: Sequence[str]) -> list[Point]:
    """The baselines in other precisions, which mixed ones among the strategies are measured by."""
    share, is_one = (
        machine.threads_per_rank(given.ranks_here),
        machine.ranks_and_nodes(given.ranks_here) == (1, 1),
    )
    return [
        (
            name,
            dataclasses.replace(config, precision=precision),
            0 if is_one else ranks,
            f"{given.args} --precision {precision}".strip(),
            share,
        )
        for name, precision, ranks in preflight.other_baselines(config, strategies)
    ]


def runs_of_points(given: Given, points: Sequence[Point]) -> list[Run]:
    """A run of each point in each round."""

    def make(number: int, point: Point) -> Run:
        name, own, ranks, text, threads = point
        where = {"ranks_here": ranks, "one_node": ranks > 0, "threads": threads}
        return make_run(given, name, number, own, **where, flags=text, num_seeds=given.num_seeds)

    return in_rounds(given, lambda number: [make(number, point) for point in points])


def in_rounds(given: Given, of_round: Callable[[int], list[Run]]) -> list[Run]:
    """Rounds 1 to REPEATS, each in its order."""
    found = []
    for number in range(1, given.repeats + 1):
        runs = with_own_folders(of_round(number))
        order = [runs[which] for which in places(len(runs), number)]
        found += [dataclasses.replace(run, position=place) for place, run in enumerate(order, 1)]
    return found


def with_own_folders(runs: list[Run]) -> list[Run]:
    """The runs of a round, each with its own checkpoint folder.

    If a strategy runs twice, with other settings, the second folder's name ends in the hash of these settings.
    """
    found, taken = [], set()
    for run in runs:
        folder = run.config.checkpoint_dir
        if folder in taken:
            config = dataclasses.replace(run.config, checkpoint_dir=f"{folder}-{run.key[0]}")
            run = dataclasses.replace(run, config=config, asked=run.asked | {"checkpoint_dir": config.checkpoint_dir})
        found.append(run)
        taken |= {folder} - {""}
    return found


def left_to_do(runs: list[Run], results: Path | None, retry: str = "") -> list[Run]:
    """The runs that have no row in the set yet, or whose last one is interrupted or has status `retry`."""
    if results is None or not (results / "runs.csv").exists():
        return runs
    last = last_statuses(results)
    return [run for run in runs if last.get(run.key, "interrupted") in ("interrupted", retry)]


def last_statuses(results: Path) -> dict[tuple[str, int], str]:
    """Status of the last row of each run, by Run.key: the one answer to "is it done already?"."""
    from scripts.sets.recorded_settings import identities_of_runs  # pandas, as read_table

    rows, settings = read_table(results, "runs"), read_table(results, "settings")
    asked = dict(zip(settings.settings, settings.asked_hash, strict=True))
    if not rows.settings.isin(asked).all():  # settings.csv is gone or cut; the runs' own files may tell, as in analyses
        found, _ = identities_of_runs(results, rows, settings)
        told = zip(rows.settings, found, strict=True)
        asked = {name: settings_hash(each.requested) for name, each in told if name and each.recorded} | asked
    unknown = [row.run_id for row in rows.itertuples() if row.settings not in asked]
    if unknown:
        print(
            f"warning: {results} does not say what {len(unknown)} of its {len(rows)} runs were asked, such as "
            f"{unknown[0]}: an older suite wrote them; their rows stay, and count as none of this suite's runs",
            file=sys.stderr,
        )
    whole = rows[rows.settings.isin(asked) & rows.repeat.notna()]
    return {(asked[row.settings], int(row.repeat)): row.status for row in whole.itertuples()}


def python() -> str:
    """The interpreter that launchers get, by a path that holds in every folder; not resolved, or a venv is lost."""
    name = os.environ.get("PYTHON") or sys.executable
    return os.path.abspath(name) if os.sep in name else name


def begin(run: Run, results: Path, label: str = "") -> tuple[RunFolder, dict[str, str]]:
    """Make the run's folder in the set; returns it and the variables that its launcher is started with.

    They are the interface between commits: a launcher of any checkout can be started with them.
    """
    folder = RunFolder.create(results, run.strategy, run.round)
    folder.write_requested(run.config, run.asked, run.flags)
    told = {
        "RUN_ID": folder.run_id,
        "RESULTS": str(folder.results),
        "CONFIG": str(folder.config),
        "ARGS": "",  # CONFIG has them
        "DATA": run.config.data,
        "PYTHON": python(),
        "REPEAT": str(run.round),
        "POSITION": str(run.position or ""),
        "LABEL": label,
        "SKIP": "",
    }
    return folder, told | run.variables


def main(strategy: str = "", /) -> None:
    """Prints variables, a line each: of the run of a launcher that a person starts by hand; without a strategy the
    machine's and the set, which is made unless PLAN=yes."""
    given = read_variables()
    if strategy:
        preflight.check_rendezvous()
        preflight.check_reach([preflight.only(strategy)])
        (run,) = fitted(
            [make_run(given, preflight.only(strategy), given.repeat, load_config(given.flags), flags=given.args)]
        )
        _, told = begin(run, preflight.open_set(given.results), os.environ.get("LABEL", ""))
    else:
        told = of_machine(given.ranks_here, machine.threads_per_rank(given.ranks_here))
        results = given.results if os.environ.get("PLAN") == "yes" else preflight.open_set(given.results)
        told |= {"RESULTS": str(results or "")}
    if broken := [name for name, value in told.items() if not value.isprintable()]:
        raise UserError(
            f"{broken[0]} is {told[broken[0]]!r}, which has a line end or another unprintable character; choose another"
        )
    print("\n".join(f"{name}={value}" for name, value in told.items()))


if __name__ == "__main__":
    run_program(lambda: tyro.cli(main, description=__doc__), errors=(UserError, ValueError, OSError))
