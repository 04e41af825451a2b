"""Configuration fields by the names that people type, and values of theirs as flags: what a sweep is made of."""

import difflib
import typing

from benchmarks.common.config import FIELDS, TYPES
from benchmarks.common.errors import UserError

BOOLEANS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def find_key(text: str) -> str:
    """The configuration field that `text` names, with - or _. Raises UserError with the nearest name."""
    key = text.strip().lstrip("-").replace("-", "_")
    if key in FIELDS:
        return key
    near = difflib.get_close_matches(key, FIELDS, n=1, cutoff=0.5)
    raise UserError(f"no option {text!r}; {f'did you mean {near[0]}?' if near else '`make flags` lists them'}")


def value_flags(key: str, text: str) -> list[str]:
    """The flags that give field `key` the value `text`. Raises UserError where it is not of the field's type."""
    flag, wanted = f"--{key.replace('_', '-')}", TYPES[key]
    if wanted is bool:
        if text.lower() not in BOOLEANS:
            raise UserError(f"VALUES: {key} takes yes and no, not {text!r}")
        return [flag if BOOLEANS[text.lower()] else f"--no-{flag[2:]}"]
    if typing.get_origin(wanted) is typing.Literal:
        choices = typing.get_args(wanted)
        if text not in choices:
            near = difflib.get_close_matches(text, choices, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"VALUES: {key} is {text!r}; {hint}It takes {', '.join(choices)}")
    elif wanted in (int, float):
        try:
            wanted(text)
        except ValueError:
            kind = "whole number" if wanted is int else "number"
            raise UserError(f"VALUES: {key} is {text!r}, but must be a {kind}") from None
    return [flag, text]


def flags_in(options_cell: str) -> dict[str, str]:
    """Field and value of each flag of a runs.csv row, the last one of a field as on a command line; yes and no
    for a boolean's --x and --no-x."""
    words, found = options_cell.removeprefix("'").split(), {}
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        name, given, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not given and following.startswith("--"):
            name, value = (name[3:], "no") if name.startswith("no_") else (name, "yes")
        elif not given:
            value = following
        if word.startswith("--"):
            found[name] = value
    return found
