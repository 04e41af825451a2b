"""Processes that are started once and work by turns: one line to each on its stdin, answers from its stdout.

    from scripts.studies.allreduce.worker_pool import Crew

What waits, waits for a line, and takes no time from the others.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.system.errors import UserError
from scripts.runner.launch_ranks import environment

ROOT = Path(__file__).resolve().parents[3]


def calling(module: str) -> list[str]:
    """The words that call main() of a module which is no command of its own."""
    return [sys.executable, "-c", f"from {module} import main; main()"]


class Crew:
    """`ranks` processes that call main() of one module, and meet in a file: a process group, or one that knows nobody.

    inside: the words before the command of each rank, such as those that put it into a network namespace.
    """

    def __init__(self, module: str, args: Sequence[str], ranks: int, threads: int, inside=(), interface: str = "lo"):
        self.folder = tempfile.TemporaryDirectory(prefix="crew-")
        self.meetings = 0
        env = environment(threads, interface) | {"RENDEZVOUS_FILE": self.new_meeting()}
        env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        self.ranks = []
        for rank in range(ranks):
            command = [*(inside[rank] if inside else ()), *calling(module), *args]
            own = env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with self._said(rank).open("w") as errors:
                self.ranks.append(subprocess.Popen(command, cwd=ROOT, env=own, stderr=errors, **pipes))

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.communicate()
        self.folder.cleanup()

    def new_meeting(self) -> str:
        """A file at which the ranks have not met yet."""
        self.meetings += 1
        return str(Path(self.folder.name, f"ranks-{self.meetings}"))

    def _said(self, rank: int) -> Path:
        """What a rank wrote to stderr."""
        return Path(self.folder.name, f"errors-{rank}")

    def tell(self, line: str) -> None:
        """`line` to every rank, at once."""
        for process in self.ranks:
            with contextlib.suppress(BrokenPipeError):  # hear() says why it ended
                process.stdin.write(line + "\n")
                process.stdin.flush()

    def hear(self, word: str, rank: int = 0) -> dict | None:
        """What one rank says next after `word:`; its other output is passed over. Raises UserError where it ended."""
        for line in self.ranks[rank].stdout:
            if line.startswith(f"{word}:"):
                text = line.removeprefix(f"{word}:").strip()
                return json.loads(text) if text else None
        said = [line for line in self._said(rank).read_text().splitlines() if line.strip()]
        raise UserError(f"rank {rank} ended with {self.ranks[rank].wait()}: {said[-1][-300:] if said else 'no word'}")

    def hear_all(self, word: str) -> list[dict | None]:
        return [self.hear(word, rank) for rank in range(len(self.ranks))]
