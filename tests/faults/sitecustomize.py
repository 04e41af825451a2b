"""Plants a fault in a real run from outside: Python imports this file first where PYTHONPATH names its folder.

    FAULT="raise rank=1 step=3" PYTHONPATH=tests/faults launchers/ddp.sh

It wraps the `step` of the Strategy that engine.fit gets, so that the suite itself has no hook for its tests.
Without `rank` every rank is hit, without `step` the first step. RUN_DIR/fault-at is there from the fault on.

COLLECTIVES=folder has each rank note there what it asks of the others, a line each, before it asks.
"""

import contextlib
import dataclasses
import importlib.abc
import importlib.util
import io
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path


def plant(engine) -> None:
    """Wrap engine.fit by what FAULT says."""
    kind, *words = os.environ["FAULT"].split()
    text = {name: int(value) for name, value in (word.split("=") for word in words)}
    fit = engine.fit

    def faulty_fit(strategy, clock=None):
        steps = itertools.count()

        def faulty_step(images, target):
            n = next(steps)
            hit = text.get("rank") in (None, strategy.rank.rank) and n >= text.get("step", 0)
            if hit:
                tell_moment()
                if n == text.get("step", 0) or kind == "slow":
                    BEFORE.get(kind, lambda: None)()
            loss, output = strategy.step(images, target)
            return (loss * float(kind), output) if hit and kind in ("nan", "inf") else (loss, output)

        fit(dataclasses.replace(strategy, step=faulty_step), clock)

    engine.fit = faulty_fit
    if kind == "torn_save":
        tear_save(engine.torch, text["save"])


def tell_moment() -> None:
    if "RUN_DIR" in os.environ and not (moment := Path(os.environ["RUN_DIR"], "fault-at")).exists():
        moment.touch()


def raise_here():
    raise ArithmeticError("planted in this step")


def hang_here():
    time.sleep(3600)


def fill_disk():
    """Until not one page is left."""
    with contextlib.suppress(OSError), open(os.environ["FILL"], "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def tear_save(torch, number: int) -> None:
    """The `number`th checkpoint is cut in half by SIGKILL."""
    save, saves = torch.save, itertools.count(1)

    def torn_save(state, file):
        if next(saves) < number:
            return save(state, file)
        whole = io.BytesIO()
        save(state, whole)
        file.write(whole.getvalue()[: whole.tell() // 2])
        file.flush()
        tell_moment()
        os.kill(os.getpid(), signal.SIGKILL)

    torch.save = torn_save


def record_collectives(torch) -> None:
    """Every operation of a torch.distributed group, also those of DDP's C++, passes the dispatcher of this thread."""
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "c10d":
                name = function.overloadpacket.__name__.rstrip("_")
                given = args[1] if name == "gather" else args  # only one rank has a place for what is gathered
                tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
                note_collective(dist.get_rank(), name, tensors, args[2] if name in ("send", "recv") else None)
            return function(*args, **(kwargs or {}))

    Recorder().__enter__()


def record_horovod(mpi_ops) -> None:
    """Horovod's own, by the functions through which its others go. Its names are part of what must agree."""
    for kind in ("allreduce", "broadcast", "allgather", "reducescatter"):
        ask = getattr(mpi_ops, f"_{kind}_async")

        def asked(tensor, *args, ask=ask, kind=kind):
            name = next((arg for arg in args if isinstance(arg, str)), None)
            note_collective(int(os.environ["HOROVOD_RANK"]), f"{kind} {name}", [tensor])
            return ask(tensor, *args)

        setattr(mpi_ops, f"_{kind}_async", asked)


def note_collective(rank: int, name: str, tensors: list, peer: int | None = None) -> None:
    shapes = [[str(tensor.dtype), list(tensor.shape)] for tensor in tensors]
    with open(Path(os.environ["COLLECTIVES"], f"{rank}.jsonl"), "a") as file:
        file.write(json.dumps([name, shapes, peer]) + "\n")


BEFORE = {
    "raise": raise_here,
    "hang": hang_here,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "slow": lambda: time.sleep(float(os.environ.get("SLOW_S", "0.2"))),
    "fill": fill_disk,
}


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls plant(module) once a module has been imported."""

    def __init__(self, name: str, plant):
        self.name, self.plant = name, plant
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run_module = spec.loader.exec_module

        def exec_module(module):
            run_module(module)
            self.plant(module)

        spec.loader.exec_module = exec_module
        return spec


def after_engine(engine) -> None:
    if "FAULT" in os.environ:
        plant(engine)
    if "COLLECTIVES" in os.environ:
        record_collectives(engine.torch)


if "FAULT" in os.environ or "COLLECTIVES" in os.environ:
    AfterImport("benchmarks.common.engine", after_engine)
if "COLLECTIVES" in os.environ:
    AfterImport("horovod.torch.mpi_ops", record_horovod)
