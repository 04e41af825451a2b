"""Where this checkout lies, and how folders with checkouts of other commits are called. Standard library alone."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds benchmarks/, scripts/ and results/."""
CHECKOUTS_PREFIX = ".worktrees-"
"""How the name of a folder in results/ begins that has checkouts of other commits. All nodes of a job see it."""
CHECKOUTS_NAME = re.compile(rf"{re.escape(CHECKOUTS_PREFIX)}(?P<pid>\d+)@(?P<space>.+)-[^-]+")
"""Its whole name: the process that made it, its process_space, and what makes the name its own."""


def own_checkouts_prefix() -> str:
    """How the names of this process's folders with checkouts begin."""
    return f"{CHECKOUTS_PREFIX}{os.getpid()}@{process_space()}-"


def process_space() -> str:
    """Within what a process number names one process: the host and its PID namespace. A container may have its host's
    name, but its own process numbers."""
    return f"{os.uname().nodename}.{os.stat('/proc/self/ns/pid').st_ino}"
