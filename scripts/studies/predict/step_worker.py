"""A process that trains by the suite's own loop, a window whenever it is told to: what `make predict-check` times.

    from scripts.studies.predict.step_worker import main        # scripts.studies.predict.measure starts it

Each line on stdin is a case: {"module": of benchmarks, "flags": [...], "meeting": file, "profile": yes or no}. The
answer is its gradients, if they were asked for; then, before each window, `ready`: a line begins it, `stop` ends the
case.
"""

import dataclasses
import functools
import importlib
import json
import os
import sys

import torch.distributed as dist

from benchmarks.common.config.config import load_config
from benchmarks.common.train.clock import Clock
from benchmarks.common.train.engine import fit
from scripts.studies.predict.gradient_times import profile


class Enough(Exception):
    """No more windows of this case are wanted."""


class OnCall(Clock):
    """A clock whose windows begin when a line comes."""

    def start(self):
        say("ready")
        if (line := sys.stdin.readline().strip()) == "stop" or not line:
            raise Enough
        super().start()

    def stop(self):
        seconds, step_ms = super().stop()
        say("window", {"step_ms": step_ms})
        return seconds, step_ms


def say(word: str, what: dict | None = None) -> None:
    print(f"{word}: {json.dumps(what) if what else ''}", flush=True)


def own_fit(config, worker, *, wanted: bool, **parts) -> None:
    """The suite's fit with windows on call; before it the gradients, where they are wanted."""
    if wanted:
        say("profile", dataclasses.asdict(profile(config, len(parts["train"].classes), worker.device)))
    fit(config, worker, **parts, make_clock=OnCall)


def main() -> None:
    say("here")
    while line := sys.stdin.readline():
        case = json.loads(line)
        os.environ["RENDEZVOUS_FILE"] = case["meeting"]
        script = importlib.import_module(f"benchmarks.{case['module']}")
        try:
            script.main(load_config(case["flags"]), fit=functools.partial(own_fit, wanted=case["profile"]))
        except Enough:
            dist.destroy_process_group()
