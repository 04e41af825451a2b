"""Everything that can be refused before a run is started, and the strategies that there are. Needs no torch."""

import difflib
import itertools
import math
import os
import socket
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from scripts.setup.check_data import check_image_folder

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FIRST = ["single", "dataparallel", "ddp", "ddp_spawn"]  # the order of the story; others follow by name


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


def only(text: str) -> str:
    """The one strategy that `text` names. Raises UserError for several, or an unknown one."""
    names = chosen(text)
    if len(names) > 1:
        raise UserError(f"one strategy is needed, not {text!r}; there are {', '.join(all_strategies())}")
    return names[0]


def check_ranks(configs: Sequence[Config], ranks: Sequence[int], variable: str = "NPROC") -> None:
    """Refuse a batch that does not divide by every number of ranks, or more ranks than GPUs; warn of more than cores.

    variable: what the user would change.
    """
    num_gpus, num_cores, most = machine.num_gpus(), machine.num_cores(), max(ranks)
    total = [machine.all_ranks(number)[0] for number in ranks]
    for batch, number in itertools.product(dict.fromkeys(config.global_batch for config in configs), total):
        if batch % number:
            step = math.lcm(*total)
            better = batch // step * step or step
            uneven = f"global_batch {batch} does not divide by {number} ranks"
            raise UserError(f"{uneven}; try --global-batch {better}, or another {variable}")
    if 0 < num_gpus < most:
        raise UserError(f"{variable} asks for {most} ranks, but only {num_gpus} GPUs can be seen; lower {variable}")
    if not num_gpus and most > num_cores:
        print(
            f"warning: {most} ranks share {num_cores} cores; such rows are marked oversubscribed, lower {variable}",
            file=sys.stderr,
        )


def check_data(folder: str) -> None:
    """Refuse a folder without images. Raises UserError."""
    try:
        check_image_folder(folder)
    except ValueError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"cannot read {error.filename!r}: {error.strerror}; mend its permissions or mount") from None


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


def open_set(results: Path | None, prefix: str = "") -> Path:
    """The folder of a set, made where it is missing; None: a new one, whose name begins with `prefix`.

    Raises UserError where it cannot be written.
    """
    if results is None:
        return _new_set(prefix)
    check_results(results)
    return results


def _new_set(prefix: str) -> Path:
    """A folder that no other suite has made, even in the same second."""
    base = f"results/{prefix}{datetime.now():%Y%m%d-%H%M%S}"
    for path in map(Path, (base, *(f"{base}-{n}" for n in range(2, 1000)))):
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise AssertionError("a thousand suites in one second")


def check_results(results: Path) -> None:
    """Create the result folder; refuse one that cannot be written."""
    try:
        (results / "logs").mkdir(parents=True, exist_ok=True)
        probe = results / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"RESULTS={results} cannot be written: {error.strerror}; choose another folder") from None
