"""Paths that a user typed, as a set may publish them: without the folders of the user.

    public_path("../acme/photos")                         # photos
    public_path("configs/smoke.yaml")                     # configs/smoke.yaml
    public_arguments("--data=acme/photos --lr 0.1")       # --data=photos --lr 0.1

An absolute path can be told from other words wherever it stands, and so can one that begins with ./ or ../. Of other
relative paths only the field or the option says that they are paths. Needs no torch.
"""

import re
import shlex
from pathlib import Path

from scripts.pages.pasteable_variables import words_of_args

PATH_FIELDS = ("config", "data", "checkpoint_dir")
"""The fields of the configuration that name a file or a folder."""
OF_THE_CHECKOUT = ("configs", "data", "results")
"""Folders that every checkout has. What lies directly in one is a word of the suite, such as data/imagenet-mini."""
# Begins with ./ or ../, also in -I../x of a compiler; ./bench is the suite's own command.
DOTTED_PATH = re.compile(r"(?:(?<![\w.~/-])|(?<=\s-[A-Za-z]))(?!\./bench\b)\.\.?/(?:[\w.@+~-]+/)*[\w.@+~-]*")


def public_path(text: str) -> str:
    """The last name of a path. A path of two names stays as it is where the first is one of OF_THE_CHECKOUT."""
    if "/" not in text:
        return text
    parts = Path(text).parts
    if len(parts) == 2 and parts[0] in OF_THE_CHECKOUT:
        return "/".join(parts)
    return Path(text).name


def public_arguments(text: str) -> str:
    """Flags as the user typed them, each path in them as public_path makes it. Quotes stay where nothing changes."""
    words = words_of_args(text)
    public = [_public_word(word) for word in words]
    return text if public == words else shlex.join(public)


def _public_word(word: str) -> str:
    flag, equals_sign, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{flag}{equals_sign}{public_path(value)}"


def without_dotted_paths(text: str) -> str:
    """Any text, in which each path that begins with ./ or ../ is as public_path makes it."""
    return DOTTED_PATH.sub(lambda found: public_path(found[0]) or ".", text)
