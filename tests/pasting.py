"""What a printed command does where somebody pastes it: bash and make are real."""

import subprocess
from pathlib import Path

from support import environment

EVIL = """x' "y" $(shell touch ran) $$(touch ran) `touch ran` ; touch ran # \\ ${HOME} $(touch ran) %s é !!"""
MAKEFILE = ".DEFAULT:\n\t@env -0 >$@.said\n"


def paste(line: str, folder: Path) -> dict[str, dict[str, str]]:
    """Run a printed line in bash, beside a Makefile that knows every target; returns each one's environment.

    Fails where anything of EVIL ran.
    """
    (folder / "Makefile").write_text(MAKEFILE)
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment(ARGS=None), capture_output=True, text=True)
    assert [path.name for path in folder.rglob("ran")] == [], f"{line} ran something: {done.stderr}"
    return {
        path.stem: dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
        for path in folder.glob("*.said")
    }
