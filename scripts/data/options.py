"""Options of the commands that make, check and pack images. Imports nothing heavy: --help reads them."""

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

from scripts.shared.option_types import OptionalPath


@dataclasses.dataclass(frozen=True)
class MakeDatasetOptions:
    output: Path = Path("data/imagenet-mini")
    """The folder to make."""


@dataclasses.dataclass(frozen=True)
class CheckDataOptions:
    data: str
    """The folder that holds train/ and val/."""


@dataclasses.dataclass(frozen=True)
class ImportOptions:
    source: tyro.conf.Positional[Path]
    """Folder with Parquet files, WebDataset's tars, ILSVRC2012's tars and devkit, or a val/ without class folders."""
    to: tyro.conf.Positional[Path]
    """Folder that gets train/ and val/."""
    classes: OptionalPath = None
    """Names of the classes (ImageNet: the wnids), one a line, in the order of the labels; where the source has none."""


@dataclasses.dataclass(frozen=True)
class PackOptions:
    data: str
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."""
    pack: Literal["full", "256", "jpeg256"] = "full"
    """What is kept of an image."""
