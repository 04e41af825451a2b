"""Checks a sweep or a scaling study before its first run, and prints the runs that are left to do.

    python -m scripts.suite.plan sweep --results results/x --strategy ddp --key split_size --values "2 4" -- ...
    python -m scripts.suite.plan scaling --results results/x --strategy ddp --ranks "1 2 4" -- --config ...

launchers/sweep.sh and launchers/scaling.sh call it. A line a run, round by round: "repeat flags" for a sweep,
"repeat ranks threads flags" for scaling. A run that has an ok row in the set is left out. Exit code 2 and one
line for a mistake. Needs no torch.
"""

import dataclasses
import difflib
import math
import os
import sys
import typing
from pathlib import Path

import tyro

from benchmarks.common.config import FIELDS, TYPES, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.results import read_table
from scripts.setup.check_data import check_image_folder
from scripts.suite.preflight import check_ranks, check_rendezvous, check_results, chosen, plain_options

BOOLEANS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """One strategy with several values of one option."""

    results: Path
    strategy: str
    key: str
    """A field of the configuration, such as bucket_cap_mb."""
    values: str
    """Values with spaces between."""
    repeats: int = 3


@dataclasses.dataclass(frozen=True)
class Scaling:
    """One strategy on several numbers of ranks."""

    results: Path
    strategy: str
    ranks: str
    """Numbers of ranks with spaces between."""
    repeats: int = 3
    threads_per_rank: int = 0
    """0: cores // the most ranks."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a round: what its launcher is told, and by what its row is known."""

    flags: str
    shape: str = ""
    """Ranks and threads a rank, where the launcher is told."""
    world_size: int | None = None


def sweep_runs(options: Sweep, flags: list[str]) -> list[Run]:
    """One run a value. Raises UserError for an unknown key or a bad value."""
    example = 'STRATEGY=ddp KEY=bucket_cap_mb VALUES="1 5 25 100"'
    for name in ("strategy", "key", "values"):
        if not getattr(options, name).strip():
            raise UserError(f"{name.upper()} is not set; for example: make sweep {example}")
    key = find_key(options.key)
    runs = [value_flags(key, text) for text in dict.fromkeys(options.values.split())]
    configs = [load_config([*flags, *run]) for run in runs]
    for config in {config.global_batch: config for config in configs}.values():
        check_ranks(config)
    return [Run(" ".join(run)) for run in runs]


def find_key(text: str) -> str:
    """The configuration field that `text` names, with - or _. Raises UserError with the nearest name."""
    key = text.strip().lstrip("-").replace("-", "_")
    if key in FIELDS:
        return key
    near = difflib.get_close_matches(key, FIELDS, n=1, cutoff=0.5)
    raise UserError(f"no option {text!r}; {f'did you mean {near[0]}?' if near else '`make flags` lists them'}")


def value_flags(key: str, text: str) -> list[str]:
    """The flags that give field `key` the value `text`. Raises UserError where it is not of the field's type."""
    flag, wanted = f"--{key.replace('_', '-')}", TYPES[key]
    if wanted is bool:
        if text.lower() not in BOOLEANS:
            raise UserError(f"VALUES: {key} takes yes and no, not {text!r}")
        return [flag if BOOLEANS[text.lower()] else f"--no-{flag[2:]}"]
    if typing.get_origin(wanted) is typing.Literal:
        choices = typing.get_args(wanted)
        if text not in choices:
            near = difflib.get_close_matches(text, choices, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"VALUES: {key} is {text!r}; {hint}It takes {', '.join(choices)}")
    elif wanted in (int, float):
        try:
            wanted(text)
        except ValueError:
            kind = "whole number" if wanted is int else "number"
            raise UserError(f"VALUES: {key} is {text!r}, but must be a {kind}") from None
    return [flag, text]


def scaling_runs(options: Scaling, flags: list[str]) -> list[Run]:
    """Strong and weak runs of every number of ranks. Raises UserError where a batch does not divide."""
    if not options.strategy.strip() or not options.ranks.strip():
        raise UserError('STRATEGY and RANKS must be set; for example: make scaling STRATEGY=ddp RANKS="1 2 4"')
    words = options.ranks.split()
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"RANKS is {options.ranks!r}, but must be numbers of ranks, such as 1 2 4")
    ranks = sorted({int(word) for word in words})
    if len(ranks) < 2:
        raise UserError(f"RANKS is {options.ranks!r}: one number of ranks shows no scaling; give two or more")
    batch, most, num_cores = load_config(flags).global_batch, ranks[-1], len(os.sched_getaffinity(0))
    uneven = [number for number in ranks if batch % number]
    if uneven:
        step = math.lcm(*ranks)
        better = batch // step * step or step
        raise UserError(f"global_batch {batch} does not divide by {uneven[0]} ranks; try --global-batch {better}")
    num_gpus = int(os.environ.get("NUM_GPUS") or 0)
    if 0 < num_gpus < most:
        raise UserError(f"RANKS asks for {most}, but only {num_gpus} GPUs can be seen; lower RANKS")
    if not num_gpus and most > num_cores:
        print(f"warning: {most} ranks share {num_cores} cores; such rows are marked oversubscribed", file=sys.stderr)
    threads = options.threads_per_rank or max(1, num_cores // most)
    # with the most ranks, strong and weak scaling are the same run
    shapes = dict.fromkeys(
        [(number, batch) for number in ranks] + [(number, batch // most * number) for number in ranks]
    )
    return [Run(f"--global-batch {size}", f"{number} {threads}", number) for number, size in shapes]


def is_done(run: Run, repeat: int, ok_rows) -> bool:
    """Whether `ok_rows` (a DataFrame of the strategy's) hold this run of this round."""
    text = plain_options(f"{os.environ.get('ARGS', '')} {run.flags}")
    same = (ok_rows.repeat == repeat) & (ok_rows.options.map(plain_options) == text)
    return bool((same & (ok_rows.world_size == run.world_size) if run.world_size else same).any())


def flags_in(options_cell: str) -> dict[str, str]:
    """Field and value of each flag of a runs.csv row, the last one of a field as on a command line; yes and no
    for a boolean's --x and --no-x."""
    words, found = plain_options(options_cell).split(), {}
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        name, given, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not given and following.startswith("--"):
            name, value = (name[3:], "no") if name.startswith("no_") else (name, "yes")
        elif not given:
            value = following
        if word.startswith("--"):
            found[name] = value
    return found


def main(options: Sweep | Scaling, flags: list[str]) -> None:
    if options.repeats < 1:
        raise UserError(f"REPEATS is {options.repeats}, but must be at least 1")
    runs = sweep_runs(options, flags) if isinstance(options, Sweep) else scaling_runs(options, flags)
    chosen(options.strategy)
    check_rendezvous()
    config = load_config(flags)
    if config.loader == "folder":
        check_image_folder(config.data)
    check_results(options.results)
    rows = read_table(options.results, "runs")
    ok_rows = rows[(rows.status == "ok") & (rows.strategy == options.strategy)]
    for repeat in range(1, options.repeats + 1):
        for run in runs:
            if not is_done(run, repeat, ok_rows):
                print(repeat, run.shape, run.flags)


if __name__ == "__main__":
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    try:
        main(tyro.cli(Sweep | Scaling, args=sys.argv[1:split]), sys.argv[split + 1 :])
    except (UserError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
