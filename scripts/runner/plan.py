"""The plan of a suite: a list of runs with their requested settings, made from a request. It starts nothing.

Round 1 of all runs comes first, then round 2, so that a slow spell of the machine hits all. Imports torch only where
GPUs may have to be counted.
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import machine
from benchmarks.common.config import FIELDS, Config, PackKind, load_config
from benchmarks.common.errors import UserError
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

MAX_VALUES = 200
"""Of a sweep, and of the ranks of a scaling study."""
JOB_SETTINGS = {"container": "CONTAINER", "cpus_per_task": "SLURM_CPUS_PER_TASK", "partition": "SLURM_JOB_PARTITION"}
"""Requested settings that the variables of a Slurm job say."""


@dataclasses.dataclass(frozen=True)
class RunTemplate:
    """What the runs of one strategy and configuration have in common."""

    strategy: str
    config: Config
    flags: str = ""
    """The user's own flags, as typed."""
    threads: int = 0
    """Of each rank; 0: this machine's default."""
    ranks_here: int = 0
    """Ranks on this machine; 0: as many as the request says."""
    one_node: bool = False
    """On this machine only, also where the strategy could span nodes."""
    num_seeds: int = 0
    """Rounds take the configuration's seed, that plus 1, ... in turn; 0: all have the configuration's."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a round."""

    strategy: str
    round: int
    config: Config
    requested: dict[str, Any]
    """The requested half of its settings."""
    variables: dict[str, str]
    """Environment variables of its launcher: ranks, threads."""
    flags: str = ""
    """The user's own flags, as typed."""
    position: int = 0
    """Its place in the order of its round, from 1."""
    own_name: str = ""
    """Its name in its round (name_runs); '' for a run that is not of a round."""
    variant: str = ""
    """What a study calls it among the runs of its strategy, such as bf16."""
    skip: str = ""
    """Why it is recorded as skipped, and not started; '': it is started."""

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
        """This run with another configuration, in its requested settings as well."""
        return dataclasses.replace(self, config=config, requested=self.requested | dataclasses.asdict(config))

    def timed_part(self) -> "Run":
        """This run without what comes after its timed windows."""
        return self.with_config(timed_part(self.config, self.requested["fingerprint"], self.requested["ranks"]))


def make_run(request: Request, template: RunTemplate, round_number: int = 1) -> Run:
    """The run of round `round_number`."""
    config = template.config
    seeds = [config.seed + n for n in range(template.num_seeds)]
    if seeds:
        config = dataclasses.replace(config, seed=seed_in_turn(seeds, round_number))
    ranks_here = template.ranks_here or request.ranks_here
    threads = template.threads or machine.threads_per_rank(ranks_here)
    if config.checkpoint_dir:
        folder = Path(config.checkpoint_dir) / f"{template.strategy}-{round_number}"
        config = dataclasses.replace(config, checkpoint_dir=str(folder), resume=config.resume or was_requeued())
    place = (ranks_here, 1) if template.one_node else strategy_list.total_ranks_and_nodes(template.strategy, ranks_here)
    requested = requested_settings(config, template.strategy, *place, threads, images_fingerprint(config))
    if seeds:
        requested["seeds"] = seeds
    requested |= {name: os.environ[variable] for name, variable in JOB_SETTINGS.items() if os.environ.get(variable)}
    env = machine_variables(ranks_here, threads) | {"NODES": str(place[1])}
    if script := external_script(template.strategy):
        requested |= {STRATEGY_SOURCE: source_hash(script.parent)}
        env |= {NAME_VARIABLE: template.strategy}
    return Run(template.strategy, round_number, config, requested, env, template.flags)


