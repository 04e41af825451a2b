"""Tries inputs in a child process, so that a crash of a decoder is a finding, and the fuzzer goes on.

    with Child(attempt, folder) as child:
        child.ask(content)

The child is forked from a process that has imported everything, which makes a new one cheap.
"""

import faulthandler
import json
import os
import resource
import selectors
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.common.system.repository import ROOT

ANSWER_LIMIT_S = 60.0  # of wall clock, then the child is killed
CPU_LIMIT_S = 15.0  # of one input
MEMORY_LIMIT_MB = 2500  # above what the child had before: the largest image that Pillow calls no bomb takes 1.6 GB
PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"}
SOCKETS = {"socket.connect", "socket.bind"}
CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate"}

Attempt = Callable[[bytes, Path], str]
"""Tries one input in a folder; returns in a word how that ended. Raises nothing but for a finding."""


class Answer(NamedTuple):
    """outcome: the word that an attempt returned, '' for a finding. finding: its kind and place, '' for none."""

    outcome: str
    finding: str
    details: str


class Child:
    """A process that tries inputs one after the other in a copy of `folder`; a new one replaces a dead one."""

    def __init__(self, attempt: Attempt, folder: Path):
        self.attempt, self.folder = attempt, folder
        self.pid = 0

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_) -> None:
        self._end()

    def ask(self, content: bytes) -> Answer:
        """Try one input. Never raises for what the input does."""
        if not self.pid:
            self._start()
        try:
            _send(self.to_child, content)
            reply = self._reply()
        except BrokenPipeError:
            reply = b""
        if reply:
            return Answer(*json.loads(reply))
        if reply is None:
            self._end()
            return Answer("", f"hangs: no answer in {ANSWER_LIMIT_S:g} s", self._said())
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        self._close()
        text = self._said()
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status >> 8}"
        place = next((line.strip() for line in text.splitlines() if line.startswith('  File "')), "no Python frame")
        return Answer("", f"crash: {name} at {place}", text)

    def _start(self) -> None:
        """Fork. The child's stdout and stderr go to a file in its folder's parent."""
        self.work = self.folder.with_name(f"{self.folder.name}.work")
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder, self.work, copy_function=shutil.copy2)
        for place in self.folder.rglob("*"):  # an index knows its folders by their times
            if place.is_dir():
                shutil.copystat(place, self.work / place.relative_to(self.folder))
        self.output = self.folder.with_name(f"{self.folder.name}.output")
        to_read, self.to_child = os.pipe()
        self.from_child, to_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(to_read)
            os.close(to_write)
            return
        try:
            os.close(self.to_child)
            os.close(self.from_child)
            _serve(self.attempt, self.work, self.output, to_read, to_write)
        finally:
            os._exit(3)

    def _reply(self) -> bytes | None:
        """b'' where the child is dead, None where it does not answer."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.from_child, selectors.EVENT_READ)
            if not selector.select(ANSWER_LIMIT_S):
                return None
        return _receive(self.from_child) or b""

    def _said(self) -> str:
        with open(self.output, "rb") as file:
            return file.read(20_000).decode(errors="replace")

    def _end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
            self._close()

    def _close(self) -> None:
        os.close(self.to_child)
        os.close(self.from_child)


def _send(descriptor: int, content: bytes) -> None:
    whole = memoryview(struct.pack("<Q", len(content)) + content)
    while whole:
        whole = whole[os.write(descriptor, whole) :]


def _receive(descriptor: int) -> bytes | None:
    """One message; None at the end of the pipe."""
    head = _read(descriptor, 8)
    return None if head is None else _read(descriptor, struct.unpack("<Q", head)[0])


def _read(descriptor: int, length: int) -> bytes | None:
    parts, left = [], length
    while left:
        if not (part := os.read(descriptor, min(left, 1 << 20))):
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _serve(attempt: Attempt, work: Path, output: Path, to_read: int, to_write: int) -> None:
    """The child: one input after the other until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when it ends
    os.setsid()
    text = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(text, standard)
    faulthandler.enable(text)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + 2 * MEMORY_LIMIT_MB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    os.environ |= {"XDG_CACHE_HOME": str(work / "cache"), "HOME": str(work), "TMPDIR": str(work)}
    tempfile.tempdir = str(work)
    os.chdir(work)
    forbidden = _watch(work)
    while (content := _receive(to_read)) is not None:
        os.ftruncate(text, 0)
        _send(to_write, json.dumps(_try(attempt, content, work, forbidden)).encode())


def _try(attempt: Attempt, content: bytes, work: Path, forbidden: list[str]) -> tuple[str, str, str]:
    before_mb, cpu_s = _resident_mb(reset=True), time.process_time()
    forbidden.clear()  # of what was written just now
    outcome, finding, details = "", "", ""
    try:
        outcome = attempt(content, work)
    except BaseException as error:
        text = f": {error}"[:80] if isinstance(error, AssertionError) else ""  # a target's own, whose place is no news
        finding = f"{type(error).__name__}{text} at {_place(error)}"
        details = "".join(traceback.format_exception(error, limit=-12, chain=False))
    used_s, used_mb = time.process_time() - cpu_s, _resident_mb() - before_mb
    if forbidden:
        outcome, finding = "", f"forbidden: {forbidden[0]}"
    elif used_s > CPU_LIMIT_S and not finding:
        outcome, finding = "", "slow"
        details = f"{used_s:.0f} s of CPU"
    elif used_mb > MEMORY_LIMIT_MB and not finding:
        outcome, finding, details = "", "large", f"{used_mb:.0f} MB"
    return outcome, finding, details


def _place(error: BaseException) -> str:
    """file:line of the innermost frame that is the project's own and not a fuzz target's, else of the innermost."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(str(ROOT / "benchmarks"))]
    ours += [frame for frame in frames if frame.filename.startswith(str(ROOT / "scripts"))] if not ours else []
    frame = (ours or frames)[-1]
    return f"{frame.filename.removeprefix(f'{ROOT}/')}:{frame.lineno}"


def _resident_mb(reset: bool = False) -> float:
    """The most that was resident since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _watch(work: Path) -> list[str]:
    """A list that gets a line for each program started, socket used, and change made outside the folder."""
    seen: list[str] = []
    inside = f"{work}{os.sep}"

    def within(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return True  # an open file descriptor, whose opening was seen
        whole = os.path.realpath(os.fsdecode(path))
        return f"{whole}{os.sep}".startswith(inside) or whole.startswith(("/dev/", "/proc/self/"))

    def hook(event: str, args: tuple) -> None:
        if event in PROGRAMS:
            seen.insert(0, f"starts a program ({event} {args[0] if args else ''!s})"[:120])
        elif event in SOCKETS:
            seen.append(f"uses a socket ({event})")
        elif event in CHANGES and not within(args[0]):
            seen.append(
                f"changes what is outside its folder ({event} in {os.path.dirname(os.fsdecode(args[0]))})"[:120]
            )
        elif event == "open":
            path, mode, flags = args
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else "r" not in mode
            if writes and not within(path):
                seen.append(f"writes outside its folder (in {os.path.dirname(os.fsdecode(path))})"[:120])

    sys.dont_write_bytecode = True  # in a new environment the first import of a module would count as a change
    sys.addaudithook(hook)
    return seen
