"""What became of the checks that have ended, a file each, and the time that is left for the others.

State(results / "checks"), Deadline(540)
"""

import contextlib
import dataclasses
import json
import time
from pathlib import Path

from benchmarks.common.store.results import write_json
from scripts.gpu_check.check import Check
from scripts.gpu_check.verdicts import Verdict


class State:
    """What became of the checks that have ended, in a folder: a file each."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.results = folder.parent
        folder.mkdir(parents=True, exist_ok=True)
        self.ended: dict[str, dict] = {}
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(ValueError, KeyError):
                found = json.loads(path.read_text())
                self.ended[found["name"]] = found

    def add(self, check: Check, verdict: Verdict, **more: object) -> None:
        found = {"name": check.name, "command": check.command, **dataclasses.asdict(verdict), **more}
        write_json(self.folder / f"{check.name.replace(' ', '-')}.json", found)
        self.ended[check.name] = found

    def forget(self, status: str) -> None:
        for name in [name for name, found in self.ended.items() if found["status"] == status]:
            del self.ended[name]

    def log_of(self, check: Check) -> Path:
        return self.folder / f"{check.name.replace(' ', '-')}.log"


@dataclasses.dataclass(frozen=True)
class Deadline:
    """seconds: after which nothing starts any more; 0: there is none."""

    seconds: float = 0.0
    began: float = dataclasses.field(default_factory=time.monotonic)

    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self.began) if self.seconds else float("inf")
