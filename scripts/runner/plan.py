"""The plan: the runs of a round with their requested settings, made from a request."""

import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import machine
from benchmarks.common.config import FIELDS, Config, PackKind, load_config
from benchmarks.common.listing import fingerprint
from benchmarks.common.packed import has_files, open_packs
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.data.check import check_image_folder
from scripts.memory import memory_check
from scripts.results.identity import Identity, group_labels
from scripts.results.settings import requested_settings, seed_in_turn, settings_hash
from scripts.runner import preflight
from scripts.runner.request import Request
from scripts.runner.round_order import run_order, timed_part
from scripts.shared import strategy_list
from scripts.shared.external import NAME_VARIABLE, STRATEGY_SOURCE, external_script, source_hash
from scripts.shared.nodes import ranks_and_nodes

JOB_SETTINGS = {"container": "CONTAINER", "cpus_per_task": "SLURM_CPUS_PER_TASK", "partition": "SLURM_JOB_PARTITION"}
"""Requested settings, and variables of a Slurm job."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A strategy with its settings. Of round 0: what the runs of all rounds have in common."""

    strategy: str
    config: Config
    requested: dict[str, Any]
    """Half of its settings."""
    variables: dict[str, str]
    """Of its launcher: ranks, threads."""
    flags: str = ""
    """The user's own, as typed."""
    round: int = 0
    position: int = 0
    """In its round, from 1."""
    own_name: str = ""
    """In its round (name_runs)."""
    variant: str = ""
    """What a study calls it among the runs of its strategy, such as bf16."""
    skip: str = ""
    """Why it is recorded as skipped; '': it is started."""

    @functools.cached_property
    def requested_hash(self) -> str:
        return settings_hash(self.requested)

    @property
    def key(self) -> tuple[str, int]:
        """What identifies its row."""
        return self.requested_hash, self.round

    @property
    def name(self) -> str:
        return self.own_name or self.strategy

    def with_config(self, config: Config) -> "Run":
        return dataclasses.replace(self, config=config, requested=self.requested | dataclasses.asdict(config))

    def timed_part(self) -> "Run":
        """Without what comes after its timed windows."""
        return self.with_config(timed_part(self.config, self.requested["fingerprint"], self.requested["ranks"]))

    def in_round(self, number: int, position: int = 0) -> "Run":
        """With the seed whose turn it is, and a folder of its own for checkpoints."""
        config = self.config
        if seeds := self.requested.get("seeds"):
            config = dataclasses.replace(config, seed=seed_in_turn(seeds, number))
        if config.checkpoint_dir:
            twin = "" if self.name == self.strategy else f"-{self.requested_hash}"
            folder = Path(config.checkpoint_dir) / f"{self.strategy}-{number}{twin}"
            config = dataclasses.replace(config, checkpoint_dir=str(folder), resume=config.resume or was_requeued())
        return dataclasses.replace(self.with_config(config), round=number, position=position)


def make_run(
    request: Request,
    strategy: str,
    config: Config,
    flags: str = "",
    threads: int = 0,
    ranks_here: int = 0,
    one_node: bool = False,
) -> Run:
    """A run of no round. threads: of each rank; ranks_here: on this machine; 0: as the request says. one_node: on this
    machine only."""
    ranks_here = ranks_here or request.ranks_here
    threads = threads or machine.threads_per_rank(ranks_here)
    place = (ranks_here, 1) if one_node else strategy_list.total_ranks_and_nodes(strategy, ranks_here)
    requested = requested_settings(config, strategy, *place, threads, images_fingerprint(config))
    if request.num_seeds:
        requested["seeds"] = [config.seed + n for n in range(request.num_seeds)]
    requested |= {name: os.environ[variable] for name, variable in JOB_SETTINGS.items() if os.environ.get(variable)}
    env = machine_variables(ranks_here, threads) | {"NODES": str(place[1])}
    if script := external_script(strategy):
        requested |= {STRATEGY_SOURCE: source_hash(script.parent)}
        env |= {NAME_VARIABLE: strategy}
    return Run(strategy, config, requested, env, flags)


def was_requeued() -> bool:
    """Whether Slurm has started this job before."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def machine_variables(ranks_here: int, threads: int) -> dict[str, str]:
    """By which a launcher knows this machine."""
    counts = {"NPROC": ranks_here, "NUM_GPUS": machine.num_gpus()}
    counts |= {"NUM_CORES": machine.num_cores(), "THREADS_PER_RANK": threads}
    return {name: str(count) for name, count in counts.items()}


def memory_cases(runs: Sequence[Run]) -> list[memory_check.MemoryCase]:
    return [
        memory_check.MemoryCase(run.strategy, run.config, run.requested["ranks"], run.requested["nodes"])
        for run in runs
    ]


def skip_what_does_not_fit(runs: Sequence[Run]) -> list[Run]:
    """What does not fit in the GPUs' memory is skipped, with the reason."""
    num_gpus = max((int(run.variables["NPROC"]) for run in runs), default=0)
    reasons = memory_check.why_runs_do_not_fit(memory_cases(runs), num_gpus)
    return [dataclasses.replace(run, skip=run.skip or reason) for run, reason in zip(runs, reasons, strict=True)]


def images_fingerprint(config: Config) -> str:
    """Of the images that a run reads; '' for synthetic ones. Raises UserError where there are none."""
    if config.loader == "synthetic":
        return ""
    return _fingerprint(config.data, config.pack if config.loader == "packed" else "")


