"""A random word in the user's cache, by which half a pack or half an import is known as this user's own.

    own_token(path, "packing")       # kept from the start of the work on `path` until it is finished
    forget_token(path, "packing")

What lies beside the images may have come with them, in an archive: a journal there is gone on with only where it holds
this word. So nobody else may read the word, and it does not outlive the work: whoever learns it later has no use of it.
"""

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from benchmarks.common.data.listing import cache_path
from benchmarks.common.system.files import open_regular_file, read_open_file, replace_atomically

TOKEN = re.compile(r"[0-9a-f]{64}", re.ASCII)
TOKEN_BYTES = 64
PRIVATE = 0o600


def own_token(path: Path, work: str) -> str:
    """The word of this user's work on `path`: the one that is kept, else a new one.

    Without a cache, or where its file system keeps no modes, each start has another word, and begins anew. Whoever
    calls it holds the lock of that work.
    """
    if kept := kept_token(path, work):
        return kept
    token, file = secrets.token_hex(), cache_path(path, work)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_atomically(file, lambda new: new.write(token.encode()), mode=PRIVATE)
    return token


def kept_token(path: Path, work: str) -> str:
    """The word that is kept; '' where none is, or where another user could have read or put it there."""
    file = cache_path(path, work)
    with contextlib.suppress(OSError, ValueError):
        opened = open_regular_file(file, os.O_NOFOLLOW)
        status = os.fstat(opened.fileno())
        text = read_open_file(opened, TOKEN_BYTES, str(file)).decode()
        is_private = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == PRIVATE and status.st_nlink == 1
        if is_private and TOKEN.fullmatch(text):
            return text
    return ""


def forget_token(path: Path, work: str) -> None:
    """Remove the word: the work is finished, or begins."""
    with contextlib.suppress(OSError):
        cache_path(path, work).unlink()