def was_requeued() -> bool:
    """Whether Slurm has started this job before, whose runs then resume."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def machine_variables(ranks_here: int, threads: int) -> dict[str, str]:
    """The environment variables by which a launcher knows this machine."""
    counts = {"NPROC": ranks_here, "NUM_GPUS": machine.num_gpus()}
    counts |= {"NUM_CORES": machine.num_cores(), "THREADS_PER_RANK": threads}
    return {name: str(count) for name, count in counts.items()}


def memory_cases(runs: Sequence[Run]) -> list[memory_check.MemoryCase]:
    """What the memory check has to know of each run."""
    return [
        memory_check.MemoryCase(run.strategy, run.config, run.requested["ranks"], run.requested["nodes"])
        for run in runs
    ]


def skip_what_does_not_fit(runs: list[Run]) -> list[Run]:
    """The runs; one that does not fit in the GPUs' memory is skipped, with the reason."""
    num_gpus = max((int(run.variables["NPROC"]) for run in runs), default=0)
    reasons = memory_check.why_runs_do_not_fit(memory_cases(runs), num_gpus)
    return [dataclasses.replace(run, skip=run.skip or reason) for run, reason in zip(runs, reasons, strict=True)]


def skip_emulated_bf16(runs: list[Run], remedy: str) -> list[Run]:
    """The runs; one in bf16 on a CPU that emulates it is skipped, with the reason."""
    reasons = [preflight.why_bf16_is_too_slow(run.strategy, run.config, remedy) for run in runs]
    return [dataclasses.replace(run, skip=reason) for run, reason in zip(runs, reasons, strict=True)]


def images_fingerprint(config: Config) -> str:
    """Of the images that a run reads; '' for synthetic ones. Raises UserError without any."""
    if config.loader == "synthetic":
        return ""
    return _fingerprint(config.data, config.pack if config.loader == "packed" else "")


@functools.cache
def _fingerprint(data: str, pack: Literal[""] | PackKind = "") -> str:
    """pack: its kind, where packed images are read. A pack is enough where its image folder is not here."""
    if pack and not has_files(data):
        return open_packs(Config(data=data, loader="packed", pack=pack))[0].metadata["fingerprint"]
    check_image_folder(data)
    return fingerprint(Path(data))


def plan_strategies(request: Request) -> list[Run]:
    """The rounds of the strategies, and of the baseline in every precision in which these compute.

    Without names: CORE_STRATEGIES. On CPUs these, and `all`, have one more run a round: the baseline's one
    process on all cores. With `with_aa` the baseline is there twice. bf16 that a CPU emulates, and nobody asked for, is
    skipped.
    """
    config = load_config(request.flags)
    strategies = strategy_list.parse_strategies(request.strategies or " ".join(strategy_list.CORE_STRATEGIES))
    divides = strategies != [strategy_list.BASELINE]  # which is one rank whatever NPROC says
    preflight.check_ranks([config], [request.ranks_here if divides else 1])
    threads, num_cores = machine.threads_per_rank(request.ranks_here), machine.num_cores()
    templates = [RunTemplate(name, config, request.own_text, threads) for name in strategies]
    # on one GPU a baseline may be there already
    same = {(template.strategy, template.config, template.ranks_here) for template in templates}
    for baseline in baselines_in_other_precisions(request, config, strategies):
        if (baseline.strategy, baseline.config, baseline.ranks_here) not in same:
            templates.append(baseline)
    if request.strategies in ("", "all") and not machine.num_gpus() and threads != num_cores:
        templates.append(RunTemplate(strategy_list.BASELINE, config, request.own_text, num_cores))
    if request.with_aa:
        if strategy_list.BASELINE not in strategies:
            templates.append(RunTemplate(strategy_list.BASELINE, config, request.own_text, threads))
        again = dataclasses.replace(config, label="again")
        if config.label == again.label:
            raise UserError("--aa gives its second runs the label again: leave out --label again")
        templates.append(
            RunTemplate(strategy_list.BASELINE, again, f"{request.own_text} --label again".strip(), threads)
        )
    runs = make_runs(request, templates)
    if request.strategies not in ("", "all") or config.precision == "bf16":
        return runs
    return skip_emulated_bf16(runs, "./bench run single ddp_amp")


