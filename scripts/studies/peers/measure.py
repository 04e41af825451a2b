"""The suite's ddp beside other training loops: interleaved launches, until the intervals of the ratios are narrow.

    ./bench study peers --results results/latest --minutes 30
    python -m scripts.studies.peers.measure --only bare itself        # is 0.93 of a bare loop noise?

A round launches benchmarks.ddp and each peer that is not done, in random order, each as a process group of its own,
with the same model, images, batch size, ranks and threads, in float32. The order of images and the crops differ, and so
does the decoder where the suite's is not Pillow. Horovod's loop reads no images: it repeats one random batch, and so
does the suite beside it. On a CPU all loops keep freed memory. A peer is done when the 95 % interval of suite / peer
reaches no further than --width to each side, after ten rounds or more and twice in a row, or after --minutes of its
launches and the suite's; --rounds ends all. `itself` is the suite a second time, so that its ratio shows the noise.
Packages that are missing are named with the command that installs them. Every launch goes to peer_launches.csv, the
ratios to peers.csv and a chart. Exit code: 1 where a peer fails.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import tyro
from tqdm import tqdm

from benchmarks.common.config.config import load_config, resolve_global_batch
from benchmarks.common.store.output_files import refuse_output_of_others
from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.forward_signals import die_with_parent
from benchmarks.common.system.options_as_typed import option_as_typed
from benchmarks.common.system.programs import run_main_and_exit
from benchmarks.common.system.repository import ROOT
from scripts.charts.figures import save_chart
from scripts.options.study_options import PeersOptions
from scripts.runner.make_variables import MakeVariables, read_variables
from scripts.runner.preflight import check_ranks, open_result_set
from scripts.runner.schedule import lock_result_set
from scripts.setup.check_data import check_image_folder
from scripts.stats.formatting import format_interval, text_table
from scripts.studies.allreduce.launch_ranks import horovodrun_command, rank_environment, torchrun_command
from scripts.studies.measured_csv import add_rows
from scripts.studies.peers.analysis import (
    SUITE,
    SYNTHETIC,
    Launch,
    csv_text,
    estimate_ratio,
    is_precise,
    outcome,
    ratio_rows,
    refuse_other_optimizers,
    rows_to_publish,
)
from scripts.studies.peers.chart import peers_chart
from scripts.studies.peers.repeated_images import repeated_images
from scripts.studies.peers.shared_memory import why_too_little_shared_memory

LIMIT_S = 600.0  # of a launch, where neither TIMEOUT nor the configuration has a limit


@dataclasses.dataclass(frozen=True)
class Peer:
    """A loop that the suite is compared with: a module with `train`, or the suite where there is none."""

    name: str
    what: str
    module: str = ""
    needs: str = ""
    remedy: str = ""
    suite: str = SUITE
    """What of the suite it is compared with."""
    num_bytes_per_value: int = 0
    """Of the batches that its loader workers pass through /dev/shm; 0: it has none."""
    by_horovodrun: bool = False


PEERS = [
    Peer("imagenet_example", "PyTorch's ImageNet example, its structure", "peer_example", num_bytes_per_value=4),
    Peer("fabric", "Lightning Fabric", "peer_fabric", "lightning", "pip install lightning", num_bytes_per_value=4),
    Peer(
        "accelerate",
        "Hugging Face Accelerate",
        "peer_accelerate",
        "accelerate",
        "pip install accelerate",
        num_bytes_per_value=4,
    ),
    Peer(
        "horovod_synthetic",
        "Horovod's synthetic benchmark, its structure; no files on either side",
        "peer_horovod",
        "horovod",
        "scripts/setup/install_horovod.sh",
        SYNTHETIC,
        by_horovodrun=True,
    ),
    Peer("bare", "a bare DDP loop", "bare_ddp", num_bytes_per_value=1),
    Peer("itself", "the suite a second time: noise alone"),
]


def main(options: PeersOptions) -> int:
    refuse_output_of_others(options.output, makes_folder=True)
    chosen = [peer for peer in PEERS if not options.only or peer.name in options.only]
    if not 0 < options.width < 1:
        raise UserError(f"--width is {options.width}, but must be a fraction, such as 0.03")
    if unknown := {*options.only} - {peer.name for peer in PEERS}:
        raise UserError(f"no peer {unknown.pop()!r}; there are {', '.join(peer.name for peer in PEERS)}")
    why_not = {
        peer.name: f"not installed; {peer.remedy}"
        for peer in chosen
        if peer.needs and importlib.util.find_spec(peer.needs) is None
    }
    variables = read_variables()
    flags = flags_of(variables)
    config = load_config(flags)
    refuse_other_optimizers(config.arch)
    check_ranks([config], [variables.ranks_here])
    check_image_folder(config.data)
    resolved = resolve_global_batch(config, machine.num_ranks())
    for peer in chosen:
        if why := why_too_little_shared_memory(resolved, peer.num_bytes_per_value, machine.num_gpus() > 0):
            why_not.setdefault(peer.name, why)
    all_images = load_config(flags).steps * resolved.global_batch
    limit_s = (variables.limit_s if variables.limit_s is not None else config.limit_s or LIMIT_S) or None
    results = open_result_set(variables.results, "peers-")
    if there := next((name for name in ("peers.csv", "peer_launches.csv") if (results / name).exists()), ""):
        remedy = f"choose another {option_as_typed('RESULTS', '')}, or move {there} away"
        raise UserError(f"{results} has peers of another session, maybe of one that was stopped; {remedy}")
    about = f"{config.arch}, {config.image_size} px, {machine.num_ranks()} ranks"
    available = [peer for peer in chosen if peer.name not in why_not]
    with lock_result_set(results), repeated_images(config.data, all_images) as folder:
        launch_here = functools.partial(launch, flags=flags, folder=folder, limit_s=limit_s)
        launches = run_rounds(options, available, launch_here, results, why_not)
    rows = ratio_rows([(peer.name, peer.what, peer.suite) for peer in chosen], launches, why_not)
    write_text_atomically(results / "peers.csv", csv_text(rows, about))
    if options.output:
        add_rows(options.output, rows_to_publish(rows, about), replace=True)
    print(
        text_table(
            [("peer", "n", "suite / peer", "95 %", "half-width", ""), *map(terminal_cells, rows)], left_aligned=(0, 5)
        )
    )
    print("\nwritten:", *(f"  {results / name}" for name in ("peer_launches.csv", "peers.csv")), sep="\n")
    if any(row["ratio"] for row in rows):
        print(*(f"  {path}" for path in save_chart(peers_chart(rows, about), results / "charts", "peers")), sep="\n")
    return int(any("ended with" in text for text in why_not.values()))


def terminal_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table on the terminal."""
    if row["ratio"] is None:
        return row["peer"], "", "", "", "", row["why_not"]
    bounds, width = format_interval(row["ratio_low"], row["ratio_high"], "{:.3f}".format), row["half_width"]
    shown = "" if width is None else f"{100 * width:.1f} %"
    ratio, said = f"{row['ratio']:.3f}", outcome(row["verdict"], row["why_not"])
    return row["peer"], str(row["num_pairs"]), ratio, bounds, shown, said


