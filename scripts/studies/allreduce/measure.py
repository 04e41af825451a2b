"""Bandwidth of all-reduces from 1 KB to 256 MB between the ranks of this machine.

    ./bench study allreduce --rounds 10

By gloo, with GPUs by NCCL, as DDP calls it, in fp32 and bf16. Exit code 1: a sum was wrong.
"""

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas
import torch
from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.rank import device_name
from scripts.studies.allreduce.analysis import (
    DTYPES,
    ROW,
    SMALLEST_BYTES,
    bandwidth_rows,
    table,
)
from scripts.studies.allreduce.launch_ranks import run_ranks
from scripts.studies.options import AllreduceOptions


def main(options: AllreduceOptions) -> int:
    if options.nproc:
        os.environ["NPROC"] = str(options.nproc)
    num_ranks = machine.num_ranks()
    if options.rounds < 2 or options.largest < SMALLEST_BYTES or options.largest % SMALLEST_BYTES:
        raise UserError("an interval needs --rounds 2 or more, and --largest a multiple of 1024 bytes")
    if num_ranks < 2:
        raise UserError("an all-reduce needs two ranks; set --nproc 2 or more")
    library = "nccl" if machine.num_gpus() else "gloo"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="allreduce-") as folder:
        for dtype in tqdm(DTYPES, desc="all-reduces", disable=None, leave=False):
            words = ["-m", "scripts.studies.allreduce.allreduce_rank", dtype, str(options.rounds), str(options.largest)]
            for line in run_ranks(words, num_ranks, Path(folder, dtype)).splitlines():
                if line.startswith(ROW):
                    rows.append({"path": f"{library}, {dtype}"} | json.loads(line.removeprefix(ROW)))
    return report(pandas.DataFrame(rows), options)


def report(rows: pandas.DataFrame, options: AllreduceOptions) -> int:
    of_sizes = bandwidth_rows(rows)
    device = device_name(torch.device("cuda" if machine.num_gpus() else "cpu"))
    about = f"{device}, {of_sizes[0].ranks} ranks on {machine.num_cores()} cores"
    print(f"{about}\n{table(of_sizes)}\n")
    options.out.mkdir(parents=True, exist_ok=True)
    tables = {"allreduce": rows, "bandwidths": pandas.DataFrame([dataclasses.asdict(row) for row in of_sizes])}
    for name, frame in tables.items():
        write_text_atomically(options.out / f"{name}.csv", frame.assign(machine=about).to_csv(index=False))
    print(f"written: {options.out}/bandwidths.csv, allreduce.csv")
    if num_wrong := int(rows.wrong.sum()):
        print(f"error: {num_wrong} values of {(rows.wrong > 0).sum()} all-reduces were not the sum", file=sys.stderr)
        return 1
    return 0
