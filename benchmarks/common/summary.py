"""What the reporting rank writes: rows, the run's summary, and progress."""

import platform
import time

import PIL
import torch
import torch.distributed as dist
import torchvision

from benchmarks.common.clock import Totals, Window
from benchmarks.common.columns import TABLES
from benchmarks.common.config import Config
from benchmarks.common.machine import boot_id, driver_version, machine_facts
from benchmarks.common.rank import Rank, device_name
from benchmarks.common.rows import append_rows
from benchmarks.common.run_folder import RunFolder


class Record:
    """Rows wait in memory until `write`. Without a run's folder it only prints."""

    def __init__(self, config: Config, rank: Rank, num_steps: int):
        self.config, self.rank, self.num_steps = config, rank, num_steps
        self.folder = RunFolder.current() if rank.reports else None
        self.rows: dict[str, list[dict]] = {}

    def note_window(self, number: int, window: Window, step_ms: list[float], first_step: int) -> None:
        sample = {"images": window.images, "seconds": window.seconds, "images_per_s": window.images / window.seconds}
        self._note("windows", {"window": number} | sample)
        for n, ms in enumerate(step_ms):
            self._note("steps", {"rank": self.rank.rank, "step": first_step + n, "step_ms": ms})

    def write_step_breakdown(self, rows: list[dict], first_step: int) -> None:
        """Rows of several ranks hold `rank` and `number`."""
        for n, row in enumerate(rows):
            place = {"rank": row.pop("rank", self.rank.rank), "step": first_step + row.pop("number", n)}
            self._note("steps", place | row)
        self.write()

    def write_epoch(self, epoch: int, phase: str, seconds: float | None, totals: Totals) -> None:
        """seconds: None where another process began the epoch."""
        figures = {"images": totals.images, "loss": totals.loss, "acc1": totals.acc1, "acc5": totals.acc5}
        self._note("epochs", {"epoch": epoch, "phase": phase, "seconds": seconds} | figures)
        self.write()
        if self.rank.reports:
            print(
                f"epoch {epoch} {phase:5}  loss {totals.loss:.4f}  top-1 {totals.acc1:6.2f} %  "
                f"top-5 {totals.acc5:6.2f} %  {totals.images} images" + (f" in {seconds:.2f} s" if seconds else ""),
                flush=True,
            )

    def _note(self, table: str, row: dict) -> None:
        if self.folder:
            self.rows.setdefault(table, []).append({"run_id": self.folder.run_id} | row)

    def write(self) -> None:
        for table, rows in self.rows.items():
            assert self.folder is not None
            append_rows(self.folder.results, table, rows)
        self.rows = {}

    def report_progress(self, steps_done: int) -> None:
        if self.folder:
            self.folder.write_progress(steps_done, self.num_steps)

    def finish(self, measured: dict, resolved: dict, reported: dict | None = None) -> None:
        """measured: columns of runs.csv. resolved: settings, stored as "met", and in their columns of the row; None
        empties one. reported: for as_planned.py."""
        rank, config = self.rank, self.config
        devices_per_node = resolved.get("world_size", 1) // rank.num_nodes
        by_option: dict[str, int] = {}
        if config.batch_per_device:
            by_option["global_batch"] = config.global_batch
        if config.cuda_graphs:
            by_option["cudagraph_skips"] = cudagraph_skips()
        backend = dist.get_backend() if dist.is_initialized() else resolved.get("backend", "none")
        resolved = {
            "device": rank.device.type,
            "device_name": device_name(rank.device, devices_per_node),
            "backend": backend,
            "nodes": rank.num_nodes,
            "threads_per_rank": torch.get_num_threads(),
            "precision": config.precision,
            "memory_format": config.memory_format,
            **by_option,
            **_versions(),
            **machine_facts(),
            **_kernels(rank, backend, devices_per_node),
            **resolved,
        }
        row = measured | {name: resolved[name] for name in TABLES["runs"] if name in resolved}
        resolved = {name: value for name, value in resolved.items() if value is not None}
        self.write()
        if self.folder:
            process = {"boot_id": boot_id(), "cpu_s": time.process_time()}
            self.folder.write_summary({"row": row, "met": resolved, "process": process, "reported": reported or {}})
        elif rank.reports and row.get("images_per_s"):
            print(f"{row['images_per_s']:.1f} images/s", flush=True)


def cudagraph_skips() -> int:
    """Graphs that Inductor does not replay."""
    from torch._dynamo.utils import counters  # takes seconds

    return counters["inductor"]["cudagraph_skips"]


def _versions() -> dict[str, str]:
    """CUDA and cuDNN: that torch was built with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "pillow": PIL.__version__,
    }


def _kernels(rank: Rank, backend: str, devices_per_node: int) -> dict[str, str]:
    # DataParallel uses NCCL without a process group
    without_group = backend == "none" and rank.device.type == "cuda" and devices_per_node > 1
    nccl = torch.cuda.nccl.version() if without_group or backend.startswith("nccl") else ()
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu_driver": driver_version() if rank.device.type == "cuda" else "",
        "nccl": ".".join(map(str, nccl)),
    }
