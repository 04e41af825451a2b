"""Plants a fault in a real run from outside: Python imports this file first where PYTHONPATH names its folder.

    FAULT="raise rank=1 step=3" PYTHONPATH=tests/faults launchers/ddp.sh

It wraps the `step` of the Strategy that engine.fit gets, so that the suite itself has no hook for its tests.
Without `rank` every rank is hit, without `step` the first step. RUN_DIR/fault-at is there from the fault on.
"""

import contextlib
import dataclasses
import importlib.abc
import importlib.util
import io
import itertools
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


if "FAULT" in os.environ:
    AfterImport("benchmarks.common.engine", plant)
