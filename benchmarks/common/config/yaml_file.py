"""A YAML file of `name: value` lines. Each value must have the type that belongs to its name."""

import contextlib
import difflib
import re
import typing
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import yaml

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_regular_file

MAX_YAML_BYTES = 10**6
NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
# How an unquoted value of each type must look. YAML 1.1 would also read 010 as 8 and 1:30 as 90.
UNQUOTED_FORMS = {
    "tag:yaml.org,2002:bool": (re.compile("true|false", re.IGNORECASE), "true or false"),
    "tag:yaml.org,2002:int": (re.compile(r"[-+]?(0|[1-9][0-9]*)"), "a decimal number such as 8"),
    "tag:yaml.org,2002:float": (NUMBER, "a decimal number such as 0.5 or 1e-4"),
}


class StrictLoader(yaml.SafeLoader):
    """PyYAML's loader. It refuses duplicate names, and unquoted values that YAML 1.1 reads in a surprising way."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                first = lines[key.value]
                raise yaml.YAMLError(
                    f"line {line}: {key.value[:60]} is already set in line {first}; remove one of them"
                )
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        pattern, instead = UNQUOTED_FORMS.get(node.tag, (None, ""))
        if pattern and isinstance(node, yaml.ScalarNode) and not pattern.fullmatch(node.value):
            value, line = super().construct_object(node, deep), node.start_mark.line + 1
            raise yaml.YAMLError(
                f"line {line}: {node.value[:60]} would be read as {_shown(value)}; write {instead}, or text in quotes"
            )
        return super().construct_object(node, deep)


def read_values(path: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the file, by name.

    types: the type of each name that the file may have. A union is of a type and some choices.
    Raises UserError for a file that cannot be read, an unknown name (with the nearest one) and a value of another type.
    """
    try:
        values = yaml.load(read_regular_file(path, MAX_YAML_BYTES).decode("utf-8"), StrictLoader) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML lets the last three escape: from `!!int ""`, `!!bool x`, `!!timestamp x`, and deep nesting.
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
        if value in choices:
            return value
    if typing.get_origin(expected) is Literal:
        choices = typing.get_args(expected)
        if value in choices:
            return value
        near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"{path}: {name} is {_shown(value)}; {hint}It takes {', '.join(choices)}")
    if expected is float and type(value) in (int, str) and NUMBER.fullmatch(str(value)):  # YAML 1.1 reads 1e-4 as text
        with contextlib.suppress(OverflowError):
            return float(value)
    if type(value) is not expected:
        kinds = ", or ".join([f"of type {expected.__name__}", *choices])
        raise UserError(f"{path}: {name} is {_shown(value)}, but must be {kinds}")
    return value


def _shown(value: object) -> str:
    """A value for a message: not what is in a list, since a few YAML aliases can describe gigabytes."""
    return f"a {type(value).__name__}" if isinstance(value, (list, dict, set, tuple)) else repr(value)[:60]
