"""The files through which torchrun and the ranks of one run find one another. Needs no torch.

from scripts.runner.rendezvous import remove_rendezvous

launchers/lib.sh makes their folder, TMPDIR/ranks.<run_id>.<random letters>. What writes the row of the run removes it.
"""

import contextlib
import glob
import os
import stat
import tempfile
from pathlib import Path

FILES = ("ranks", "torchrun")


def remove_rendezvous(run_id: str) -> None:
    """Remove the rendezvous folders of a run that has ended; folders of other users stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"ranks.{glob.escape(run_id)}.*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
