"""The folder of one run, RESULTS/logs/<run_id>/: its files, and who reads and writes them.

    settings.json      the requested half of the settings (by the plan), and the resolved half (by the supervisor, with
                       the row); see scripts/sets/settings.py
    config.yaml        the requested configuration, every field, `auto` as it stands: what the script reads
    run.log            everything that the run's processes print
    progress           "steps done, steps in all, seconds that a step took lately", for the bar and the grace of a
                       stop; written over in place, since a new file between two windows would keep the disk busy
    unrecorded         exists from before the launcher starts until the run's row is in runs.csv. The supervisor keeps
                       it locked, and writes into it, as JSON, the columns of the row that it knows: at the start, and
                       again at the end. Who finds it without a lock writes the row (record_lost_runs in lost_runs.py)
    queued             exists while a batch job waits (slurm_submit.sh makes and removes it)
    summary.json       by the reporting rank (Record.finish): its columns of the row, the resolved half, and its wall
                       clock. The supervisor makes the row from it
    cause-<pid>.json   why a process ended early, and when: the earliest is the first cause

The supervisor names the folder to a run's processes in RUN_DIR. Needs no torch.
"""

import contextlib
import datetime
import functools
import json
import os
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_json, write_text_atomically

RUN_DIR_VARIABLE = "RUN_DIR"
PROGRESS_BYTES = 40
SCHEMA = 1  # of settings.json
Half = dict[str, Any]
"""One half of a run's settings, as JSON has them: what was requested ("asked"), or what the run made of it ("met")."""


class RunFolder:
    """One run's folder. Readers return None or an empty list for a missing file."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.run_id = self.path.name
        self.results = self.path.parent.parent
        self.log = self.path / "run.log"
        self.config = self.path / "config.yaml"
        self.queued = self.path / "queued"
        self.unrecorded = self.path / "unrecorded"

    @classmethod
    def current(cls) -> "RunFolder | None":
        """The folder of the run that this process belongs to; None without one. Other programs have a variable of this
        name, too, but no settings.json in its folder."""
        path = os.environ.get(RUN_DIR_VARIABLE)
        return cls(path) if path and (Path(path) / "settings.json").exists() else None

    @classmethod
    def create(cls, results: Path, strategy: str, round_number: int) -> "RunFolder":
        """A new folder in a result set, by an absolute path; its name is the run_id, which no other run has."""
        first = results.resolve() / "logs" / f"{strategy}-{round_number}-{datetime.datetime.now():%H%M%S}"
        path, number = first, 1
        while True:
            try:
                path.mkdir(parents=True)
                return cls(path)
            except FileExistsError:
                number += 1
                path = first.with_name(f"{first.name}-{number}")

    def write_requested(self, config: Config, requested: Half, flags: str = "") -> None:
        """Write the configuration, for the script, and the requested half of the settings. flags: as typed."""
        write_json(self.path / "settings.json", {"schema": SCHEMA, "flags": flags, "asked": requested})
        fields = {name: value for name, value in vars(config).items() if name != "config"}  # a file cannot name itself
        write_text_atomically(self.config, yaml.safe_dump(fields, sort_keys=False))

    def settings(self) -> dict[str, Any]:
        """settings.json: "asked" is the requested half. "met" is the resolved half, once the run has added it.

        Raises UserError where it is missing or damaged.
        """
        path = self.path / "settings.json"
        try:
            return {"asked": {}} | json.loads(path.read_bytes())
        except (OSError, ValueError, TypeError):
            raise UserError(f"{path} is missing or damaged, so that the settings of this run are unknown") from None

    def add_resolved(self, resolved: Half) -> None:
        """Add the resolved half, whole."""
        write_json(self.path / "settings.json", self.settings() | {"met": resolved})

    @functools.cached_property
    def _progress_file(self) -> int:
        return os.open(self.path / "progress", os.O_WRONLY | os.O_CREAT, 0o666)

    def write_progress(self, steps_done: int, num_steps: int, step_s: float = 0.0) -> None:
        os.pwrite(self._progress_file, f"{steps_done} {num_steps} {step_s:.3f}".ljust(PROGRESS_BYTES).encode(), 0)

    def progress(self) -> tuple[int, int] | None:
        """(steps done, steps in all)."""
        with contextlib.suppress(OSError, ValueError):
            done, total, _ = (self.path / "progress").read_text().split()
            return int(done), int(total)
        return None

    def step_s(self) -> float | None:
        """Seconds that a step took lately; None or 0 before the second report."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return float((self.path / "progress").read_text().split()[2])
        return None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The results of the reporting rank: `row`, `met` (the resolved half) and `wall`."""
        write_json(self.path / "summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_bytes())
            return summary
        return None

    def write_cause(self, status: str, reason: str, rank: int) -> None:
        """Write why this process ends, and when, by the clock that processes share."""
        cause = {"at": time.monotonic(), "status": status, "reason": reason, "rank": rank, "pid": os.getpid()}
        with contextlib.suppress(OSError):  # such as of a full disk: the log has the reason, too
            write_json(self.path / f"cause-{os.getpid()}.json", cause)

    def causes(self) -> list[dict[str, Any]]:
        """The causes that the run's processes wrote, the earliest first."""
        causes = [json.loads(path.read_bytes()) for path in self.path.glob("cause-*.json")]
        return sorted(causes, key=lambda cause: cause["at"])
