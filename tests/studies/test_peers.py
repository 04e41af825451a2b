"""`./bench study peers`: pairs of launches become ratios, a peer is done once its ratio is known; what lacks is named.

.venv/bin/python -m pytest tests/studies/test_peers.py
"""

import csv
import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import psutil
import pytest
import torch
from support import NUM_TRAIN, ROOT, TINY_YAML, environment
from torchvision.datasets import ImageFolder

from benchmarks.common.config.config import Config
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import hold_lock
from scripts.studies.peers import measure, peer_rank, shared_memory
from scripts.studies.peers.analysis import SUITE, SYNTHETIC, Launch, csv_text, estimate_ratio, is_precise, ratio_rows
from scripts.studies.peers.chart import peers_chart, read_peers, report_cells
from scripts.studies.peers.measure import PEERS, Peer, PeersOptions, is_done, launch
from scripts.studies.peers.repeated_images import repeated_images


def launches(ratio: float, num_rounds: int, sd: float, seed: int = 0) -> list[Launch]:
    """Rounds in which the suite is `ratio` times as fast as a peer; sd: of the logarithm of a launch's throughput. What
    a round does to both is ten times as much."""
    noise, found = numpy.random.default_rng(seed), []
    for number in range(1, num_rounds + 1):
        of_round = 10 * sd * noise.standard_normal()
        for place, (name, speed) in enumerate(((SUITE, ratio), ("other", 1.0)), 1):
            rate = 100 * speed * numpy.exp(of_round + sd * noise.standard_normal())
            found.append(Launch(number, place, name, float(rate), 30.0))
    return found


def test_peers_need_shared_memory_for_their_batches(monkeypatch):
    """Protects from a bus error without a word: Docker gives /dev/shm 64 MB. 8 workers keep 2 batches each of 256
    images at 224 px, as float32 or, of the bare loop, as uint8. Mutants: one batch a worker; bytes of one kind."""
    free = [0]
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: SimpleNamespace(free=free[0]))
    config = Config(workers=8, global_batch=256, image_size=224)
    for num_bytes in (1, 4):
        free[0] = needed = 8 * 2 * 256 * 3 * 224 * 224 * num_bytes
        assert shared_memory.why_too_little_shared_memory(config, num_bytes, on_gpu=True) == ""
        free[0] = needed - 1
        why = shared_memory.why_too_little_shared_memory(config, num_bytes, on_gpu=True)
        assert f"may keep {needed / 1e9:.1f} GB of batches in /dev/shm" in why and "--shm-size" in why
    assert shared_memory.why_too_little_shared_memory(dataclasses.replace(config, workers=0), 4, on_gpu=True) == ""
    assert {peer.name for peer in PEERS if not peer.num_bytes_per_value} == {"horovod_synthetic", "itself"}


def test_a_ratio_is_of_pairs():
    """Protects the interval from what a round did to both: launches far apart in time are not compared."""
    found = estimate_ratio("other", SUITE, launches(1.1, 12, 0.01))
    assert found.low < 1.1 < found.high and found.half_width < 0.02 and found.verdict == "faster"
    assert estimate_ratio("other", SUITE, launches(1.1, 1, 0.01)).low is None
    assert estimate_ratio("nobody", SUITE, launches(1.1, 3, 0.01)) is None


def test_a_peer_is_done_when_its_ratio_is_known_or_its_time_is_over():
    """Protects 30 minutes of machine time, and the claim of 3 %: not known after a few pairs that happen to agree."""
    peer, options = Peer("other", "another"), PeersOptions()
    assert not is_precise("other", SUITE, launches(1, 6, 0.0001), 0.03)
    assert is_done(peer, launches(1, 12, 0.005), options)  # intervals are looked at from ten rounds on
    assert not is_done(peer, launches(1, 9, 0.2), options)
    assert is_done(peer, launches(1, 31, 0.2), options)  # 31 pairs of a minute
    assert not is_done(peer, [], options)


