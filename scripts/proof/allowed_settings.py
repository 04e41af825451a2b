"""Which settings of a published set may start a run: numbers, words and truth values only.

    if why := why_not_allowed(run["asked"], run["met"]): ...

A set may come from somebody else. Its values reach launchers as variables, as a configuration and as names of folders.
There a path would choose a file, a flag would change a command, and bash's arithmetic would run a command. Needs no
torch.
"""

import itertools
import re
import typing
from collections.abc import Iterator
from typing import Any, Literal

from benchmarks.common.config.config import FIELD_TYPES
from benchmarks.common.store.safe_names import SAFE_NAME

CHOSEN_BY_USER = ("CONTAINER", "PARTITION")  # where runs happen
CLUSTER_COUNTS = ("gpus_per_node", "cpus_per_task")  # bash computes with them
REPLACED = ("data", "checkpoint_dir")  # reproduce sets its own
LARGEST_COUNT = 10**6  # of ranks, nodes, threads
DEVICES = ("cpu", "cuda")


def why_not_allowed(requested: dict, resolved: dict) -> str:
    """Why no run may be started with these settings, which are the two halves of a run's; '' where one may."""
    return next(itertools.chain(_problems_of_requested(requested), _problems_of_resolved(resolved)), "")


def _problems_of_requested(requested: dict) -> Iterator[str]:
    for name in ("ranks", "nodes", "threads_per_rank"):
        if not _is_count(requested[name]):
            yield f"{name} is {short_repr(requested[name])}, which is no number from 1 to {LARGEST_COUNT}"
    if requested["ranks"] % requested["nodes"]:
        yield f"{requested['ranks']} ranks are not a multiple of {requested['nodes']} nodes"
    if not requested["fingerprint"] and requested.get("loader") != "synthetic":
        yield "it read images, but the fingerprint of the images is empty"
    if requested.get("rendezvous", "file") != "file":
        yield f"rendezvous is {short_repr(requested['rendezvous'])}, by which it would listen on every network"
    for name, value in requested.items():
        if not SAFE_NAME.fullmatch(name):
            yield f"{short_repr(name)} is no name of a setting"
        elif name == "config" or name in (*REPLACED, *map(str.lower, CHOSEN_BY_USER)):
            if not isinstance(value, str) or value != one_line(value):
                yield f"{name} is {short_repr(value)}, which is no line of text"
        elif name == "seeds":
            if not isinstance(value, list) or not all(type(each) is int for each in value):
                yield f"seeds is {short_repr(value)}, which is no list of numbers"
        elif name in CLUSTER_COUNTS:
            if not re.fullmatch(r"[0-9]{1,6}", str(value), re.ASCII):
                yield f"{name} is {short_repr(value)}, which is no number"
        elif not _is_value(name, value):
            yield f"{name} is {short_repr(value)}, which is no value of this setting"


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _is_value(name: str, value: object) -> bool:
    """Whether it is a number, a truth value or one word, and of the field's type where this checkout has the field.

    The set's commit checks which words a field takes.
    """
    if isinstance(value, str) and value and not SAFE_NAME.fullmatch(value):
        return False
    allowed = _allowed_types(FIELD_TYPES[name]) if name in FIELD_TYPES else {str, int, float, bool, type(None)}
    return type(value) in allowed


def _allowed_types(annotation: Any) -> set[type]:
    if typing.get_origin(annotation) is Literal:
        return {str}
    if parts := typing.get_args(annotation):
        return set().union(*map(_allowed_types, parts))
    return {int, float} if annotation is float else {annotation}


def _problems_of_resolved(resolved: dict) -> Iterator[str]:
    if resolved.get("device", "cpu") not in DEVICES:
        yield f"device is {short_repr(resolved['device'])}, which is none of {', '.join(DEVICES)}"
    if not isinstance(resolved.get("device_name", ""), str):
        yield f"device_name is {short_repr(resolved['device_name'])}, which is no text"
    if not _is_count(resolved.get("world_size", 1)):
        yield f"world_size is {short_repr(resolved['world_size'])}, which is no number from 1 to {LARGEST_COUNT}"


def one_line(value: object) -> str:
    """Text of one line without control characters; '' for anything else."""
    return value if isinstance(value, str) and value.isprintable() else ""


def short_repr(value: object) -> str:
    """A value for a message: ASCII, and short."""
    return ascii(value)[:60]
