"""The files through which torchrun and the ranks of one run find one another. Needs no torch.

launchers/lib.sh makes their folder, TMPDIR/ranks.<run_id>.<device>-<inode>.<random letters>, with the numbers of the
run's folder: runs of two sets that begin in the same second have one run_id. What writes the row of the run removes it.
"""

import contextlib
import glob
import os
import stat
import tempfile
from pathlib import Path

FILES = ("ranks", "torchrun")


def remove_rendezvous(run_dir: Path) -> None:
    """Remove the rendezvous folders of a run that has ended; those of other users and of other sets' runs stay.

    run_dir: the run's folder in its set, which must be there.
    """
    status = run_dir.stat()
    name = f"ranks.{glob.escape(run_dir.name)}.{status.st_dev}-{status.st_ino}.*"
    for folder in Path(tempfile.gettempdir()).glob(name):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
