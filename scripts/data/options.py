"""Options of the commands that make, check and pack images. Imports nothing heavy: --help reads them."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scripts.shared.option_types import OptionalPath

OptionalPackKind = Annotated[
    Literal["full", "256", "jpeg256"] | None, tyro.conf.arg(metavar="{full,256,jpeg256}", help_behavior_hint="")
]


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
    """Folder that gets train/ and val/, or with --pack packed/."""
    classes: OptionalPath = None
    """Names of the classes (ImageNet: the wnids), one a line, in the order of the labels; where the source has none."""
    pack: OptionalPackKind = None
    """Pack the images into TO/packed as they come, and write no folders. What is kept of an image: as in data pack."""


@dataclasses.dataclass(frozen=True)
class PackOptions:
    data: str
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."""
    pack: Literal["full", "256", "jpeg256"] = "full"
    """What is kept of an image."""
