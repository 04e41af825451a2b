"""Words after `--`, and paths that were typed in another folder than the checkout's."""

from collections.abc import Sequence
from pathlib import Path

PATH_FLAGS = ("--config", "--data", "--checkpoint-dir", "--checkpoint_dir")


def flags_from_folder(flags: Sequence[str], folder: Path) -> list[str]:
    """With paths that hold in every folder."""
    made = []
    for before, flag in zip(["", *flags], flags, strict=False):
        name, equals, value = flag.partition("=")
        if before in PATH_FLAGS and flag:
            flag = str(folder / flag)
        elif name in PATH_FLAGS and equals and value:
            flag = f"{name}={folder / value}"
        made.append(flag)
    return made


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words before the first `--`, and after it."""
    at = [*words, "--"].index("--")
    return [*words[:at]], [*words[at + 1 :]]
