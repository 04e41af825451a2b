"""What became of the checks that have ended, a file each, and the time that is left."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.files import write_json
from scripts.gpu_check.check import Check
from scripts.gpu_check.verdicts import Verdict
from scripts.runner.run_plan import interpreter_path

ELSEWHERE = "elsewhere"
"""The status of a check that ran on other code, on another device or by another command."""


class State:
    """here: what each file says of the code and the device; commit, local_changes and device."""

    def __init__(self, folder: Path, here: Mapping[str, str] | None = None):
        self.folder, self.here = folder, dict(here or {})
        self.again: set[str] = set()
        self.results = folder.parent
        folder.mkdir(parents=True, exist_ok=True)
        self.ended: dict[str, dict] = {}
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # another version's, or cut short
                found = json.loads(path.read_bytes())
                self.ended[found["name"]] = found

    def add(self, check: Check, verdict: Verdict, **more: object) -> None:
        found = {"name": check.name, "command": check.command, **dataclasses.asdict(verdict), **more}
        found |= self.here | {"ran": _what_ran(check)}
        write_json(self.folder / f"{check.name.replace(' ', '-')}.json", found)
        self.ended[check.name] = found
        self.again.discard(check.name)

    def set_aside(self, listed: Sequence[Check]) -> None:
        """Checks that ran on other code, on another device or by another command get ELSEWHERE, and are run again."""
        for check in listed:
            found = self.ended.get(check.name, {"status": ELSEWHERE})
            if found["status"] != ELSEWHERE and (words := _how_else(found, self.here | {"ran": _what_ran(check)})):
                self.ended[check.name] = {"name": check.name, "status": ELSEWHERE, "words": words}
                self.again.add(check.name)

    def is_done(self, check: Check) -> bool:
        return check.name in self.ended and check.name not in self.again

    def forget(self, status: str) -> None:
        for name in [name for name, found in self.ended.items() if found["status"] == status]:
            del self.ended[name]

    def log_of(self, check: Check) -> Path:
        return self.folder / f"{check.name.replace(' ', '-')}.log"


def _what_ran(check: Check) -> str:
    """The command, whatever the path of the interpreter."""
    words = ["python" if word == interpreter_path() else word for word in check.argv]
    return dataclasses.replace(check, argv=tuple(words)).command


def _how_else(found: dict, here: dict[str, str]) -> str:
    """'' where it ran as it would here."""
    words = {
        "commit": f"at commit {found.get('commit') or 'unknown'}",
        "local_changes": "with other local changes",
        "device": f"on {found.get('device') or 'an unknown device'}",
        "ran": "by another command",
    }
    differs = [words[name] for name, value in here.items() if found.get(name) != value]
    return f"ran {', '.join(differs)}: {found['status']}" if differs else ""


@dataclasses.dataclass(frozen=True)
class Deadline:
    """seconds: after which nothing starts any more; 0: there is none."""

    seconds: float = 0.0
    began: float = dataclasses.field(default_factory=time.monotonic)

    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self.began) if self.seconds else float("inf")