def test_the_table_and_the_chart_have_every_peer(tmp_path):
    """Protects what people read: one that was not installed is a row with its remedy, and no bar."""
    names = [("other", "another loop", SUITE), ("gone", "one that is not here", SYNTHETIC)]
    taken, why_not = launches(1.1, 8, 0.01), {"gone": "not installed; pip install gone"}
    rows = ratio_rows(names, taken, why_not)
    (tmp_path / "peers.csv").write_text(csv_text(rows, "resnet18, 2 ranks"))
    (tmp_path / "peer_launches.csv").write_text(csv_text([vars(each) for each in taken]))
    again, about = read_peers(tmp_path)
    assert [*map(report_cells, again)] == [*map(report_cells, rows)] and about == "resnet18, 2 ranks"
    assert again[0]["pairs"] == pytest.approx(rows[0]["pairs"]) and rows[0]["num_pairs"] == len(rows[0]["pairs"]) == 8
    assert [report_cells(row)[-1] for row in rows] == ["faster", "not installed; pip install gone"]
    with open(tmp_path / "peers.csv", newline="") as file:
        saved = [*csv.DictReader(file)]
    assert saved[1]["ratio"] == "" and saved[1]["why_not"] == "not installed; pip install gone"
    figure = peers_chart(rows, about)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["another loop"]
    assert figure.axes[0].get_xlim()[0] == 0
    order = {str(line.get_marker()): line.get_zorder() for line in figure.axes[0].lines}
    assert order["|"] > order["o"], "many points must not hide an interval"


def test_a_ratio_without_an_interval_says_why():
    """Protects who sees no interval. Mutants: a table that says `no verdict` alone; a chart without the reason."""
    rows = ratio_rows([("other", "another loop", SUITE)], launches(1.1, 2, 0.01), {})
    assert rows[0]["ratio"] and rows[0]["ratio_low"] is None and rows[0]["why_not"]
    said = f"no verdict: {rows[0]['why_not']}"
    assert report_cells(rows[0])[-1] == measure.terminal_cells(rows[0])[-1] == said
    texts = " ".join(text.get_text() for text in peers_chart(rows, "resnet18").texts)
    assert f"another loop: {rows[0]['why_not']}" in " ".join(texts.split())


def test_peers_compute_in_what_the_suite_computes_in(monkeypatch, tiny_config):
    """Protects ratios on GPUs: torch's default lets cuDNN use TF32, which is faster, and the suite's fp32 does not. On
    CPUs the suite's ranks keep freed memory, and so do the peers'. Mutant: glibc's default for peers."""
    seen = {}

    def steps_of(module, config, rank_info):
        seen.update(tf32=torch.backends.cudnn.allow_tf32, benchmark=torch.backends.cudnn.benchmark)
        raise InterruptedError

    for name, value in {"allow_tf32": True, "benchmark": False}.items():
        monkeypatch.setattr(torch.backends.cudnn, name, value)
    torch.backends.cuda.matmul.allow_tf32 = True  # the suite puts it back
    monkeypatch.setattr(peer_rank, "steps_of", steps_of)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(peer_rank, "keep_freed_memory", lambda: seen.update(keeps_memory=True))
    for variable, value in {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(InterruptedError):
        peer_rank.rank("bare_ddp", ["--config", str(tiny_config), "--precision", "fp32"])
    assert seen == {"tf32": False, "benchmark": True, "keeps_memory": True}
    assert not torch.backends.cuda.matmul.allow_tf32


def run_peers(*flags: str, **variables) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "scripts.studies.peers.measure", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=900)
    print(done.stdout + done.stderr)
    return done


@pytest.mark.medium
def test_an_unknown_peer_and_a_set_with_peers_are_refused(tmp_path, tiny_data, tiny_config):
    """Protects launches of half an hour: after a kill they are in peer_launches.csv alone, and were written over.
    Mutant: peers.csv alone looked at."""
    where = {"DATA": tiny_data, "CONFIG": tiny_config, "RESULTS": tmp_path, "NPROC": 2}
    failed = run_peers("--only", "fabrik", **where)
    assert failed.returncode == 2 and "no peer 'fabrik'; there are imagenet_example, fabric" in failed.stderr
    for name in ("peers.csv", "peer_launches.csv"):
        (tmp_path / name).write_text("measured")
        failed = run_peers(**where)
        assert failed.returncode == 2 and "has peers of another session" in failed.stderr
        assert f"move {name} away" in failed.stderr and (tmp_path / name).read_text() == "measured"
        (tmp_path / name).unlink()


def test_launches_of_a_session_that_was_stopped_are_not_overwritten(tmp_path, tiny_data, tiny_config, monkeypatch):
    """Protects half an hour of launches: after a kill the same command began anew, and its first launch replaced them.
    And a session that goes on from make clean, by the set's lock. Mutants: peers.csv looked for alone; no lock."""
    variables = {"DATA": tiny_data, "CONFIG": tiny_config, "RESULTS": tmp_path / "a set", "NPROC": 2, "NUM_GPUS": 0}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(measure, "launch", lambda *peer, **options: pytest.fail("it launches"))
    (tmp_path / "a set").mkdir()
    launched = tmp_path / "a set/peer_launches.csv"
    launched.write_text("of half an hour")
    with pytest.raises(UserError, match=r"has peers of another session, .*, or move peer_launches\.csv away"):
        measure.main(PeersOptions(only=("bare",)))
    assert launched.read_text() == "of half an hour"
    launched.unlink()
    with hold_lock(tmp_path / "a set/.suite"), pytest.raises(UserError, match="is in use"):
        measure.main(PeersOptions(only=("bare",)))


