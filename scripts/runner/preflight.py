"""The checks before the first run, and the folder of a result set. Needs no torch."""

import contextlib
import itertools
import math
import os
import re
import socket
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.config import Config, resolve_precision
from benchmarks.common.errors import UserError
from benchmarks.common.files import make_new_folder
from benchmarks.common.machine import vector_flags
from scripts.shared.nodes import node_rank, ranks_and_nodes
from scripts.shared.repository import ROOT
from scripts.shared.strategy_list import has_fact

PUBLISHED = ROOT / "results" / "published"


def check_nodes_variables(strategies: Sequence[str]) -> None:
    """Raises UserError for HOSTS with a strategy that could span machines, and does not read it."""
    for name in strategies if os.environ.get("HOSTS") else ():
        if name != "horovod_ddp" and not has_fact(name, "one_node"):
            raise UserError(f"HOSTS would not reach {name}: only horovod_ddp reads it; torchrun's machines are NNODES")


def check_ranks(configs: Sequence[Config], ranks: Sequence[int], option: str = "--nproc") -> None:
    """Raises UserError for a batch that is no multiple of the ranks, and for more ranks than GPUs. Warns of more than
    cores. option: what the user would change."""
    num_gpus, num_cores, most, named = machine.num_gpus(), machine.num_cores(), max(ranks), option
    total = [ranks_and_nodes(number)[0] for number in ranks]
    batches = dict.fromkeys(config.global_batch for config in configs if not config.batch_per_device)
    for batch, number in itertools.product(batches, total):
        if batch % number:
            step = math.lcm(*total)
            better = batch // step * step or step
            uneven = f"global_batch {batch} is not a multiple of {number} ranks"
            raise UserError(f"{uneven}; try --global-batch {better}, or another {named}")
    if 0 < num_gpus < most:
        raise UserError(f"{named} asks for {most} ranks, but only {num_gpus} GPUs can be seen; lower {named}")
    if not num_gpus and most > num_cores:
        print(
            f"warning: {most} ranks share {num_cores} cores; such rows are marked oversubscribed, lower {named}",
            file=sys.stderr,
        )


def why_bf16_is_too_slow(strategy: str, config: Config) -> str:
    """Why a suite leaves out a bf16 run on a CPU that emulates it; '' for any other. oneDNN has kernels from AVX-512
    and AVX-NE-CONVERT on."""
    flags = {*vector_flags()}
    if machine.num_gpus() or "sse2" not in flags or {"avx512bw", "avx_ne_convert"} & flags:
        return ""
    with contextlib.suppress(UserError):  # the run itself reports it
        if resolve_precision(config.precision, None, has_fact(strategy, "mixed_precision")) == "bf16":
            return (
                "this CPU emulates bf16, many times slower than fp32; to time it all the same, use ./bench run single "
                "ddp_amp"
            )
    return ""


def check_rendezvous() -> None:
    """Raises UserError for a wrong RDZV_ENDPOINT, and on the first node for a taken port, for which torchrun would wait
    for ever."""
    if (machine.number_from_env("NNODES", "a number of nodes") or 1) < 2:
        return
    endpoint = os.environ.get("RDZV_ENDPOINT", "")
    host, _, port = endpoint.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise UserError(f"RDZV_ENDPOINT is {endpoint!r}, but must be host:port of the first node, such as node1:29400")
    if node_rank():
        return
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise UserError(f"the port of RDZV_ENDPOINT={endpoint} is taken ({error.strerror}); choose another") from None


def open_result_set(results: Path | None, prefix: str = "") -> Path:
    """Made where it is missing; None: a new one, named `prefix` and the time. Raises UserError."""
    if results is None:
        try:
            return make_new_folder(Path(f"results/{prefix}{datetime.now():%Y%m%d-%H%M%S}"))
        except OSError as error:
            why = f"results/ cannot be written: {error.strerror}; name another folder: --results FOLDER"
            raise UserError(why) from None
    place = results.resolve()
    if place.is_relative_to(PUBLISHED.resolve()):
        raise UserError(f"--results {results} is published, and nothing is measured into it; choose another")
    sets = (ROOT / "results").resolve()
    if place in (sets, sets / "latest"):  # each suite makes the second a link to its set
        raise UserError(f"--results {results} is no set; leave it out, or choose a name such as results/mine")
    try:
        (results / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--results {results} cannot be written: {error.strerror}; choose another folder") from None
    return results