def flags_of(variables: MakeVariables) -> list[str]:
    """The configuration of every launch: what the user gave, in float32, one long epoch of its windows.

    lr 0: both sides do the same work for ever; a loss that sinks meets numbers that a CPU is slow with.
    """
    config = load_config(variables.flags)
    steps = 1 + config.warmup_steps + (config.windows + 1) * config.window_steps
    alike = "--loader folder --precision fp32 --memory-format contiguous --lr 0 --epochs 1 --account-steps 0"
    return [*variables.flags, *alike.split(), "--steps", str(steps)]


def run_rounds(
    options: PeersOptions, peers: list[Peer], launch: Callable[..., float], results: Path, why_not: dict[str, str]
) -> list[Launch]:
    """Run rounds until every peer is done. Peers that fail are added to why_not. Raises UserError where the suite
    fails."""
    launches: list[Launch] = []
    by_name = {peer.name: peer for peer in peers}
    seed, round_number = time.time_ns() % 2**32, 0
    with tqdm(total=len(peers), desc="peers", unit="peer", disable=None, leave=False) as bar:
        while left := [peer for peer in peers if peer.name not in why_not and not is_done(peer, launches, options)]:
            round_number += 1
            if options.rounds and round_number > options.rounds:
                break
            bar.update(len(peers) - len(left) - bar.n)
            names = [*dict.fromkeys(peer.suite for peer in left), *(peer.name for peer in left)]
            for place, name in enumerate(random.Random(f"{seed} {round_number}").sample(names, len(names)), 1):
                bar.set_postfix_str(f"round {round_number}: {name}")
                began = time.monotonic()
                try:
                    rate = launch(by_name.get(name), ["--loader", "synthetic"] if name == SYNTHETIC else [])
                except UserError as error:
                    if name in (SUITE, SYNTHETIC):
                        raise
                    why_not[name] = str(error)
                    continue
                launches.append(Launch(round_number, place, name, rate, time.monotonic() - began))
                write_text_atomically(results / "peer_launches.csv", csv_text(map(dataclasses.asdict, launches)))
            for peer in left:
                found = estimate_ratio(peer.name, peer.suite, launches)
                if found is not None:
                    bounds = format_interval(found.low, found.high, "{:.3f}".format)
                    tqdm.write(f"round {round_number}: suite / {peer.name} {found.value:.3f} {bounds}".rstrip())
    return launches