@pytest.mark.parametrize(
    ("peers", "launches"),
    [
        ("peer,kind\nx,y\n", ""),
        ("peer,what,suite,why_not,about\nx\n", "round,place\nabc,1\n"),
        ("peer,what,suite,why_not,about\nx,x,x,,\n", "round,place,name,images_per_s,seconds\n1,1,x,-5,1\n"),
        ("peer,what,suite,why_not,about\nx,x,x,,\n", "round,place,name,images_per_s,seconds\n1,1,x,nan,1\n"),
        ("peer,what,suite,why_not,about\nx,x,x,,\n", "round,place,name,images_per_s,seconds\n1\n"),
    ],
)
def test_tables_of_peers_that_somebody_else_wrote_are_refused_in_a_line(tmp_path, peers, launches):
    """Protects the report of a set that somebody else has made: it ended with a traceback. Mutants: KeyError,
    ValueError and TypeError not caught; any number of images/s."""
    (tmp_path / "peers.csv").write_text(peers)
    (tmp_path / "peer_launches.csv").write_text(launches)
    with pytest.raises(UserError, match=f"{tmp_path}: peers.csv or peer_launches.csv is not as .* move both away"):
        read_peers(tmp_path)


@pytest.mark.parametrize("num_images, num_repetitions", [(40, 1), (41, 2), (400, 10)])
def test_a_peer_has_images_for_all_its_steps(tiny_data, num_images, num_repetitions):
    """Protects from loops that begin anew at every step, and from those that never come to one: 40 images are no batch
    of 256, which drop_last drops."""
    with repeated_images(str(tiny_data), num_images) as folder:
        found = ImageFolder(f"{folder}/train")
        assert len(found) == num_repetitions * NUM_TRAIN and found.classes == ImageFolder(tiny_data / "train").classes
        assert (folder == str(tiny_data)) == (num_repetitions == 1)
        found[len(found) - 1]
    assert Path(folder).exists() == (num_repetitions == 1)


@pytest.mark.medium
def test_a_launch_that_hangs_is_ended_with_its_ranks(tmp_path, monkeypatch):
    """Protects the night in which ./bench study peers runs: MINUTES is read between rounds only."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(f"#!/bin/sh\nsleep 600 & echo $! > '{tmp_path}/rank'\nwait\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(UserError, match="ended with no result, after 1 s; TIMEOUT=2 gives it more"):
        launch(PEERS[0], [], flags=[], folder="", limit_s=1.0)
    rank = int((tmp_path / "rank").read_text())
    ended_by = time.monotonic() + 10  # the kernel ends a killed process a moment later

    def alive() -> bool:
        return psutil.pid_exists(rank) and psutil.Process(rank).status() != psutil.STATUS_ZOMBIE

    while alive() and time.monotonic() < ended_by:
        time.sleep(0.05)
    assert not alive()


@pytest.mark.slow
def test_fewer_images_than_a_batch(tmp_path, tiny_data):
    """Protects ./bench study peers by a GPU's batch on imagenet-mini: it hung. 64 images of a step, of 40."""
    (tmp_path / "own.yaml").write_text(TINY_YAML + "limit_s: 120\n")
    where = {"DATA": tiny_data, "CONFIG": tmp_path / "own.yaml", "RESULTS": tmp_path / "a set", "NPROC": 2}
    ran = run_peers("--rounds", "1", "--only", "bare", "imagenet_example", ARGS="--global-batch 64", **where)
    assert ran.returncode == 0, ran.stderr
    assert [row["num_pairs"] for row in read_peers(tmp_path / "a set")[0]] == [1, 1]


@pytest.mark.slow
def test_real_launches_of_every_peer_that_is_here(tmp_path, tiny_data):
    """Protects the loops themselves: each is launched on two real ranks beside the suite, and a package that is
    missing is named."""
    (tmp_path / "own.yaml").write_text(TINY_YAML)
    where = {"DATA": tiny_data, "CONFIG": tmp_path / "own.yaml", "RESULTS": tmp_path / "a set", "NPROC": 2}
    ran = run_peers("--rounds", "1", **where)
    assert ran.returncode == 0, ran.stderr
    rows, _ = read_peers(tmp_path / "a set")
    assert [row["peer"] for row in rows] == [peer.name for peer in PEERS]
    for row in rows:
        assert row["num_pairs"] == 1 or row["why_not"].startswith("not installed; "), row
    assert sum(row["num_pairs"] for row in rows) >= 3
