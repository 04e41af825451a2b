"""A value of a sweep, as flags of the configuration."""

import difflib
import typing

from benchmarks.common.config import FIELD_TYPES
from benchmarks.common.errors import UserError

BOOLEAN_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def value_flags(key: str, text: str) -> list[str]:
    """The flags that give field `key` the value `text`. Raises UserError where it is not of the field's type."""
    flag, field_type = f"--{key.replace('_', '-')}", FIELD_TYPES[key]
    if typing.get_origin(field_type) is typing.Union and text != "auto":
        field_type = typing.get_args(field_type)[0]
    if field_type is bool:
        if text.lower() not in BOOLEAN_WORDS:
            raise UserError(f"--values: {key} is yes or no, not {text!r}")
        return [flag if BOOLEAN_WORDS[text.lower()] else f"--no-{flag[2:]}"]
    if typing.get_origin(field_type) is typing.Literal:
        choices = typing.get_args(field_type)
        if text not in choices:
            near = difflib.get_close_matches(text, choices, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"--values: {key} is {text!r}; {hint}Choose one of {', '.join(choices)}")
    elif field_type in (int, float):
        try:
            field_type(text)
        except ValueError:
            kind = "whole number" if field_type is int else "number"
            raise UserError(f"--values: {key} is {text!r}, but must be a {kind}") from None
    return [flag, text]
