"""A YAML file of `name: value` lines, each checked against the type that the name has.

from benchmarks.common.yaml_file import read_values
"""

import contextlib
import difflib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml

from benchmarks.common.errors import UserError


def read_values(path: str, types: Mapping[str, object]) -> dict:
    """What the file holds, by name. types: of the names that it may have; a union is of a type and the word auto.

    Raises UserError for a file that cannot be read, an unknown name (with the nearest one) and a value of another type.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML lets the last three escape: from `!!int ""`, `!!bool x`, `!!timestamp x`, and deep nesting.
        raise UserError(f"{path} is not plain YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `name: value` lines, but holds a {type(values).__name__}")
    return {str(name): _checked(path, str(name), value, types) for name, value in values.items()}


def _checked(path: str, name: str, value: object, types: Mapping[str, object]) -> object:
    if name not in types:
        near = difflib.get_close_matches(name, types, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else "`make help` and --help list the fields"
        raise UserError(f"{path}: unknown key {name!r}; {hint}")
    wanted = types[name]
    if typing.get_origin(wanted) is typing.Union:
        if value == "auto":
            return value
        wanted = typing.get_args(wanted)[0]
    if typing.get_origin(wanted) is Literal:
        choices = typing.get_args(wanted)
        if value in choices:
            return value
        near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"{path}: {name} is {_shown(value)}; {hint}It takes {', '.join(choices)}")
    if wanted is float and type(value) in (int, str):  # YAML 1.1 reads 1e-4 as text
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    if type(value) is not wanted:
        raise UserError(f"{path}: {name} is {_shown(value)}, but must be of type {wanted.__name__}")
    return value


def _shown(value: object) -> str:
    """A value for a message: not what is in a list, since a few YAML aliases can describe gigabytes."""
    return f"a {type(value).__name__}" if isinstance(value, (list, dict, set, tuple)) else repr(value)[:60]
