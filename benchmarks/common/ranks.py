"""Who this process is among the others: rank, local_rank and world_size, from torchrun's, Slurm's or horovodrun's
variables."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping

from benchmarks.common.run_folder import RunFolder
from benchmarks.common.errors import UserError

RANK_VARIABLES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
}
HOW_TO = {
    "torchrun": "start it with: launchers/ddp.sh, or the launcher of another strategy",
    "horovodrun": "start it with: horovodrun --gloo -np 2 -H localhost:2 python -m benchmarks.horovod_ddp",
    "srun": "start it with: srun --ntasks 2 python -m benchmarks.slurm",
}


class NotStarted(UserError):
    """The launcher that a script needs did not start this process. launcher: torchrun, horovodrun or srun."""

    def __init__(self, launcher: str, text: str):
        super().__init__(text)
        self.launcher = launcher


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """One process among `world_size`; `launcher` is torchrun, srun, horovodrun, spawn or none.

    rendezvous_file: the file in which the ranks meet; empty: where torch.distributed looks for itself.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    nodes: int = 1
    launcher: str = "none"
    rendezvous_file: str = ""


def find_rank_info(expected: str | None = None, env: Mapping[str, str] = os.environ) -> RankInfo:
    """This process's RankInfo from the environment, and which launcher set it.

    torchrun comes first: inside a Slurm job its variables are the ones about this process. Slurm's are believed only in
    a step that srun started: a shell in an allocation has SLURM_PROCID too. Raises UserError for a wrong variable, and
    NotStarted where `expected` (torchrun, horovodrun or srun) did not start the process.
    """
    found = "none"
    for launcher in ("torchrun", "horovodrun", "srun"):
        if expected in (None, launcher) and RANK_VARIABLES[launcher][2] in env:
            found = launcher
            break
    if expected and found != expected:
        missing = [name for name in RANK_VARIABLES[expected] if name not in env]
        text = f"{expected} did not start this process ({', '.join(missing)} not set); {HOW_TO[expected]}"
        raise NotStarted(expected, text)
    if found == "none":
        return RankInfo()
    rank, local_rank, world_size = (_number(env, name, found) for name in RANK_VARIABLES[found])
    if not (rank < world_size and local_rank < world_size):
        raise UserError(f"{found} says rank {rank}, local_rank {local_rank} of {world_size}; unset stale variables")
    # tasks of srun have a file of their own (SlurmStep); this one is of a run around them
    rendezvous_file = "" if found == "srun" else env.get("RENDEZVOUS_FILE", "")
    return RankInfo(rank, local_rank, world_size, _num_nodes(env, found, world_size), found, rendezvous_file)


@dataclasses.dataclass(frozen=True)
class SlurmStep:
    """The step of a Slurm job that srun started.

    name: of this step alone, also after a restart of the job. port: 20000 to 30014, by job and step. address: of the
    first node. folder: of the run, which all nodes see; without one, the current folder.
    """

    name: str
    port: int
    address: str
    folder: str


def find_slurm_step(env: Mapping[str, str] = os.environ) -> SlurmStep:
    """This process's SlurmStep from the environment. Raises KeyError outside of srun."""
    job_id, step_id = env["SLURM_JOB_ID"], env["SLURM_STEP_ID"]
    name = f"{job_id}-{step_id}-{env.get('SLURM_RESTART_COUNT', 0)}"
    port = 20000 + (int(job_id) * 16) % 10000 + int(step_id) % 16
    address = env.get("MASTER_ADDR") or env.get("SLURM_LAUNCH_NODE_IPADDR", "")
    run_folder = RunFolder.current()
    return SlurmStep(name, port, address, str(run_folder.path) if run_folder else ".")


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    text = env.get(name, "")
    if not text.isdecimal():
        raise UserError(f"{name} is {text!r}, but {launcher} sets a number; {HOW_TO[launcher]}")
    return int(text)


def _num_nodes(env: Mapping[str, str], launcher: str, world_size: int) -> int:
    if launcher == "srun":
        return int(env.get("SLURM_STEP_NUM_NODES") or 1)
    local_size = env.get("LOCAL_WORLD_SIZE" if launcher == "torchrun" else "HOROVOD_LOCAL_SIZE", "")
    return -(-world_size // int(local_size)) if local_size.isdecimal() and int(local_size) else 1


@contextlib.contextmanager
def rank_zero_first(rank: int, barrier: Callable[[], object]) -> Iterator[None]:
    """Rank 0 runs the block alone, then all the others do: for work whose result is found on disk.

    barrier: blocks until every rank has called it. An exception on rank 0 does not keep the others waiting.
    """
    if rank != 0:
        barrier()
    try:
        yield
    finally:
        if rank == 0:
            barrier()
