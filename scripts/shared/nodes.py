"""The machines of a run, as HOSTS, NNODES or a Slurm job say."""

import os
import re

from benchmarks.common.errors import UserError
from benchmarks.common.machine import number_from_env

HOST = re.compile(r"\w[\w.-]*:(?P<ranks>[1-9][0-9]{0,5})", re.ASCII)  # of HOSTS; a name with - in front is a flag


def node_rank() -> int:
    """NODE_RANK, from 0 on. Raises UserError."""
    num_nodes = number_from_env("NNODES", "a number of nodes") or 1
    node = number_from_env("NODE_RANK", "the number of this node, of which the first is 0", least=0) or 0
    if node >= num_nodes:
        raise UserError(f"NODE_RANK is {node}, but must be less than NNODES, which is {num_nodes}; the first node is 0")
    return node


def ranks_and_nodes(ranks_here: int) -> tuple[int, int]:
    """In all. Raises UserError."""
    if text := os.environ.get("HOSTS", ""):
        hosts = [match for host in text.split(",") if (match := HOST.fullmatch(host))]
        if len(hosts) != text.count(",") + 1:
            raise UserError(f"HOSTS is {text!r}, but must be hosts and their ranks, 1 or more each, such as a:4,b:4")
        return sum(int(host["ranks"]) for host in hosts), len(hosts)
    what = "a number of nodes"
    nodes = number_from_env("NNODES", what) or number_from_env("SLURM_JOB_NUM_NODES", what) or 1
    return ranks_here * nodes, nodes
