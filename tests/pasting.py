"""What a printed command does where somebody pastes it: bash and make are real."""

import subprocess
from pathlib import Path

from support import environment, put

EVIL = """x' "y" $(shell touch ran) $$(touch ran) `touch ran` ; touch ran # \\ ${HOME} $(touch ran) %s é !!"""
MAKEFILE = ".DEFAULT:\n\t@env -0 >$@.said\n"


BENCH = 'printf "%s\\0" "$@" >bench.words'


def paste(line: str, folder: Path) -> dict[str, dict[str, str]]:
    """Run a printed line in bash, beside a Makefile that knows every target, and a ./bench.

    Returns the environment of each target, and the words of ./bench by their numbers, as `bench`.

    Fails where anything of EVIL ran.
    """
    (folder / "Makefile").write_text(MAKEFILE)
    put(folder, bench=BENCH)
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment(ARGS=None), capture_output=True, text=True)
    assert [path.name for path in folder.rglob("ran")] == [], f"{line} ran something: {done.stderr}"
    words = (folder / "bench.words").read_text().split("\0") if (folder / "bench.words").exists() else []
    output = {"bench": {str(place): word for place, word in enumerate(words)}} if words else {}
    return output | {
        path.stem: dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
        for path in folder.glob("*.said")
    }
