"""What a power cut may leave of a folder, from the system calls of whoever wrote in it (as ALICE does, OSDI 2014).

    calls = recorded(monkeypatch, folder, lambda: append_rows(folder, "runs", rows))
    for num_done, files in states(before, calls): ...

The calls are really made. Content that was not synced may be on the disk whole, in part, as zeros, or not at all. Of
the names that were made, moved or removed and not synced, any combination of these changes may be on the disk.
"""

import io
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common.system import files

Call = tuple
"""("make", name, file), ("write", file, place, bytes), ("empty", file), ("sync", file), ("move", old, new, file),
("remove", name), ("sync folder",), where file is a number."""


class Recorder:
    """The module os, which notes what is done to the files of one folder."""

    def __init__(self, folder: Path):
        self.folder, self.calls, self.of_name, self.of_descriptor = folder, [], {}, {}
        for name in sorted(os.listdir(folder)):
            self.of_name[name] = len(self.of_name)
        self.num_files = len(self.of_name)

    def __getattr__(self, name: str):
        return getattr(os, name)

    def open(self, path, flags: int, mode: int = 0o777) -> int:
        descriptor, path = os.open(path, flags, mode), Path(path)
        if path == self.folder:
            self.of_descriptor[descriptor] = None
        elif path.parent == self.folder:
            if path.name not in self.of_name:
                self.of_name[path.name] = self.num_files
                self.calls.append(("make", path.name, self.num_files))
                self.num_files += 1
            self.of_descriptor[descriptor] = self.of_name[path.name]
            if flags & os.O_TRUNC:
                self.calls.append(("empty", self.of_name[path.name]))
        return descriptor

    def fdopen(self, descriptor: int, mode: str, buffering: int = -1) -> io.IOBase:
        if mode == "rb":  # what is read changes nothing on the disk
            return os.fdopen(descriptor, mode, buffering)
        assert mode == "wb"
        return io.BufferedWriter(Written(descriptor, self.of_descriptor[descriptor], self.calls))

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        file = self.of_descriptor[descriptor]
        self.calls.append(("sync folder",) if file is None else ("sync", file))

    def replace(self, old, new) -> None:
        os.replace(old, new)
        file = self.of_name[Path(new).name] = self.of_name.pop(Path(old).name)
        self.calls.append(("move", Path(old).name, Path(new).name, file))

    def unlink(self, path) -> None:
        os.unlink(path)
        del self.of_name[Path(path).name]
        self.calls.append(("remove", Path(path).name))


class Written(io.FileIO):
    def __init__(self, descriptor: int, file: int, calls: list[Call]):
        super().__init__(descriptor, "wb")
        self.file, self.calls = file, calls

    def write(self, data) -> int:
        place = self.tell()
        num_bytes = super().write(data)
        self.calls.append(("write", self.file, place, bytes(data[:num_bytes])))
        return num_bytes


def recorded(monkeypatch, folder: Path, write: Callable[[], object]) -> list[Call]:
    """The calls that `write` makes. Fails where something was written past benchmarks.common.system.files."""
    before, recorder = content(folder), Recorder(folder)
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", recorder)
        write()
    *_, (_, last) = states(before, [*recorder.calls, *everything_synced(recorder)])
    assert last == content(folder), "something was written past benchmarks.common.system.files"
    return recorder.calls


def everything_synced(recorder: Recorder) -> list[Call]:
    return [*(("sync", file) for file in range(recorder.num_files)), ("sync folder",)]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def states(before: dict[str, bytes], calls: list[Call]) -> Iterator[tuple[int, dict[str, bytes]]]:
    """(number of calls done, names and content) of everything that a power cut may leave, each once a number.

    before: what was on the disk for sure.
    """
    for num_done in range(len(calls) + 1):
        seen = []
        for state in _after(before, calls[:num_done]):
            if state not in seen:
                seen.append(state)
                yield num_done, state


def _after(before: dict[str, bytes], done: list[Call]) -> Iterator[dict[str, bytes]]:
    known = dict(enumerate(before[name] for name in sorted(before)))
    first = {name: file for file, name in enumerate(sorted(before))}
    last_sync = max((place for place, call in enumerate(done) if call == ("sync folder",)), default=-1)
    sure, pending = [], []
    for place, call in enumerate(done):
        if call[0] in ("make", "move", "remove"):
            (sure if place < last_sync else pending).append(call)
    numbers = {*known, *(call[2] for call in done if call[0] == "make")}
    contents = [_contents(known.get(file, b""), file, done) for file in sorted(numbers)]
    for keep in itertools.product((True, False), repeat=len(pending)):
        names = dict(first)
        for call in [*sure, *itertools.compress(pending, keep)]:
            if call[0] == "make":
                names[call[1]] = call[2]
            else:
                names.pop(call[1], None)
                if call[0] == "move":
                    names[call[2]] = call[3]
        for chosen in itertools.product(*contents):
            of_file = dict(zip(sorted(numbers), chosen, strict=True))
            yield {name: of_file[file] for name, file in names.items()}


def _contents(content: bytes, file: int, done: list[Call]) -> list[bytes]:
    """What the disk may hold of a file: all of it up to its last sync, and of the rest all, half, zeros or nothing."""
    found = [content]
    for call in done:
        if call[:2] == ("sync", file):
            found = [content]
        elif call == ("empty", file):
            content = b""
            found.append(content)
        elif call[:2] == ("write", file):
            _, _, place, data = call
            for part in (data[: len(data) // 2], bytes(len(data)), data):
                found.append(content[:place].ljust(place, b"\0") + part + content[place + len(part) :])
            content = found[-1]
    return found
