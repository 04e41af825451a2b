"""Types of options. Imports nothing heavy: --help reads them."""

from pathlib import Path
from typing import Annotated

import tyro

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]
"""A path that may be left out: --help has PATH for it, not {None}|PATH."""