def baselines_in_other_precisions(request: Request, config: Config, strategies: Sequence[str]) -> list[RunTemplate]:
    """The baselines of mixed-precision strategies: their speed-ups are ratios to these."""
    threads = machine.threads_per_rank(request.ranks_here)
    is_one_rank = ranks_and_nodes(request.ranks_here) == (1, 1)
    return [
        RunTemplate(
            name,
            dataclasses.replace(config, precision=precision),
            f"{request.own_text} --precision {precision}".strip(),
            threads,
            0 if is_one_rank else ranks_here,
            one_node=not is_one_rank and ranks_here > 0,
        )
        for name, precision, ranks_here in strategy_list.comparison_runs_of_mixed_precision(config, strategies)
    ]


def make_runs(request: Request, templates: Sequence[RunTemplate]) -> list[Run]:
    templates = [dataclasses.replace(template, num_seeds=request.num_seeds) for template in templates]
    return order_rounds(
        request, lambda round_number: [make_run(request, template, round_number) for template in templates]
    )


def order_rounds(request: Request, of_round: Callable[[int], list[Run]]) -> list[Run]:
    """Rounds 1 to REPEATS, each in its order."""
    planned = []
    for round_number in range(1, request.repeats + 1):
        runs = separate_checkpoint_folders(of_round(round_number))
        runs = [dataclasses.replace(run, own_name=name) for run, name in zip(runs, name_runs(runs), strict=True)]
        ordered = [runs[index] for index in run_order(len(runs), round_number)]
        planned += [dataclasses.replace(run, position=position) for position, run in enumerate(ordered, 1)]
    return planned


def name_runs(runs: Sequence[Run]) -> list[str]:
    """A name for each run of a round, as in charts: its strategy, and its variant or the settings that separate it
    from the other runs of this strategy."""
    identities = {id(run): Identity(run.requested, {}) for run in runs}
    names: dict[int, str] = {}
    for strategy in dict.fromkeys(run.strategy for run in runs):
        same_strategy = [run for run in runs if run.strategy == strategy]
        others = [identities[id(run)] for run in runs if run.strategy != strategy]
        labels = group_labels(strategy, [identities[id(run)] for run in same_strategy], others, machine.num_cores())
        names |= {
            id(run): f"{strategy}, {run.variant}" if run.variant else label
            for run, label in zip(same_strategy, labels, strict=True)
        }
    return [names[id(run)] for run in runs]


def separate_checkpoint_folders(runs: list[Run]) -> list[Run]:
    """If a strategy runs twice, the second folder's name ends in the hash of its settings."""
    separated: list[Run] = []
    used_folders: set[str] = set()
    for run in runs:
        folder = run.config.checkpoint_dir
        if folder in used_folders:
            own_folder = f"{folder}-{run.requested_hash}"
            run = run.with_config(dataclasses.replace(run.config, checkpoint_dir=own_folder))
        separated.append(run)
        used_folders |= {folder} - {""}
    return separated


def remaining_runs(runs: list[Run], results: Path | None, retry: str = "") -> list[Run]:
    """Those without a row yet, or whose last one is interrupted or has status `retry`."""
    if results is None or not (results / "runs.csv").exists():
        return runs
    last = last_statuses(results)
    return [run for run in runs if last.get(run.key, "interrupted") in ("interrupted", retry)]


def last_statuses(results: Path) -> dict[tuple[str, int], str]:
    """Status of the last row of each run, by Run.key."""

    rows, settings = read_table(results, "runs"), read_table(results, "settings")
    hashes = dict(zip(settings.settings, settings.asked_hash, strict=True))
    known = rows[rows.settings.isin(hashes) & rows.repeat.notna()]
    return {
        (hashes[settings_name], int(round_number)): status
        for settings_name, round_number, status in zip(known.settings, known.repeat, known.status, strict=True)
    }


def interpreter_path() -> str:
    """The interpreter for launchers, valid in every folder. Links stay: resolved, a venv would be lost."""
    name = os.environ.get("PYTHON") or sys.executable
    return os.path.abspath(name) if os.sep in name else name


def create_run_folder(run: Run, results: Path, number: str = "") -> tuple[RunFolder, dict[str, str]]:
    """Make the run's folder, with its run.yaml; returns it and the variables of its launcher, which gets the file by
    `--run`. number: such as 3/15, for the run's line."""
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
