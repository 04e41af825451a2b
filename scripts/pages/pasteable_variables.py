"""Which of the variables that a set recorded may stand in a command that people paste.

    kept, left_out = pasteable_variables({"NPROC": "2", "CONTAINER": "docker://x"})  # {"NPROC": "2"}, ["CONTAINER"]

A set may come from somebody else. Numbers, options of the training and a configuration of this repository may be
pasted. What chooses an image, a host, a port, a partition, or a path is left out: whoever pastes the command has to
choose it. Quoting alone does not help, since the command is meant to use the value. Needs no torch.
"""

import re
import shlex
from collections.abc import Mapping

from benchmarks.common.config.config import FIELDS
from benchmarks.common.store.safe_names import SAFE_NAME

COUNTS = (
    "NPROC", "THREADS_PER_RANK", "TIMEOUT", "NODES", "TASKS_PER_NODE", "GPUS_PER_NODE", "CPUS_PER_TASK", "TIME",
)  # fmt: skip
COUNT = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?", re.ASCII)
CONFIG_FILE = re.compile(r"configs/[A-Za-z0-9_][\w-]*\.yaml", re.ASCII)
# Fields that name a path, load a checkpoint, or listen on a network.
NOT_PASTED = ("config", "data", "checkpoint_dir", "resume", "resume_from", "resume_anyway", "rendezvous")


def pasteable_variables(recorded: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """(the variables that may be pasted, the names of the others that were set, flags of ARGS among them)."""
    kept: dict[str, str] = {}
    left_out: list[str] = []
    for name, value in recorded.items():
        text = str(value)
        if name == "ARGS":
            flags, others = pasteable_flags(text)
            if flags:
                kept |= {name: shlex.join(flags)}
            left_out += others
        elif (name in COUNTS and COUNT.fullmatch(text)) or (name == "CONFIG" and CONFIG_FILE.fullmatch(text)):
            kept[name] = text
        elif text:
            left_out.append(name)
    return kept, left_out


def words_of_args(text: str) -> list[str]:
    """The words of ARGS as bash splits them; at blanks only where a quote does not end."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def pasteable_flags(text: str) -> tuple[list[str], list[str]]:
    """(the flags of ARGS that may be pasted, with their values; the others by name)."""
    words = words_of_args(text)
    kept: list[str] = []
    left_out: list[str] = []
    while words:
        count = next((place for place, word in enumerate(words[1:], 1) if word.startswith("--")), len(words))
        flag, words = words[:count], words[count:]
        name, equals_sign, value = flag[0].removeprefix("--").partition("=")
        values = [value] * bool(equals_sign) + flag[1:]
        field = name.removeprefix("no-").replace("-", "_")
        known = flag[0].startswith("--") and field in FIELDS and field not in NOT_PASTED
        if known and all(SAFE_NAME.fullmatch(each) for each in values):
            kept += flag
        else:
            named = flag[0].startswith("--") and SAFE_NAME.fullmatch(name)
            left_out.append(f"--{name}" if named else "a part of ARGS")
    return kept, left_out
