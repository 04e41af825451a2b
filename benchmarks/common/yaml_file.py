"""A YAML file of `name: value` lines. Each value must have the type that belongs to its name."""

import contextlib
import difflib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.common.errors import UserError


def read_values(path: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the file, by name.

    types: the type of each name that the file may have. A union is of a type and some choices.
    Raises UserError for a file that cannot be read, an unknown name (with the nearest one) and a value of another type.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that no calendar has
        raise UserError(f"{path} is not plain YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `name: value` lines, but holds a {type(values).__name__}")
    return {str(name): _checked(path, str(name), value, types) for name, value in values.items()}


def suggest_field(name: str, fields: Iterable[str]) -> str:
    """What to do about a misspelt field, for a message: the nearest name, or where the names are listed."""
    near = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else "./bench flags lists the fields"


def _checked(path: str, name: str, value: Any, types: Mapping[str, Any]) -> Any:
    if name not in types:
        raise UserError(f"{path}: unknown key {name!r}; {suggest_field(name, types)}")
    expected = types[name]
    choices: tuple[str, ...] = ()
    if typing.get_origin(expected) is typing.Union:
        expected, literal = typing.get_args(expected)
        choices = typing.get_args(literal)
    elif typing.get_origin(expected) is Literal:
        choices = typing.get_args(expected)
        if value not in choices:
            near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"{path}: {name} is {value!r}; {hint}It takes {', '.join(choices)}")
    if value in choices:
        return value
    if expected is float and type(value) in (int, str):  # YAML 1.1 reads 1e-4 as text
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    if type(value) is not expected:
        kinds = ", or ".join([f"of type {expected.__name__}", *choices])
        raise UserError(f"{path}: {name} is {value!r}, but must be {kinds}")
    return value
