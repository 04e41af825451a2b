"""How fast gradients travel: all-reduces from 1 KB to 256 MB, by the path that each strategy sends them through.

    python -m scripts.studies.allreduce.measure --out results/allreduce              # make bench-allreduce

gloo (or NCCL, where there are GPUs) as DDP calls it, in float32 and, as compressed gradients are, in bf16; and
Horovod. Each size is checked, then timed by turns with a bare loop of the library's plainest call. Bandwidths are those
of nccl-tests: algbw is bytes over time, busbw what a ring's links carry of it. A fit of latency and bandwidth is the
link model of `make predict`. Leaves allreduce.csv, bandwidths.csv, links.csv and a chart. Exit code 1: a sum was wrong.
"""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas
import tyro
from tqdm import tqdm

from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.gpus import usable_gpus
from scripts.charts.figures import save_chart
from scripts.runner.launch_ranks import environment, horovodrun
from scripts.runner.measured_figures import add_rows
from scripts.stats.formatting import format_interval
from scripts.studies.allreduce.analysis import FROM, SMALLEST, bandwidth_rows, links, over_bare, said, sizes_to, table
from scripts.studies.allreduce.chart import allreduce_chart
from scripts.studies.allreduce.links import row_of
from scripts.studies.allreduce.worker_pool import ROOT, Crew, calling

RANK = "scripts.studies.allreduce.allreduce_rank"
HOROVOD = "horovod"


@dataclasses.dataclass(frozen=True)
class Options:
    """All-reduces of many sizes on the ranks of this machine: NPROC, by default one a GPU, else 2."""

    out: Path = Path("results/allreduce")
    """Folder for the tables and the chart."""
    rounds: int = 10
    """Of all sizes of a path; 2 or more."""
    largest: int = 2**28
    """Bytes of the largest all-reduce; 1 KB or more."""
    only: tuple[str, ...] = ()
    """Paths, such as gloo or horovod; default: all that are here."""
    output: Path | None = None
    """CSV file to which each path's link and ratio to a bare loop are added, with commit, date and machine."""


def main(options: Options) -> int:
    ranks = machine.num_ranks()
    if options.rounds < 2 or options.largest < SMALLEST:
        raise UserError("a spread needs --rounds 2 or more, and a size --largest 1024 or more")
    if ranks < 2:
        raise UserError("one rank has nobody to send to; set NPROC=2 or more")
    library = "nccl" if machine.num_gpus() else "gloo"
    paths = [path for path in (library, f"{library}, bf16", HOROVOD) if not options.only or path in options.only]
    if not paths:
        raise UserError(f"no path {options.only[0]!r} here; there are {library}, '{library}, bf16' and {HOROVOD}")
    if HOROVOD in paths and importlib.util.find_spec(HOROVOD) is None:
        paths.remove(HOROVOD)
        print("horovod is skipped: it is not installed; run scripts/setup/install_horovod.sh", file=sys.stderr)
    found = []
    num_sizes = len(sizes_to(options.largest))
    with tqdm(total=len(paths) * options.rounds * num_sizes, desc="all-reduces", disable=None, leave=False) as bar:
        for path in paths:
            for row in rows_of(path, ranks, options.rounds, options.largest):
                found.append({"path": path} | row)
                bar.update()
    rows = pandas.DataFrame(found)
    about = f"{device()}, {ranks} ranks on {machine.num_cores()} cores"
    return told(rows, about, options.out, options.output)


def told(rows: pandas.DataFrame, about: str, out: Path, output: Path | None = None) -> int:
    """Print what the rounds say, and write it; 1 where a sum was wrong."""
    found, fits, kept = bandwidth_rows(rows), links(rows), []
    print(f"{about}\n{table(found)}\n")
    for fit in fits:
        ratios = {"num_rounds": rows[rows.path == fit.path]["round"].nunique()}
        for at_least, name, words in ((0, "all", "over all sizes"), (FROM, "from_1_mb", "from 1 MB on")):
            ratio, low, high = over_bare(rows, fit.path, min(at_least, int(rows.bytes.max())))
            ratios |= {f"over_bare_{name}": ratio, f"over_bare_{name}_low": low, f"over_bare_{name}_high": high}
            bounds = format_interval(low, high, "{:.3f}".format)
            n = f"n = {ratios['num_rounds']} rounds, paired"
            print(f"{fit.path}: busbw / a bare loop's {ratio:.3f} {bounds} {words} (95 %, {n})")
        kept.append(row_of(fit) | ratios)
    print("\n" + "\n".join(map(said, fits)))
    if output:
        add_rows(output, kept)
    out.mkdir(parents=True, exist_ok=True)
    for name, some in (("allreduce", rows), ("bandwidths", pandas.DataFrame(found))):
        write_text_atomically(out / f"{name}.csv", some.assign(machine=about).to_csv(index=False))
    fitted = pandas.DataFrame(map(row_of, fits)).assign(machine=about)
    write_text_atomically(out / "links.csv", fitted.to_csv(index=False))
    charts = save_chart(allreduce_chart(found, fits, about), out, "allreduce")
    tables = (out / f"{name}.csv" for name in ("allreduce", "bandwidths", "links"))
    print("\nwritten:", *(f"  {path}" for path in (*tables, *charts)), sep="\n")
    if wrong := int(rows.wrong.sum()):
        print(f"error: {wrong} values of {(rows.wrong > 0).sum()} all-reduces were not the sum", file=sys.stderr)
        return 1
    return 0


def rows_of(path: str, ranks: int, rounds: int, largest: int) -> Iterator[dict]:
    """The rows that the ranks print, as they come. Raises UserError where they do not get to their end."""
    args, threads = [path, str(rounds), str(largest)], machine.threads_per_rank(ranks)
    expected = rounds * len(sizes_to(largest))
    if path != HOROVOD:
        with Crew(RANK, args, ranks, threads) as crew:
            for _ in range(expected):
                yield crew.hear("row")
        return
    command = [*horovodrun(ranks), *calling(RANK), *args]
    given = {
        "cwd": ROOT,
        "env": environment(threads),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    with subprocess.Popen(command, **given) as launched:
        heard, last = 0, ""
        for line in launched.stdout:
            last = line.strip() or last
            if "row: " in line:
                heard += 1
                yield json.loads(line.split("row: ")[1])
        if launched.wait() or heard < expected:
            at = f"after {heard} of {expected} sizes"
            raise UserError(f"horovodrun ended with {launched.returncode} {at}: {last[-300:]}")


def device() -> str:
    import torch

    from benchmarks.common.dist.devices import device_name

    return device_name(torch.device("cuda" if usable_gpus() else "cpu"))


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
