"""What `cut: auto` is worth: a pipeline of two stages with measured cuts, beside one with other cuts, alternately.

    ./bench study cuts --image-sizes 48 224 --against estimate

Each pipeline is benchmarks.pipeline_parallel with its own two ranks, which wait while the others train. Of each build,
in which `auto` measures anew, come a few windows; those of one turn, in random order, make a pair. The blocks' times
are measured once more by processes of their own, to say which share of the time the largest stage has.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import statistics
from collections.abc import Sequence

import numpy
import tyro
from tqdm import tqdm

from benchmarks.common.config.config import load_config
from benchmarks.common.store.output_files import refuse_output_of_others
from benchmarks.common.system import gpus, machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.programs import run_main_and_exit
from scripts.options.study_options import CutsOptions
from scripts.setup.check_data import check_image_folder
from scripts.stats.intervals import geometric_mean
from scripts.studies.allreduce.worker_pool import WorkerPool
from scripts.studies.measured_csv import add_rows

NUM_RANKS, AUTO = 2, "auto"
STEP_WORKER, BLOCK_WORKER = "scripts.studies.predict.step_worker", "scripts.studies.cuts.block_worker"
TIMES_OF_BLOCKS = 3


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of one size of images."""

    window_s: dict[str, list[float]]
    """By the requested cut; those of one place in the lists are of one turn."""
    cuts: dict[str, list[int]]
    """Those of each build, by the requested cut."""
    block_s: list[float]


def main(options: CutsOptions) -> int:
    refuse_output_of_others(options.output, makes_folder=True)
    if options.builds * options.pairs_per_build < 3:
        raise UserError("an interval needs 3 pairs or more; raise --builds or --pairs-per-build")
    if gpus.usable_gpus():
        raise UserError("this study is for CPUs; on GPUs compare with: ./bench ab 'flags:--cut estimate' flags:")
    check_image_folder(load_config(common_flags(options)).data)
    names = [AUTO, *options.against]
    for image_size, name in itertools.product(options.image_sizes, names):
        load_config(case_flags(options, image_size, name))  # which refuses what no worker could train
    rng, threads = random.Random(options.seed), machine.threads_per_rank(NUM_RANKS)
    with contextlib.ExitStack() as stack:
        pools = {name: stack.enter_context(WorkerPool(STEP_WORKER, [], NUM_RANKS, threads)) for name in names}
        blocks = stack.enter_context(WorkerPool(BLOCK_WORKER, [], NUM_RANKS, threads))
        for pool in (*pools.values(), blocks):
            pool.wait_for_all("here")
        for image_size in options.image_sizes:
            measured = measure_size(options, image_size, pools, blocks, rng)
            rows = [result_row(options, image_size, name, measured) for name in options.against]
            for row in rows:  # printed first: the file may be of another suite, and is refused then
                print(describe(row), flush=True)
            add_rows(options.output, rows)
    print(f"written: {options.output}")
    return 0


def measure_size(
    options: CutsOptions, image_size: int, pools: dict[str, WorkerPool], blocks: WorkerPool, rng: random.Random
) -> Measured:
    """All windows of one size of images, and its blocks' times."""
    window_s: dict[str, list[float]] = {name: [] for name in pools}
    cuts: dict[str, list[int]] = {name: [] for name in pools}
    for _ in tqdm(range(options.builds), desc=f"{image_size} px", disable=None, leave=False):
        for name, pool in pools.items():  # one after the other, for auto measures in it
            flags = case_flags(options, image_size, name)
            rendezvous = pool.new_rendezvous_file()
            case = {"module": "pipeline_parallel", "flags": flags, "rendezvous_file": rendezvous, "profile": False}
            pool.send(json.dumps(case))
            cuts[name].append(pool.receive("built")["cut"])
            pool.wait_for_all("ready")
        for _ in range(options.pairs_per_build):
            for name in rng.sample([*pools], len(pools)):
                pools[name].send("go")
                step_ms = [window["step_ms"] for window in pools[name].receive_all("window")]
                window_s[name].append(max(map(sum, step_ms)) / 1000)
                pools[name].wait_for_all("ready")
        for pool in pools.values():
            pool.send("stop")
    times = []
    for _ in range(TIMES_OF_BLOCKS):
        blocks.send(json.dumps(case_flags(options, image_size, AUTO)))
        times += [answer["block_s"] for answer in blocks.receive_all("blocks")]
    return Measured(window_s, cuts, [statistics.median(of_block) for of_block in zip(*times, strict=True)])


def common_flags(options: CutsOptions) -> list[str]:
    data = os.environ.get("DATA", "").strip()
    return ["--config", options.config, *(["--data", data] if data else [])]


def case_flags(options: CutsOptions, image_size: int, cut: str) -> list[str]:
    """The configuration of a pipeline. Nothing is learned: what is timed stays the same work."""
    num_windows = options.pairs_per_build + 1  # the last is not begun
    num_steps = options.warmup_steps + (num_windows + 1) * options.window_steps
    flags = f"--image-size={image_size} --cut={cut} --loader folder --epochs 1 --steps {num_steps} --account-steps 0"
    flags += f" --warmup-steps {options.warmup_steps} --windows {num_windows} --window-steps {options.window_steps}"
    return [*common_flags(options), *flags.split(), "--lr", "0"]


def largest_share(block_s: Sequence[float], cut: int) -> float:
    """Of two stages, as a fraction of the time of both."""
    first = sum(block_s[:cut]) / sum(block_s)
    return max(first, 1 - first)


def result_row(options: CutsOptions, image_size: int, against: str, measured: Measured) -> dict:
    """A row of the CSV file: `auto` over another cut."""
    pairs = zip(measured.window_s[AUTO], measured.window_s[against], strict=True)
    ratio, low, high = geometric_mean(numpy.log([other_s / auto_s for auto_s, other_s in pairs]))
    auto_cut, other_cut = (statistics.mode(measured.cuts[name]) for name in (AUTO, against))
    shares = {cut: largest_share(measured.block_s, cut) for cut in range(1, len(measured.block_s))}
    best = min(shares, key=lambda cut: shares[cut])
    config = load_config(common_flags(options))
    images = config.global_batch * options.window_steps
    return {
        "arch": config.arch,
        "image_size": image_size,
        "global_batch": config.global_batch,
        "against": against,
        "auto_cuts": " ".join(map(str, measured.cuts[AUTO])),
        "other_cut": other_cut,
        "auto_images_per_s": images / statistics.median(measured.window_s[AUTO]),
        "other_images_per_s": images / statistics.median(measured.window_s[against]),
        "ratio": ratio,
        "ci_low": low,
        "ci_high": high,
        "num_pairs": len(measured.window_s[AUTO]),
        "auto_largest_share": shares[auto_cut],
        "other_largest_share": shares[other_cut],
        "best_largest_share": shares[best],
        "best_cut": best,
    }


def describe(row: dict) -> str:
    """A sentence of a row."""
    percent = {name: f"{100 * row[f'{name}_largest_share']:.0f} %" for name in ("auto", "other", "best")}
    return (
        f"{row['image_size']} px: throughput with cut auto ({row['auto_cuts']}) over that with cut {row['against']} "
        f"({row['other_cut']}): {row['ratio']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}] (95 % over "
        f"{row['num_pairs']} pairs, assumed independent); by the blocks' times, measured afterwards, the largest stage "
        f"of auto's most frequent cut has {percent['auto']} of the time, that of the other {percent['other']}; at best "
        f"{percent['best']}, with cut {row['best_cut']}"
    )


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(CutsOptions, description=__doc__)))
