"""A pool of worker processes that start once and then wait for lines on stdin; their answers come from stdout.

A worker that waits for a line uses no CPU time, so that workers of several kinds can be timed in interleaved windows.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.forward_signals import die_with_parent
from benchmarks.common.system.repository import ROOT
from scripts.studies.allreduce.launch_ranks import rank_environment


def main_command(module: str) -> list[str]:
    """The command that calls main() of a module."""
    return [sys.executable, "-c", f"from {module} import main; main()"]


class WorkerPool:
    """`num_ranks` processes that call main() of one module. They find each other through a rendezvous file.

    threads: of each process. command_prefixes: words before the command of each rank, such as those that enter a
    network namespace. interface: the network interface on which the ranks communicate.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str],
        num_ranks: int,
        threads: int,
        command_prefixes: Sequence[Sequence[str]] = (),
        interface: str = "lo",
    ):
        self.folder = tempfile.TemporaryDirectory(prefix="worker-pool-")
        self.num_rendezvous = 0
        env = rank_environment(threads, interface) | {"RENDEZVOUS_FILE": self.new_rendezvous_file()}
        env |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(num_ranks):
            prefix = command_prefixes[rank] if command_prefixes else ()
            with self._stderr_file(rank).open("w") as stderr:
                process = subprocess.Popen(
                    [*prefix, *main_command(module), *args],
                    cwd=ROOT,
                    env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.PIPE,
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

    def new_rendezvous_file(self) -> str:
        """The path of a file that no process group has used yet."""
        self.num_rendezvous += 1
        return str(Path(self.folder.name, f"ranks-{self.num_rendezvous}"))

    def _stderr_file(self, rank: int) -> Path:
        return Path(self.folder.name, f"errors-{rank}")

    def send(self, line: str) -> None:
        """Write `line` to the stdin of every rank."""
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):  # receive() raises an error that says why the rank ended
                stdin = _opened(process.stdin)
                stdin.write(line + "\n")
                stdin.flush()

    def wait_for(self, word: str, rank: int = 0) -> None:
        """Wait until one rank prints a line `word:`. Raises UserError where the rank ended."""
        self._next_line(word, rank)

    def receive(self, word: str, rank: int = 0) -> dict[str, Any]:
        """The JSON object that one rank prints next after `word:`. Other output is ignored. Raises UserError where the
        rank ended."""
        return json.loads(self._next_line(word, rank))

    def wait_for_all(self, word: str) -> None:
        for rank in range(len(self.processes)):
            self.wait_for(word, rank)

    def receive_all(self, word: str) -> list[dict[str, Any]]:
        return [self.receive(word, rank) for rank in range(len(self.processes))]

    def _next_line(self, word: str, rank: int) -> str:
        process = self.processes[rank]
        for line in _opened(process.stdout):
            if line.startswith(f"{word}:"):
                return line.removeprefix(f"{word}:").strip()
        lines = [line for line in self._stderr_file(rank).read_text().splitlines() if line.strip()]
        last_line = lines[-1][-300:] if lines else "it printed no error"
        raise UserError(f"rank {rank} ended with exit code {process.wait()}: {last_line}")


def _opened(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "the process was started without this pipe"
    return pipe