@functools.cache
def _fingerprint(data: str, pack: Literal[""] | PackKind = "") -> str:
    """pack: its kind, which is enough where its image folder is not here."""
    if pack and not has_files(data):
        return open_packs(Config(data=data, loader="packed", pack=pack))[0].metadata["fingerprint"]
    check_image_folder(data)
    return fingerprint(Path(data))


def plan_strategies(request: Request) -> list[Run]:
    """The strategies, and the baseline in every precision in which these compute. On CPUs the core strategies and `all`
    have the baseline's one process on all cores, too."""
    config = load_config(request.flags)
    strategies = strategy_list.parse_strategies(request.strategies or " ".join(strategy_list.CORE_STRATEGIES))
    baseline, own, named = strategy_list.BASELINE, request.own_text, request.strategies not in ("", "all")
    divides = strategies != [baseline]  # which is one rank whatever NPROC says
    preflight.check_ranks([config], [request.ranks_here if divides else 1])
    threads = machine.threads_per_rank(request.ranks_here)
    runs = [make_run(request, name, config, own, threads) for name in strategies]
    runs += baselines_in_other_precisions(request, config, strategies)
    if not named and not machine.num_gpus():
        runs.append(make_run(request, baseline, config, own, machine.num_cores()))
    if request.with_aa:
        again = dataclasses.replace(config, label="again")
        runs.append(make_run(request, baseline, config, own, threads))
        runs.append(make_run(request, baseline, again, f"{own} --label again".strip(), threads))
    if named or config.precision == "bf16":
        return runs
    return [dataclasses.replace(run, skip=preflight.why_bf16_is_too_slow(run.strategy, run.config)) for run in runs]


def baselines_in_other_precisions(request: Request, config: Config, strategies: Sequence[str]) -> list[Run]:
    """What the speed-ups of mixed-precision strategies are ratios to."""
    threads = machine.threads_per_rank(request.ranks_here)
    is_one_rank = ranks_and_nodes(request.ranks_here) == (1, 1)
    return [
        make_run(
            request,
            name,
            dataclasses.replace(config, precision=precision),
            f"{request.own_text} --precision {precision}".strip(),
            threads,
            0 if is_one_rank else ranks_here,
            one_node=not is_one_rank and ranks_here > 0,
        )
        for name, precision, ranks_here in strategy_list.comparison_runs_of_mixed_precision(config, strategies)
    ]


def name_runs(runs: Sequence[Run]) -> list[Run]:
    """Each run once, named as in charts: the strategy, and what separates it from its other runs."""
    runs = [*{run.requested_hash: run for run in reversed(runs)}.values()][::-1]
    identities = [Identity(run.requested, {}) for run in runs]
    names: dict[int, str] = {}
    for strategy in dict.fromkeys(run.strategy for run in runs):
        own = [place for place, run in enumerate(runs) if run.strategy == strategy]
        others = [identities[place] for place, run in enumerate(runs) if run.strategy != strategy]
        labels = group_labels(strategy, [identities[place] for place in own], others, machine.num_cores())
        names |= dict(zip(own, labels, strict=True))
    return [
        dataclasses.replace(run, own_name=f"{run.strategy}, {run.variant}" if run.variant else names[place])
        for place, run in enumerate(runs)
    ]


def round_of(runs: Sequence[Run], number: int) -> list[Run]:
    """number: from 1."""
    order = run_order(len(runs), number)
    return [runs[index].in_round(number, position) for position, index in enumerate(order, 1)]


def remaining_runs(runs: Sequence[Run], results: Path | None, retry: str = "") -> list[Run]:
    """Those without a row, or whose last one is interrupted or has status `retry`."""
    last = last_statuses(results) if results else {}
    return [run for run in runs if last.get(run.key, "interrupted") in ("interrupted", retry)]


def last_statuses(results: Path) -> dict[tuple[str, int], str]:
    """Of the last row of each run, by Run.key."""
    rows, settings = read_table(results, "runs"), read_table(results, "settings")
    hashes = dict(zip(settings.settings, settings.asked_hash, strict=True))
    known = rows[rows.settings.isin(hashes) & rows.repeat.notna()]
    return {
        (hashes[settings_name], int(round_number)): status
        for settings_name, round_number, status in zip(known.settings, known.repeat, known.status, strict=True)
    }


def interpreter_path() -> str:
    """Of launchers, valid in every folder. Links stay: resolved, a venv would be lost."""
    name = os.environ.get("PYTHON") or sys.executable
    return os.path.abspath(name) if os.sep in name else name


def create_run_folder(run: Run, results: Path, number: str = "") -> tuple[RunFolder, dict[str, str]]:
    """Make the run's folder; returns it and its launcher's variables. number: such as 3/15, for the run's line."""
    folder = RunFolder.create(results, run.strategy, run.round)
    settings = {name: value for name, value in run.requested.items() if name not in FIELDS}
    of_one_run = {"round": run.round, "position": run.position, "number": number, "name": run.name, "flags": run.flags}
    folder.write_plan(run.config, settings | of_one_run)
    # a container's launcher mounts it: images that nobody reads are no reason to mount a folder
    data = "" if run.config.loader == "synthetic" else run.config.data
    env = {"PYTHON": interpreter_path(), "DATA": data} | run.variables
    if endpoint := os.environ.get("RDZV_ENDPOINT", ""):  # of torchrun's nodes: a port of its own for each run
        host, _, port = endpoint.rpartition(":")
        place = number.partition("/")[0]
        env["RDZV_ENDPOINT"] = f"{host}:{int(port) + (int(place) if place.isdecimal() else 0)}"
    return folder, env
