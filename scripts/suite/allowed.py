"""What of a published set's settings a run may be started by: numbers, words and truth values, and nothing else.

    if why := why_not(run["asked"], run["met"]): ...

A set may come from somebody else. Its values reach launchers as variables, a configuration and names of folders, where
a path, a flag or bash's arithmetic would do more than be a value. Needs no torch.
"""

import re
import typing
from collections.abc import Iterator
from typing import Literal

from benchmarks.common.config import TYPES
from scripts.analysis.inside import WORD

USERS = ("CONTAINER", "PARTITION")  # where runs happen is for the user to say
NUMBERS = ("gpus_per_node", "cpus_per_task")  # variables of a cluster, which bash computes with
REPLACED = ("data", "checkpoint_dir")  # reproduce has others in their place
MOST = 10**6  # ranks, nodes, threads
DEVICES = ("cpu", "cuda")


def why_not(asked: dict, met: dict) -> str:
    """What in the two halves of a run's settings it may not be started by; '' where there is nothing."""
    return next(iter([*_of_asked(asked), *_of_met(asked, met)]), "")


def _of_asked(asked: dict) -> Iterator[str]:
    for name in ("ranks", "nodes", "threads_per_rank"):
        if type(asked[name]) is not int or asked[name] > MOST:
            yield f"{name} is {shown(asked[name])}, which is no number of {name}"
    if asked["ranks"] % asked["nodes"]:
        yield f"{asked['ranks']} ranks do not divide by {asked['nodes']} nodes"
    if not asked["fingerprint"] and asked.get("loader") != "synthetic":
        yield "it read images without saying which (fingerprint)"
    for name, value in asked.items():
        if not WORD.fullmatch(name):
            yield f"{shown(name)} is no name of a setting"
        elif name == "config" or name in [each.lower() for each in USERS]:
            if not isinstance(value, str) or value != line(value):
                yield f"{name} is {shown(value)}, which is no line of text"
        elif name == "seeds":
            if not isinstance(value, list) or not all(type(each) is int for each in value):
                yield f"seeds is {shown(value)}, which is no list of numbers"
        elif name in NUMBERS:
            if not re.fullmatch(r"[0-9]{1,6}", str(value), re.ASCII):
                yield f"{name} is {shown(value)}, which is no number"
        elif name not in REPLACED and not _is_value(name, value):
            yield f"{name} is {shown(value)}, which is no value of it"


def _is_value(name: str, value: object) -> bool:
    """Whether it is a number, a truth value or one word, and of the field's type where this checkout has the field.
    Which words a field takes is for its commit to say."""
    if isinstance(value, str) and value and not WORD.fullmatch(value):
        return False
    kinds = _types(TYPES[name]) if name in TYPES else {str, int, float, bool, type(None)}
    return type(value) in kinds


def _types(wanted: object) -> set[type]:
    if typing.get_origin(wanted) is Literal:
        return {str}
    if parts := typing.get_args(wanted):
        return set().union(*map(_types, parts))
    return {int, float} if wanted is float else {wanted}


def _of_met(asked: dict, met: dict) -> Iterator[str]:
    if met.get("device", "cpu") not in DEVICES:
        yield f"device is {shown(met['device'])}, which is none of {', '.join(DEVICES)}"
    if not isinstance(met.get("device_name", ""), str):
        yield f"device_name is {shown(met['device_name'])}, which is no text"
    world_size = met.get("world_size", 1)
    if type(world_size) is not int or not 0 < world_size <= MOST:
        yield f"world_size is {shown(world_size)}, which is no number of ranks"


def line(value: object) -> str:
    """Text of one line without control characters; '' for anything else."""
    return value if isinstance(value, str) and value.isprintable() else ""


def shown(value: object) -> str:
    """A value for a message: ASCII, and short."""
    return ascii(value)[:60]
