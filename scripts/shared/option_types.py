"""Types of options, which --help shows without `(default: None)`. Imports nothing heavy."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
OptionalText = Annotated[str, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
Sets = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="SET [SET ...]", help_behavior_hint="")]
"""Folders of result sets."""
SetA = Annotated[Path, tyro.conf.arg(metavar="[A]")]
SetB = Annotated[Path | None, tyro.conf.arg(metavar="[B]", help_behavior_hint="")]
Strategies = Annotated[tuple[str, ...], tyro.conf.arg(metavar="[STRATEGY ...]", help_behavior_hint="")]
Values = Annotated[tuple[str, ...], tyro.conf.arg(metavar="VALUE [VALUE ...]", help_behavior_hint="")]
Variant = Annotated[str, tyro.conf.arg(metavar="VARIANT", help_behavior_hint="")]
"""What ./bench ab compares."""


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Of a command without options."""
