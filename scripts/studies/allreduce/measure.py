"""Bandwidth of gradient communication: all-reduces from 1 KB to 256 MB over the path that each strategy uses.

    ./bench study allreduce --out results/allreduce

The paths are gloo (NCCL where there are GPUs) as DDP calls it, in float32 and, for compressed gradients, in bf16; and
Horovod. Each size is checked, then timed interleaved with a bare loop of the library's simplest call. Bandwidths are
those of nccl-tests (algbw and busbw). Writes allreduce.csv, bandwidths.csv and a chart. Exit code 1: a sum was wrong.
"""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import tyro
from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from scripts.charts.figures import save_chart
from scripts.options.study_options import AllreduceOptions
from scripts.results.formatting import format_interval
from scripts.shared.forward_signals import die_with_parent
from scripts.shared.programs import run_main_and_exit
from scripts.shared.repository import ROOT
from scripts.studies.allreduce.analysis import (
    LARGE_BYTES,
    SMALLEST_BYTES,
    BandwidthRow,
    bandwidth_rows,
    message_sizes,
    ratio_to_bare_loop,
    table,
)
from scripts.studies.allreduce.chart import allreduce_chart
from scripts.studies.allreduce.launch_ranks import horovodrun_command, rank_environment
from scripts.studies.allreduce.worker_pool import WorkerPool, main_command
from scripts.studies.hardware import hardware_here
from scripts.studies.measured_csv import add_rows, set_tables_aside

RANK_MODULE = "scripts.studies.allreduce.allreduce_rank"
HOROVOD = "horovod"


def main(options: AllreduceOptions) -> int:
    num_ranks = machine.num_ranks()
    if options.rounds < 2 or options.largest < SMALLEST_BYTES:
        raise UserError("an interval needs --rounds 2 or more, and a size --largest 1024 or more")
    if options.largest % SMALLEST_BYTES:
        raise UserError(f"--largest {options.largest} is no multiple of {SMALLEST_BYTES} bytes")
    if num_ranks < 2:
        raise UserError("an all-reduce needs two ranks; set --nproc 2 or more")
    paths = choose_paths(options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    num_sizes = len(message_sizes(options.largest))
    with tqdm(total=len(paths) * options.rounds * num_sizes, desc="all-reduces", disable=None, leave=False) as bar:
        for path in paths:
            for row in time_path(path, num_ranks, options.rounds, options.largest):
                rows.append({"path": path} | row)
                bar.update()
    about = f"{hardware_here().name}, {num_ranks} ranks on {machine.num_cores()} cores"
    return report(pandas.DataFrame(rows), about, options.out, options.output)


def choose_paths(only: tuple[str, ...]) -> list[str]:
    """The paths that are available here, or those of `only` among them. Raises UserError where none is left."""
    library = "nccl" if machine.num_gpus() else "gloo"
    paths = [path for path in (library, f"{library}, bf16", HOROVOD) if not only or path in only]
    if not paths:
        raise UserError(f"no path {only[0]!r} here; there are {library}, '{library}, bf16' and {HOROVOD}")
    if HOROVOD in paths and importlib.util.find_spec(HOROVOD) is None:
        paths.remove(HOROVOD)
        print("horovod is skipped: it is not installed; run scripts/setup/horovod.sh", file=sys.stderr)
    return paths


def report(rows: pandas.DataFrame, about: str, out: Path, output: Path | None = None) -> int:
    """Print and write the results of the timed rounds; returns 1 where a sum was wrong.

    rows: of allreduce.csv. about: the machine. output: a CSV file that gets a row per path.
    """
    of_sizes = bandwidth_rows(rows)
    print(f"{about}\n{table(of_sizes)}\n")
    ranks = {row.path: row.ranks for row in of_sizes}
    of_paths = [{"path": path, "ranks": ranks[path]} | bare_loop_columns(rows, path) for path in ranks]
    written = write_results(rows, of_sizes, about, out)
    print("\nwritten:", *(f"  {path}" for path in written), sep="\n")
    if output:  # last, since it may be a file of another suite, which is refused
        add_rows(output, of_paths)
    if num_wrong := int(rows.wrong.sum()):
        num_calls = int((rows.wrong > 0).sum())
        print(f"error: {num_wrong} values of {num_calls} all-reduces were not the sum", file=sys.stderr)
        return 1
    return 0


def bare_loop_columns(rows: pandas.DataFrame, path: str) -> dict[str, object]:
    """The ratio of a path to its bare loop, over all sizes and over the large ones, as columns; prints both."""
    num_rounds = rows[rows.path == path]["round"].nunique()
    columns: dict[str, object] = {"num_rounds": num_rounds}
    for at_least, name, sizes in ((0, "all", "over all sizes"), (LARGE_BYTES, "from_1_mb", "from 1 MB on")):
        ratio, low, high = ratio_to_bare_loop(rows, path, min(at_least, int(rows.bytes.max())))
        columns |= {f"over_bare_{name}": ratio, f"over_bare_{name}_low": low, f"over_bare_{name}_high": high}
        bounds = format_interval(low, high, "{:.3f}".format)
        print(f"{path}: busbw / a bare loop's {ratio:.3f} {bounds} {sizes} (95 %, n = {num_rounds} rounds, paired)")
    return columns


def write_results(rows: pandas.DataFrame, of_sizes: list[BandwidthRow], about: str, out: Path) -> list[Path]:
    """Write both tables and the chart into the folder `out`; returns their paths."""
    tables = {
        "allreduce": rows,
        "bandwidths": pandas.DataFrame([dataclasses.asdict(row) for row in of_sizes]),
    }
    out.mkdir(parents=True, exist_ok=True)
    set_tables_aside(out, [*tables])
    for name, frame in tables.items():
        write_text_atomically(out / f"{name}.csv", frame.assign(machine=about).to_csv(index=False))
    return [
        *(out / f"{name}.csv" for name in tables),
        *save_chart(allreduce_chart(of_sizes, about), out, "allreduce"),
    ]


def time_path(path: str, num_ranks: int, num_rounds: int, largest: int) -> Iterator[dict[str, Any]]:
    """The rows that rank 0 prints, as they come. Raises UserError where the ranks end early."""
    args, threads = [path, str(num_rounds), str(largest)], machine.threads_per_rank(num_ranks)
    num_expected = num_rounds * len(message_sizes(largest))
    if path == HOROVOD:
        yield from _time_horovod(args, num_ranks, threads, num_expected)
        return
    with WorkerPool(RANK_MODULE, args, num_ranks, threads) as workers:
        for _ in range(num_expected):
            yield workers.receive_row()


def _time_horovod(args: list[str], num_ranks: int, threads: int, num_expected: int) -> Iterator[dict[str, Any]]:
    launched = subprocess.Popen(
        [*horovodrun_command(num_ranks), *main_command(RANK_MODULE), *args],
        cwd=ROOT,
        env=rank_environment(threads),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent(),
    )
    with launched:
        assert launched.stdout is not None
        num_received, last_line = 0, ""
        for line in launched.stdout:
            last_line = line.strip() or last_line
            if "row: " in line:
                num_received += 1
                yield json.loads(line.split("row: ")[1])
        if launched.wait() or num_received < num_expected:
            progress = f"after {num_received} of {num_expected} sizes"
            raise UserError(f"horovodrun ended with exit code {launched.returncode} {progress}: {last_line[-300:]}")


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(AllreduceOptions, description=__doc__)))
