"""One command of ./bench: parses its options, makes typed paths absolute, calls its function."""

import contextlib
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from benchmarks.common.errors import UserError
from benchmarks.common.files import guard_output
from scripts.cli.command_table import Command, find_command
from scripts.data.options import MakeDatasetOptions
from scripts.shared.command_line import flags_from_folder, split_at_dashes
from scripts.shared.external import FOLDER_VARIABLE
from scripts.shared.programs import exit_code
from scripts.shared.repository import ROOT

PATH_FIELDS = ("data", "config")
"""Options that are paths, though their type is text."""
TYRO = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)


def main(words: list[str], from_folder: Path) -> int:
    """Returns the exit code. from_folder: where the command was typed."""
    guard_output()
    command, rest = find_command(words)
    assert command is not None  # start.py has refused other words
    typed, flags = split_at_dashes(rest)
    flags = flags_from_folder(flags, from_folder)
    if flags and not command.flags:
        print(f"error: ./bench {command.words} takes nothing after --, such as {flags[0]}", file=sys.stderr)
        return 2
    options = options_from_folder(parse(command, typed), from_folder)
    found: dict[str, Any] = {}
    results = [found] if hasattr(options, "json") else []
    writes = "the set" if hasattr(options, "results") else ""
    with contextlib.redirect_stdout(sys.stderr if getattr(options, "json", False) else sys.stdout):
        code = exit_code(lambda: act(command, options, flags, *results), errors=(UserError, ValueError), writes=writes)
    if getattr(options, "json", False) and found:
        print(json.dumps({"command": command.words, "exit_code": code} | found, default=str))
    return code


def act(command: Command, options: Any, flags: Sequence[str], *results: dict[str, Any]) -> int | None:
    """With imagenet-mini where no data set is named, and with the folder of --strategy-dir."""
    if hasattr(options, "strategy_dir"):  # it chooses code to run: only this option sets it
        os.environ.pop(FOLDER_VARIABLE, None)
        if options.strategy_dir:
            os.environ[FOLDER_VARIABLE] = str(options.strategy_dir)
    if getattr(options, "data", "") is None:
        from scripts.data import mini

        mini.main(MakeDatasetOptions())
    return named_below_scripts(command.action)(options, *([flags] if command.flags else []), *results)


def named_below_scripts(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(f"scripts.{module}"), name)


def describe(command: Command) -> str:
    lines = [f"{command.summary[0].upper()}{command.summary[1:]}.", f"Example: ./bench {command.example}"]
    return "\n\n".join([*lines, *([f"After --: {command.flags}."] if command.flags else [])])


def parse(command: Command, words: Sequence[str]) -> Any:
    return tyro.cli(
        named_below_scripts(command.options),
        prog=f"./bench {command.words}",
        description=describe(command),
        args=words,
        config=TYRO,
    )


def options_from_folder(options: Any, folder: Path) -> Any:
    """With absolute paths for what was typed: a default is a path in the checkout."""
    if folder == ROOT:
        return options
    changed = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value and value is not field.default:
            changed[field.name] = _from_folder(value, folder, field.name in PATH_FIELDS)
    return dataclasses.replace(options, **changed)


def _from_folder(value: Any, folder: Path, text_is_path: bool) -> Any:
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple):
        return tuple(_from_folder(each, folder, text_is_path) for each in value)
    if isinstance(value, str) and text_is_path:
        return str(folder / value)
    if isinstance(value, str) and value.startswith(("config:", "python:")):  # of ab
        kind, _, path = value.partition(":")
        return f"{kind}:{folder / path if '/' in path or kind == 'config' else path}"
    return value
