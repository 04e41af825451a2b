"""The columns of a row that are known before the run starts."""

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.columns import columns_from
from benchmarks.common.rows import SCHEMA, WARM_UP
from benchmarks.common.run_folder import RunFolder
from scripts.shared import source_version

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def row_at_start(folder: RunFolder, strategy: str, round_number: int, requested: dict, env: Mapping[str, str]) -> dict:
    """Columns of runs.csv. env: the launcher's variables (NPROC, NUM_CORES, NUM_GPUS, POSITION)."""
    ranks, cores, gpus = (int(env.get(name) or 0) for name in ("NPROC", "NUM_CORES", "NUM_GPUS"))
    commit = source_version.commit()
    return {
        "schema": SCHEMA,
        "run_id": folder.run_id,
        "strategy": strategy,
        "repeat": round_number,
        "position": int(env.get("POSITION") or 0) or None,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{name: requested.get(name) for name in columns_from("requested")},
        "oversubscribed": ranks > cores and not gpus,
        "commit": commit,
        "dirty": bool(source_version.local_changes()) if commit else None,
        "load_average": os.getloadavg()[0],
        "governor": GOVERNOR.read_text() if GOVERNOR.exists() else None,
        "log_path": str(folder.log.relative_to(folder.results)),
    }


def warm_up_status(row: dict) -> dict:
    """Status and reason of a run of round 0, which no analysis counts."""
    why = row.get("reason") or "it warmed the machine, and is not counted"
    return {"status": WARM_UP, "reason": why if row["status"] == "ok" else f"{row['status']}: {why}"}
