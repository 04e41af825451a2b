"""A process that trains by the suite's own loop, a window for each line on stdin: the study predict-check times it.

measure.py starts it. Each line on stdin is a case:
{"module": of benchmarks, "flags": [...], "rendezvous_file": path, "profile": yes or no}.
The answer is the columns that its script adds to a row, such as its cut, and its gradients, where "profile" is true;
then, before each window, `ready`: a line begins it, `stop` ends the case.
"""

import dataclasses
import importlib
import json
import os
import sys

from benchmarks.common.config.config import load_config
from benchmarks.common.train.clock import Clock
from benchmarks.common.train.engine import fit
from scripts.studies.predict.gradient_times import profile


class Enough(Exception):
    """The line `stop` was read: the case has no more windows."""


class OnCallClock(Clock):
    """A clock whose windows begin when a line comes."""

    def start(self) -> None:
        say("ready")
        if (line := sys.stdin.readline().strip()) == "stop" or not line:
            raise Enough
        super().start()

    def stop(self) -> tuple[float, list[float]]:
        seconds, step_ms = super().stop()
        say("window", {"step_ms": step_ms})
        return seconds, step_ms


def say(word: str, what: dict | None = None) -> None:
    print(f"{word}: {json.dumps(what) if what else ''}", flush=True)


def main() -> None:
    say("here")
    while line := sys.stdin.readline():
        case = json.loads(line)
        os.environ["RENDEZVOUS_FILE"] = case["rendezvous_file"]
        script = importlib.import_module(f"benchmarks.{case['module']}")
        strategy = script.build(load_config(case["flags"]))
        device = strategy.context.device
        say("built", dict(strategy.columns))
        if case["profile"]:
            say("profile", dataclasses.asdict(profile(strategy.config, strategy.num_classes, device)))
        try:
            fit(strategy, OnCallClock(device))
        except Enough:
            strategy.shut_down()
