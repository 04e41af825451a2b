"""Everything that can be refused before a run is started, and the list of runs that are left to do.

    python -m scripts.suite.preflight --results results/x --strategies "single ddp" --repeats 3 -- ...

Prints one "repeat strategy" line a run, round by round. Exit code 2 and one line for a mistake. Needs no torch.
"""

import csv
import dataclasses
import difflib
import os
import socket
import sys
from pathlib import Path

import tyro

from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.results import STATUSES
from scripts.setup.check_data import check_image_folder

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FIRST = ["single", "dataparallel", "ddp", "ddp_spawn"]  # the order of the story; others follow by name


@dataclasses.dataclass(frozen=True)
class Options:
    results: Path
    strategies: str = ""
    """Names with spaces between; empty: all of them."""
    repeats: int = 3
    retry: str = ""
    """A status, such as failed, whose runs are to be done again."""


def main(options: Options, flags: list[str]) -> None:
    config = load_config(flags)
    strategies = chosen(options.strategies)
    if options.repeats < 1:
        raise UserError(f"REPEATS is {options.repeats}, but must be at least 1")
    if options.retry and options.retry not in STATUSES:
        raise UserError(f"RETRY is {options.retry!r}; it takes {', '.join(STATUSES)}")
    check_ranks(config)
    check_rendezvous()
    if config.loader == "folder":
        check_image_folder(config.data)
    check_results(options.results)
    done = done_already(options.results, options.retry, config.config, os.environ.get("ARGS", ""))
    for repeat in range(1, options.repeats + 1):
        for strategy in strategies:
            if (strategy, repeat) not in done:
                print(repeat, strategy)


def all_strategies() -> list[str]:
    """Every strategy, in the order in which bench-all runs them."""
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "__init__")
    return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def chosen(text: str) -> list[str]:
    """The strategies named in `text`, or all. Raises UserError with the nearest name for an unknown one."""
    known = all_strategies()
    for name in text.split():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"no strategy {name!r}; {hint}")
    return list(dict.fromkeys(text.split())) or known


def check_ranks(config: Config) -> None:
    """Refuse a batch that does not divide, or more ranks than GPUs; warn of more ranks than cores."""
    text = os.environ.get("NPROC", "1")
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"NPROC is {text!r}, but must be a number of ranks, 1 or more")
    num_ranks, num_gpus, num_cores = int(text), int(os.environ.get("NUM_GPUS") or 0), len(os.sched_getaffinity(0))
    if config.global_batch % num_ranks:
        raise UserError(
            f"global_batch {config.global_batch} does not divide by NPROC={num_ranks} ranks; "
            f"try --global-batch {config.global_batch // num_ranks * num_ranks or num_ranks}"
        )
    if 0 < num_gpus < num_ranks:
        raise UserError(f"NPROC={num_ranks}, but only {num_gpus} GPUs can be seen; lower NPROC")
    if not num_gpus and num_ranks > num_cores:
        print(
            f"warning: {num_ranks} ranks share {num_cores} cores; the rows are marked oversubscribed, lower NPROC",
            file=sys.stderr,
        )


def check_rendezvous() -> None:
    """Refuse a taken port of RDZV_ENDPOINT on the node that has to listen there: torchrun would wait for ever."""
    if int(os.environ.get("NNODES") or 1) < 2 or os.environ.get("NODE_RANK", "0") != "0":
        return
    endpoint = os.environ.get("RDZV_ENDPOINT", "")
    port = endpoint.rpartition(":")[2]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"RDZV_ENDPOINT is {endpoint!r}, but must be host:port of the first node, such as node1:29400")
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise UserError(f"the port of RDZV_ENDPOINT={endpoint} is taken ({error.strerror}); choose another") from None


def check_results(results: Path) -> None:
    """Create the result folder; refuse one that cannot be written."""
    try:
        (results / "logs").mkdir(parents=True, exist_ok=True)
        probe = results / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"RESULTS={results} cannot be written: {error.strerror}; choose another folder") from None


def done_already(results: Path, retry: str, config: str, flags: str) -> set[tuple[str, int]]:
    """(strategy, repeat) of the runs that have a row, unless that row's status is to be tried again.

    Runs with another file or other flags (CONFIG, ARGS) were other runs.
    """
    path = results / "runs.csv"
    if not path.exists():
        return set()
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")  # a half line is no row
    rows = [row for row in csv.DictReader(whole.splitlines()) if None not in row.values()]
    rows = [row for row in rows if row.get("repeat", "").isdecimal()]
    wanted = config, plain_options(flags)
    same = [row for row in rows if (row.get("config", ""), plain_options(row.get("options", ""))) == wanted]
    last = {(row["strategy"], int(row["repeat"])): row["status"] for row in same}
    return {key for key, status in last.items() if status not in (retry, "interrupted")}


def plain_options(cell: str) -> str:
    """The flags of a runs.csv row, without the mark that keeps a spreadsheet from running them."""
    return " ".join(cell.removeprefix("'").split())


if __name__ == "__main__":
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    try:
        main(tyro.cli(Options, args=sys.argv[1:split]), sys.argv[split + 1 :])
    except (UserError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
