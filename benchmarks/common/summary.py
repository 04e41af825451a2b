"""What the reporting rank writes: rows, the summary of the run, progress, and where its time went."""

import os
import platform
import sys
import time
from pathlib import Path

import PIL
import torch
import torchvision

from benchmarks.common.clock import Totals, Window
from benchmarks.common.columns import TABLES, columns_from
from benchmarks.common.config import Config
from benchmarks.common.machine import boot_id, driver_version, machine_facts, nccl_conf
from benchmarks.common.rank import RankContext, device_name
from benchmarks.common.rows import append_rows
from benchmarks.common.run_folder import RunFolder

IMPORTED_AT = time.monotonic()


class Record:
    """Rows and summary of one run. Silent on ranks that do not report; in a run without a supervisor it only prints."""

    def __init__(self, config: Config, context: RankContext, num_steps: int):
        self.config, self.context, self.num_steps = config, context, num_steps
        self.folder = RunFolder.current() if context.reports else None
        self.parts: dict[str, float] = {}
        self.started_at = _process_start()
        self.booked_until = self.started_at
        self.book_time("imports", IMPORTED_AT)
        self.book_time("data set, model and process group")
        self.reported_steps, self.reported_at = 0, time.monotonic()

    def book_time(self, part: str, now: float | None = None) -> None:
        """Book the time since the last booking on `part` of the run's wall clock."""
        now = time.monotonic() if now is None else now
        self.parts[part] = self.parts.get(part, 0.0) + now - self.booked_until
        self.booked_until = now

    def write_rows(self, table: str, rows: list[dict]) -> None:
        """Add rows of this run to a table of the result set."""
        if self.folder:
            append_rows(self.folder.results, table, [{"run_id": self.folder.run_id, **row} for row in rows])

    def write_window(self, number: int, window: Window, step_ms: list[float], first_step: int) -> None:
        """One timed window and the steps in it."""
        sample = {"images": window.images, "seconds": window.seconds, "images_per_s": window.images / window.seconds}
        self.write_rows("windows", [{"window": number, **sample}])
        self.write_rows(
            "steps",
            [{"rank": self.context.rank, "step": first_step + n, "step_ms": ms} for n, ms in enumerate(step_ms)],
        )

    def write_step_breakdown(self, rows: list[dict], first_step: int) -> None:
        """The phases of steps that came after the timed windows; rows of several ranks hold `rank` and `number`."""
        here = self.context.rank
        places = [(row.pop("rank", here), first_step + row.pop("number", n)) for n, row in enumerate(rows)]
        self.write_rows(
            "steps", [{"rank": rank, "step": step} | row for (rank, step), row in zip(places, rows, strict=True)]
        )
        self.book_time("step account")

    def write_epoch(self, epoch: int, phase: str, seconds: float | None, totals: Totals) -> None:
        """One pass over the training or the validation set. seconds: None where another process began it."""
        self.write_rows(
            "epochs",
            [
                {
                    "epoch": epoch,
                    "phase": phase,
                    "seconds": seconds,
                    "images": totals.images,
                    "loss": totals.loss,
                    "acc1": totals.acc1,
                    "acc5": totals.acc5,
                }
            ],
        )
        if self.context.reports:
            print(
                f"epoch {epoch} {phase:5}  loss {totals.loss:.4f}  top-1 {totals.acc1:6.2f} %  "
                f"top-5 {totals.acc5:6.2f} %  {totals.images} images" + (f" in {seconds:.2f} s" if seconds else ""),
                flush=True,
            )

    def report_progress(self, steps_done: int) -> None:
        """Leave in the run's folder how far training is, for the supervisor's bar."""
        now = time.monotonic()
        if self.folder:
            step_s = 0.0  # unknown: the time before the first report holds more than steps
            if self.reported_steps:
                step_s = (now - self.reported_at) / max(1, steps_done - self.reported_steps)
            self.folder.write_progress(steps_done, self.num_steps, step_s)
        self.reported_steps, self.reported_at = steps_done, now

    def finish(self, measured: dict, resolved: dict) -> None:
        """Leave for the supervisor what only the run knows; in a run without one, print the throughput.

        measured: columns of runs.csv. resolved: what the engine and the script know of the resolved half of the run's
        settings, stored as "met", and in the row where runs.csv has a column for it; None empties that column and is no
        setting. Raises ValueError for a column that has the other source in columns.py.
        """
        settings = {name for name, value in resolved.items() if value is not None}
        if misplaced := {*columns_from("resolved")} & measured.keys() | {*columns_from("measured")} & settings:
            raise ValueError(f"columns.py has another source for {', '.join(sorted(misplaced))}")
        context = self.context
        devices_per_node = resolved.get("world_size", 1) // context.nodes
        by_option: dict[str, int] = {}
        if self.config.batch_per_device:
            by_option["global_batch"] = self.config.global_batch
        if self.config.cuda_graphs:
            by_option["cudagraph_skips"] = cudagraph_skips()
        resolved = {
            "device": context.device.type,
            "device_name": device_name(context.device, devices_per_node),
            "backend": context.backend,
            "nodes": context.nodes,
            "threads_per_rank": torch.get_num_threads(),
            "precision": self.config.precision,
            "memory_format": self.config.memory_format,
            **by_option,
            **_versions(),
            **machine_facts(),
            **_kernels(context, devices_per_node),
            **resolved,
        }
        row = measured | {name: resolved[name] for name in TABLES["runs"] if name in resolved}
        resolved = {name: value for name, value in resolved.items() if value is not None}
        if self.folder:
            moments = {"boot_id": boot_id(), "started_at": self.started_at, "ended_at": self.booked_until}
            wall = moments | {"parts": self.parts, "cpu_s": time.process_time()}
            self.folder.write_summary({"row": row, "met": resolved, "wall": wall})
        elif context.reports and row.get("images_per_s"):
            print(f"{row['images_per_s']:.1f} images/s", flush=True)


def cudagraph_skips() -> int:
    """Compiled graphs of this process that Inductor does not replay as CUDA graphs."""
    from torch._dynamo.utils import counters  # seconds, which only a run that compiles has spent already

    return counters["inductor"]["cudagraph_skips"]


def _versions() -> dict[str, str]:
    """Of what computes and decodes. CUDA's and cuDNN's are those that torch was built with; empty where none."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "pillow": PIL.__version__,
    }


def _kernels(context: RankContext, devices_per_node: int) -> dict[str, str]:
    """What else chooses the kernels: torch's level of the CPU, the GPU's driver, NCCL and its files of variables; ''
    where unused."""
    # one process on several GPUs, such as DataParallel's, sums and broadcasts by NCCL without a process group
    without_group = context.backend == "none" and context.device.type == "cuda" and devices_per_node > 1
    nccl = torch.cuda.nccl.version() if without_group or context.backend.startswith("nccl") else ()
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu_driver": driver_version() if context.device.type == "cuda" else "",
        "nccl": ".".join(map(str, nccl)),
        "nccl_conf": nccl_conf(os.environ) if without_group or "nccl" in context.backend else "",
    }


def _process_start() -> float:
    """Moment at which the Linux kernel started this process, on time.monotonic's clock, to 10 ms (proc_pid_stat(5))."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - age
    except (OSError, ValueError, AttributeError) as error:
        print(f"warning: the start of the process is not known: {error}", file=sys.stderr)
        return IMPORTED_AT