def is_done(peer: Peer, launches: list[Launch], options: PeersOptions) -> bool:
    """Whether the ratio of a peer is precise enough, or its time is used up."""
    spent_s = sum(launch.seconds for launch in launches if launch.name in (peer.name, peer.suite))
    return is_precise(peer.name, peer.suite, launches, options.width) or spent_s > 60 * options.minutes


def launch(
    peer: Peer | None, launch_flags: list[str], *, flags: list[str], folder: str, limit_s: float | None
) -> float:
    """images/s of one launch of a peer on all ranks; None: of the suite.

    flags: of all launches. launch_flags: of this one. folder: the images of a peer. Raises UserError where the launch
    fails or takes longer than limit_s.
    """
    num_ranks = machine.num_ranks()
    module = peer.module if peer is not None else ""
    data = ["--data", folder] if module else []
    with tempfile.TemporaryDirectory(prefix="peers-") as rendezvous_folder:
        start, variables = torchrun_command(num_ranks, rendezvous_folder)
        if peer is not None and peer.by_horovodrun:
            start, variables = [*horovodrun_command(num_ranks), sys.executable], {}
        child = subprocess.Popen(
            [*start, "-m", "scripts.studies.peers.measure", "rank", module, *flags, *launch_flags, *data],
            cwd=ROOT,
            env=rank_environment(machine.threads_per_rank(num_ranks)) | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(),
        )
        stdout, stderr, code = wait_for(child, limit_s)
    windows = [json.loads(line.split("window: ")[1]) for line in stdout.splitlines() if "window: " in line]
    if code or not windows:
        errors = [line for line in stderr.splitlines() if "Error" in line] or stderr.splitlines()[-1:] or [""]
        raise UserError(f"ended with code {code}: {errors[0][-300:]}")
    images, seconds = (sum(window[key] for window in windows) for key in ("images", "seconds"))
    return images / seconds


def wait_for(child: subprocess.Popen[str], limit_s: float | None) -> tuple[str, str, int]:
    """(stdout, stderr, exit code) of a launch. Raises UserError after limit_s, when the launch is killed with its
    ranks."""
    with child:
        try:
            stdout, stderr = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            launcher = psutil.Process(child.pid)
            for process in (*launcher.children(recursive=True), launcher):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            limit = limit_s or 0.0
            more = option_as_typed("TIMEOUT", f"{2 * limit:g}")
            raise UserError(f"ended with no result, after {limit:g} s; {more} gives it more") from None
    return stdout, stderr, child.returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        from scripts.studies.peers.peer_rank import rank

        rank(sys.argv[2], sys.argv[3:])
        sys.exit()
    run_main_and_exit(lambda: main(tyro.cli(PeersOptions, description=__doc__)))
