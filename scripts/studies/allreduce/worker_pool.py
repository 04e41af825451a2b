"""Ranks that run one module's main(), and what rank 0 prints as JSON."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.common.errors import UserError
from scripts.shared.forward_signals import die_with_parent
from scripts.shared.repository import ROOT
from scripts.studies.allreduce.launch_ranks import rank_environment


def main_command(module: str) -> list[str]:
    """The command that calls main() of a module."""
    return [sys.executable, "-c", f"from {module} import main; main()"]


class WorkerPool:
    """`num_ranks` processes that call main() of one module, with `threads` each. They find each other through a
    rendezvous file."""

    def __init__(self, module: str, args: Sequence[str], num_ranks: int, threads: int):
        self.folder = tempfile.TemporaryDirectory(prefix="worker-pool-")
        env = rank_environment(threads) | {"RENDEZVOUS_FILE": str(Path(self.folder.name, "ranks"))}
        env |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(num_ranks):
            with self._stderr_file(rank).open("w") as stderr:
                process = subprocess.Popen(
                    [*main_command(module), *args],
                    cwd=ROOT,
                    env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    preexec_fn=die_with_parent(),
                )
            self.processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()
        self.folder.cleanup()

    def _stderr_file(self, rank: int) -> Path:
        return Path(self.folder.name, f"errors-{rank}")

    def receive_row(self) -> dict[str, Any]:
        """The JSON object that rank 0 prints next after `row:`. Other output is ignored. Raises UserError where it
        ended."""
        process = self.processes[0]
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("row:"):
                return json.loads(line.removeprefix("row:"))
        lines = [line for line in self._stderr_file(0).read_text().splitlines() if line.strip()]
        last_line = lines[-1][-300:] if lines else "it printed no error"
        raise UserError(f"rank 0 ended with exit code {process.wait()}: {last_line}")
