"""Where this checkout lies, and names of checkouts of other commits. Standard library alone."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKOUTS_PREFIX = ".worktrees-"
"""In results/."""
CHECKOUTS_NAME = re.compile(rf"{re.escape(CHECKOUTS_PREFIX)}(?P<pid>\d+)@(?P<space>.+)-[^-]+")


def own_checkouts_prefix() -> str:
    return f"{CHECKOUTS_PREFIX}{os.getpid()}@{process_space()}-"


def process_space() -> str:
    """Host and PID namespace: a container may have its host's name, but its own process numbers."""
    return f"{os.uname().nodename}.{os.stat('/proc/self/ns/pid').st_ino}"
