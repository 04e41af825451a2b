"""What the ranks agree on between windows, by nothing but a script's own sum over them.

    with stop_requests(config) as requests:      # signals that wait for a checkpoint
        signum = agree(losses, requests, steps_done, worker.device, reduce)

Each of these is a collective: every rank calls it, with the same number of losses or values.
"""

import contextlib
import hashlib
import signal
from collections.abc import Iterator, Sequence

import torch

from benchmarks.common.config import Config
from benchmarks.common.devices import Reduce, Worker
from benchmarks.common.errors import Diverged
from benchmarks.common.host_batches import STOP_SIGNALS

EXACT_HEX_DIGITS = 13  # 52 bits, which a float64 holds exactly


@contextlib.contextmanager
def stop_requests(config: Config) -> Iterator[list[int]]:
    """Signals that arrived, where there is a checkpoint to write before obeying them; else they kill at once.

    SIGTERM is what schedulers and launchers send, SIGINT what torch.multiprocessing sends to ranks whose parent has
    gone; SIGUSR1 is what launchers/slurm.sh asks Slurm to send first.
    """
    requests: list[int] = []
    with contextlib.ExitStack() as undo:
        for signum in STOP_SIGNALS if config.checkpoint_dir else ():
            before = signal.signal(signum, lambda number, frame: requests.append(number))
            undo.callback(signal.signal, signum, before or signal.SIG_DFL)
        yield requests


def agree(
    losses: Sequence[torch.Tensor | None], requests: list[int], steps_done: int, device: torch.device, reduce: Reduce
) -> int:
    """One sum over the ranks tells all of them whether any has lost its loss or was asked to stop.

    losses: of the last steps, scalars on the device, or None on ranks without one. requests: signals that this rank
    was sent. Returns the signal to obey, or 0. Raises Diverged on every rank, with the first bad step.
    """
    news = torch.zeros(len(losses) + 1, dtype=torch.float64, device=device)
    if losses and losses[0] is not None:
        news[:-1] = ~torch.stack(losses).isfinite()
    news[-1] = bool(requests)
    *bad, stop = reduce(news).tolist()
    if any(bad):
        first = steps_done - len(bad) + next(n for n, value in enumerate(bad) if value)
        raise Diverged(f"the loss was not finite at step {first} (counted from 0); lower --lr or check the data")
    return (requests or [signal.SIGTERM])[0] if stop else 0


def gather(values: Sequence[float], worker: Worker, reduce: Reduce) -> torch.Tensor:
    """Every rank's values on every rank: float64 (ranks, values)."""
    table = torch.zeros(worker.world_size, len(values), dtype=torch.float64, device=worker.device)
    table[worker.rank] = torch.tensor(values, dtype=torch.float64)
    return reduce(table)


def count_devices(devices: Sequence[torch.device], worker: Worker, reduce: Reduce) -> int:
    """Among how many the work is divided: the distinct GPUs of all ranks, or on CPUs the ranks.

    devices: what this rank computes on, the same number on each rank.
    """
    return len(gather(identities(devices, worker), worker, reduce).unique())


def identities(devices: Sequence[torch.device], worker: Worker) -> list[int]:
    """Numbers that tell devices apart over all ranks: GPUs by the vendor's UUID, since two nodes, or two Slurm tasks,
    have a GPU 0 each, which can be the same one; on CPUs the rank."""
    if worker.device.type != "cuda":
        return [worker.rank]
    names = [str(torch.cuda.get_device_properties(device).uuid) for device in devices]
    return [int(hashlib.sha256(name.encode()).hexdigest()[:EXACT_HEX_DIGITS], 16) for name in names]
