"""Result sets as `make bench-all` and `make verify` leave them, for tests of what reads one."""

import json

import numpy
import pandas
from support import ROOT, recorded

from benchmarks.common.rows import WARM_UP, append_rows, read_table

# Of a CPU run: its row in runs.csv, but for run_id, strategy, round and throughput.
CPU = {
    "schema": 1,
    "status": "ok",
    "arch": "resnet18",
    "image_size": 64,
    "global_batch": 32,
    "loader": "folder",
    "device": "cpu",
    "device_name": "Test CPU",
    "world_size": 2,
    "nodes": 1,
    "threads_per_rank": 1,
    "precision": "fp32",
    "parallel": True,
    "oversubscribed": False,
    "dirty": False,
    "commit": "abc",
    "load_average": 0.1,
    "acc1": 40.0,
    "val_samples": 132,
    "step_ms_p50": 100.0,
    "step_ms_p95": 120.0,
    "peak_memory_mb": 900.0,
    "wall_s": 20.0,
    "flops_per_image": 1e9,
    "started_at": "2026-01-02T03:04:05+00:00",
}
SPEEDS = {"single": 100.0, "ddp": 170.0}
SECRET = "/mnt/secret place/photos"  # DATA of the machine that measured


def write_set(folder, speeds=SPEEDS, num_rounds=5, met=None, **columns):
    """Of runs that may be published."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, num_ranks = numpy.random.default_rng(0), dict.fromkeys(speeds, 2) | {"single": 1}
    for repeat in range(1, num_rounds + 1):
        for position, (strategy, speed) in enumerate(speeds.items(), 1):
            run_id, ranks = f"{strategy}-{repeat}-000000", num_ranks[strategy]
            speed *= float(numpy.exp(0.02 * rng.normal()))
            row = {
                "schema": 2, "run_id": run_id, "strategy": strategy, "status": "ok", "repeat": repeat,
                "position": position, "arch": "resnet18",
                "image_size": 48, "global_batch": 32, "loader": "folder", "device": "cpu", "device_name": "Test CPU",
                "world_size": ranks, "nodes": 1, "threads_per_rank": 1, "backend": "gloo" if ranks > 1 else "none",
                "parallel": True, "oversubscribed": False, "torch": "2.15.0", "commit": "abc", "dirty": False,
                "images_per_s": speed, "acc1": 50.0, "val_samples": 132, "load_average": 0.1, "wall_s": 10.0,
                "started_at": f"2026-11-21T0{repeat}:00:00+00:00", "log_path": f"logs/{run_id}/run.log",
            } | columns  # fmt: skip
            row = recorded(folder, row, data=SECRET, **(met or {}))
            if (repeat, position) == (1, 1):
                warm = {"run_id": f"{strategy}-0-000000", "repeat": 0, "position": None, "status": WARM_UP}
                append_rows(folder, "runs", [row | warm])
            append_rows(folder, "runs", [row])
            windows = [{"run_id": run_id, "window": n, "images": 128, "seconds": 128 / speed} for n in range(3)]
            append_rows(folder, "windows", windows)
            epoch = {"run_id": run_id, "epoch": 0, "seconds": 5.0, "loss": 2.0, "acc1": row["acc1"]}
            num_images = {"train": 480, "val": row["val_samples"]}
            append_rows(
                folder, "epochs", [epoch | {"phase": phase, "images": num} for phase, num in num_images.items()]
            )
            append_rows(folder, "steps", [{"run_id": run_id, "rank": 0, "step": 5, "step_ms": 9.0}])
            append_rows(folder, "telemetry", [{"run_id": run_id, "t_s": 0.5, "device": "cpu", "util_pct": 50}])
            log = folder / row["log_path"]
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"$ {ROOT}/.venv/bin/python -m benchmarks.{strategy} --data {SECRET}\nepoch 0\n")
    settings = read_table(folder, "settings").set_index("settings")
    for row in read_table(folder, "runs").drop_duplicates("strategy").itertuples():
        halves = {"asked": settings.asked[row.settings], "met": settings.met[row.settings]}
        proof = {"run_id": f"{row.strategy}-0", "strategy": row.strategy, "steps": 20, "world_size": row.world_size}
        proof |= {"max_relative_difference": 0, "bit_identical": True, "tolerance": 0, "verdict": "ok"}
        append_rows(folder, "equivalence", [proof | halves])
    variables = {"DATA": SECRET, "NPROC": "2"}
    (folder / "environment.json").write_text(json.dumps({"num_cores": 2, "variables": variables}))
    return folder


def change(folder, table, change_frame):
    """change_frame sees every cell as text."""
    path = folder / f"{table}.csv"
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
    change_frame(frame).to_csv(path, index=False)


def add_runs(folder, strategy, images_per_s, num_repeats=5, num_windows=5, noise=0.01, **row):
    """With noise of log throughput, seeded."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng(len(strategy))
    for repeat in range(1, num_repeats + 1):
        run_id = f"{strategy}-{repeat}"
        speed = images_per_s * float(numpy.exp(noise * rng.normal()))
        row_of_run = CPU | {"run_id": run_id, "strategy": strategy, "repeat": repeat} | row
        acc1, images = row_of_run.get("acc1", 20.0), row_of_run.get("val_samples", 480)
        asked = {"global_batch": 0} if "batch_per_device" in row else {}  # the row has what it came to
        append_rows(folder, "runs", [recorded(folder, row_of_run, **asked)])
        tables = {
            "windows": [
                {"window": n, "images": 224, "seconds": 224 / speed * float(numpy.exp(noise * rng.normal()))}
                for n in range(num_windows)
            ],
            "epochs": [
                {"epoch": n, "phase": phase, "seconds": 2.0, "images": images, "loss": 2 / (1 + n), "acc1": acc1 * n}
                for n in range(2)
                for phase in ("train", "val")
            ],
            "steps": [
                {
                    "rank": 0,
                    "step": n,
                    "step_ms": 100,
                    "data_ms": 20,
                    "copy_ms": 1,
                    "forward_ms": 25,
                    "backward_ms": 40,
                    "exposed_comm_ms": row_of_run.get("exposed_comm_ms", 8),
                    "optimizer_ms": 5,
                    "other_ms": 1,
                }
                for n in range(4)
            ]
            + [{"rank": 0, "step": n, "step_ms": 100} for n in range(4, 24)],  # those of the windows
            "telemetry": [
                {"t_s": n / 2, "device": device, "util_pct": 50.0, "memory_used_mb": 4000.0 + n}
                for n in range(4)
                for device in ("cpu", "gpu0")
            ],
        }
        for table, rows in tables.items():
            append_rows(folder, table, [{"run_id": run_id, **values} for values in rows])
    return folder


def join_sets(folder, *parts):
    """Their run_ids get the name of their part."""
    for part in parts:
        for table in ("settings", "runs", "windows"):
            rows = read_table(folder / part, table).to_dict("records")
            own = [row | {"run_id": f"{part}-{row['run_id']}"} if "run_id" in row else row for row in rows]
            append_rows(folder, table, own)
    return folder
