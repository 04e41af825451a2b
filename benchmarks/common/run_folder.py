"""The folder of one run, RESULTS/logs/<run_id>/, which RUN_DIR names to its processes. Needs no torch.

run.yaml           by the plan. config: every field; run: round, position, number, name, flags as typed, and requested
                   settings that are no field, such as ranks
run.log            what the run's processes print
progress           "steps done, steps in all"; written in place, which keeps the disk quiet
summary.json       by the reporting rank: its columns of the row, the resolved settings, its node
cause-<pid>.json   why a process ended early, and when: the earliest is the first cause
"""

import contextlib
import datetime
import functools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.files import make_new_folder, write_json, write_text_atomically

RUN_DIR_VARIABLE = "RUN_DIR"
PROGRESS_BYTES = 40
OF_ONE_RUN = ("round", "position", "number", "name", "flags")
"""Keys of `run:` that are no settings."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
Half = dict[str, Any]
"""Of a run's settings: what was requested ("asked"), or what the run made of it ("met")."""


class RunFolder:
    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.run_id = self.path.name
        self.results = self.path.parent.parent
        self.log = self.path / "run.log"
        self.plan = self.path / "run.yaml"

    @classmethod
    def current(cls) -> "RunFolder | None":
        """None without one. Other programs have a RUN_DIR, too."""
        path = os.environ.get(RUN_DIR_VARIABLE)
        return cls(path) if path and (Path(path) / "run.yaml").exists() else None

    @classmethod
    def create(cls, results: Path, strategy: str, round_number: int) -> "RunFolder":
        """Its name is the run_id."""
        name = f"{strategy}-{round_number}-{datetime.datetime.now():%H%M%S}"
        return cls(make_new_folder(results.resolve() / "logs" / name))

    def write_plan(self, config: Config, run: Mapping[str, Any]) -> None:
        fields = {name: value for name, value in vars(config).items() if name != "config"}  # a file cannot name itself
        text = yaml.safe_dump({"config": fields, "run": {"file": config.config, **run}}, sort_keys=False)
        write_text_atomically(self.plan, text)

    def read_plan(self) -> dict[str, Any]:
        """`run:`, and under "requested" the requested settings. Raises UserError."""
        try:
            found = yaml.load(self.plan.read_bytes(), LOADER)
            run, config = dict(found["run"]), dict(found["config"])
        except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
            problem = "is missing or damaged, so that the settings of this run are unknown"
            raise UserError(f"{self.plan} {problem}") from None
        own = {name: value for name, value in run.items() if name not in (*OF_ONE_RUN, "file")}
        return run | {"requested": own | config | {"config": run.get("file", "")}}

    def requested(self) -> Half:
        """Raises UserError."""
        requested: Half = self.read_plan()["requested"]
        return requested

    def resolved(self) -> Half:
        """{} where the run has not left it."""
        return (self.summary() or {}).get("met", {})

    def add_resolved(self, more: Half) -> None:
        if summary := self.summary():
            self.write_summary(summary | {"met": summary["met"] | more})

    @functools.cached_property
    def _progress_file(self) -> int:
        return os.open(self.path / "progress", os.O_WRONLY | os.O_CREAT, 0o666)

    def write_progress(self, steps_done: int, num_steps: int) -> None:
        os.pwrite(self._progress_file, f"{steps_done} {num_steps}".ljust(PROGRESS_BYTES).encode(), 0)

    def progress(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError, ValueError):
            done, total = (self.path / "progress").read_text().split()
            return int(done), int(total)
        return None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """`row`, `met`, `process`, and `reported`."""
        write_json(self.path / "summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_bytes())
            return summary
        return None

    def write_cause(self, status: str, reason: str, rank: int) -> None:
        cause = {"at": time.monotonic(), "status": status, "reason": reason, "rank": rank, "pid": os.getpid()}
        with contextlib.suppress(OSError):  # the log has the reason, too
            write_json(self.path / f"cause-{os.getpid()}.json", cause)

    def causes(self) -> list[dict[str, Any]]:
        """The earliest first."""
        causes = [json.loads(path.read_bytes()) for path in self.path.glob("cause-*.json")]
        return sorted(causes, key=lambda cause: cause["at"])
