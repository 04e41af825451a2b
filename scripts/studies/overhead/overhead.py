"""What the suite costs: its ddp beside a bare DDP loop.

    ./bench study overhead                             # images/s of benchmarks.ddp / of the bare loop
    ./bench study overhead --what same-decoder         # the same, where the suite decodes with Pillow, too

Launches of benchmarks.ddp by torchrun. Alternately before and after its timed windows, the same ranks run as many steps
of the bare loop: same model, files, batches and threads. CPU time of the first rank gives a second ratio beside the
wall clock's.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy
import tyro
from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.architectures import architecture_of
from benchmarks.common.config import load_config, resolve_global_batch
from benchmarks.common.errors import UserError
from scripts.options.study_options import OverheadOptions
from scripts.sets.output_files import check_output
from scripts.shared.forward_signals import die_with_parent
from scripts.shared.programs import run_main_and_exit
from scripts.shared.repository import ROOT
from scripts.stats.formatting import format_with_interval
from scripts.stats.intervals import geometric_mean
from scripts.studies.allreduce.launch_ranks import rank_environment, torchrun_command
from scripts.studies.measured_csv import add_rows

WARMUP_STEPS, WINDOW_STEPS = 4, 2


def main(options: OverheadOptions) -> int:
    check_output(options.output, makes_folder=True)
    if options.pairs < 6:
        raise UserError(f"--pairs is {options.pairs}, but a spread needs at least 6")
    flags = ["--config", options.config, *(["--data", options.data] if options.data else [])]
    if options.what == "same-decoder":
        flags += ["--decoder", "pillow"]
    num_launches = options.launches
    if not 1 <= num_launches <= options.pairs // 2:
        raise UserError(f"--launches is {num_launches}, but must be 1 to {options.pairs // 2}: half of --pairs")
    ratios = compare_launches(options, flags)
    unit = "launches" if num_launches > 1 else "pairs of one launch"
    rows = []
    for name, values in ratios.items():
        value, low, high = geometric_mean(numpy.log(values))
        rows.append({"what": options.what, "quantity": name, "ratio": value, "ci_low": low, "ci_high": high})
        num_pairs = len(values) if num_launches == 1 else options.pairs // num_launches * num_launches
        rows[-1] |= {"num_pairs": num_pairs, "num_launches": num_launches}
        spread = f"from {min(values):.4f} to {max(values):.4f}, standard deviation {statistics.stdev(values):.4f}"
        ratio = format_with_interval(value, low, high, "{:.4f}".format)
        print(f"{name}: {ratio} (95 %, n={len(values)} {unit}); {spread}")
    if options.output:
        add_rows(options.output, rows)
    of_wall_clock = next(iter(ratios.values()))
    return int(geometric_mean(numpy.log(of_wall_clock))[0] < options.fail_under)


def compare_launches(options: OverheadOptions, flags: list[str]) -> dict[str, list[float]]:
    """What compare_loops finds, a value for each launch: the geometric mean of its pairs, which share its luck. Of one
    launch the values are those of its pairs."""
    found = [compare_loops(options.pairs // options.launches, flags) for _ in range(options.launches)]
    if len(found) == 1:
        return found[0]
    return {name: [float(numpy.exp(numpy.log(launch[name]).mean())) for launch in found] for name in found[0]}


def compare_loops(pairs: int, flags: list[str]) -> dict[str, list[float]]:
    """Images a second, and a CPU second, of benchmarks.ddp over those of the bare loop, for each pair of windows.

    Raises UserError where the data are unfit or the ranks fail.
    """
    from benchmarks.common.loader import open_datasets

    config = load_config(flags)
    if (optimizer := architecture_of(config.arch).optimizer) != "SGD":
        raise UserError(
            f"{config.arch} is trained with {optimizer} here, and by the bare loop with SGD; choose a ResNet"
        )
    open_datasets(config)
    # lr 0: both do the same work for ever; a loss that sinks meets numbers that a CPU is slow with
    alike = f"--loader folder --epochs 1 --windows {pairs} --warmup-steps {WARMUP_STEPS} --window-steps {WINDOW_STEPS}"
    num_ranks = machine.num_ranks()
    steps = WARMUP_STEPS + pairs * WINDOW_STEPS
    flags = [*flags, *alike.split(), *f"--steps {steps} --account-steps 0 --lr 0".split()]
    with (
        tempfile.TemporaryDirectory(prefix="overhead-") as rendezvous_folder,
        tqdm(total=pairs, desc="pairs of windows", disable=None, leave=False) as bar,
    ):
        taken = []
        start, variables = torchrun_command(num_ranks, rendezvous_folder)
        command = [*start, "-m", "scripts.studies.overhead.overhead", "rank", *flags]
        env = rank_environment(machine.threads_per_rank(num_ranks)) | variables
        errors = Path(rendezvous_folder, "errors")
        with (
            errors.open("w") as file,
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                preexec_fn=die_with_parent(),
            ) as ranks,
        ):
            assert ranks.stdout is not None
            for line in ranks.stdout:
                if line.startswith("pair: "):
                    taken.append(json.loads(line.removeprefix("pair: ")))
                    bar.update()
        if ranks.returncode:
            raise UserError(f"the ranks did not get to the end:\n{errors.read_text()[-2000:]}")
    seconds, cpu_s = ([bare[n] / suite[n] for suite, bare in taken] for n in range(2))
    return {"suite / bare, images per second": seconds, "suite / bare, images per CPU second": cpu_s}


def rank(flags: list[str]) -> None:
    """One rank of benchmarks.ddp, with windows of the bare loop between its own. Rank 0 prints both at each pair."""
    import torch
    import torch.distributed as dist

    from benchmarks import ddp
    from benchmarks.common.clock import Clock
    from benchmarks.common.engine import fit
    from benchmarks.common.rank import synchronize
    from scripts.studies.overhead import bare_ddp

    config = resolve_global_batch(load_config(flags), int(os.environ["WORLD_SIZE"]))
    shared = {name: getattr(config, name) for name in "arch image_size global_batch momentum weight_decay".split()}
    shared |= {
        "folder": f"{config.data}/train",
        "num_images": config.steps * config.global_batch,
        "lr": config.lr * config.global_batch / config.lr_batch,
    }
    shared |= {"workers": machine.resolve_num_workers(config.workers, machine.num_gpus() > 0)}
    settings = bare_ddp.LoopSettings(**shared)

    class PairedClock(Clock):
        """A clock that times a window of the bare loop before or after each window of the suite."""

        def __init__(self, devices: Sequence[torch.device]):
            super().__init__(devices)
            self.bare, self.num_windows = bare_ddp.train(self.device, settings), 0
            for _ in range(WARMUP_STEPS):
                next(self.bare)

        def bare_window(self) -> tuple[float, float]:
            """(seconds, CPU seconds) of a window of the bare loop."""
            dist.barrier()
            synchronize(self.device)
            began = time.perf_counter(), time.process_time()
            for _ in range(WINDOW_STEPS):
                next(self.bare)
            synchronize(self.device)
            times = time.perf_counter() - began[0], time.process_time() - began[1]
            dist.barrier()
            return times

        def start(self) -> None:
            self.bare_before = self.bare_window() if self.num_windows % 2 else None
            super().start()
            self.cpu_started_s = time.process_time()

        def stop(self) -> tuple[float, list[float]]:
            seconds, step_ms = super().stop()
            suite = seconds, time.process_time() - self.cpu_started_s
            bare = self.bare_before or self.bare_window()
            self.num_windows += 1
            if dist.get_rank() == 0:
                print("pair:", json.dumps([suite, bare]), flush=True)
            return seconds, step_ms

    strategy = ddp.build(config)
    fit(strategy, PairedClock(strategy.rank.devices))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2:])
        sys.exit()
    run_main_and_exit(lambda: main(tyro.cli(OverheadOptions, description=__doc__)))
