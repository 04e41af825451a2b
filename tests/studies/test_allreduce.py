"""./bench study allreduce: sums are checked, bandwidths and the ratio to a bare loop are computed, ranks are real.

.venv/bin/python -m pytest tests/studies/test_allreduce.py
"""

import functools
import subprocess
import sys

import pandas
import pytest
import torch
from support import ROOT, environment

from benchmarks.common.errors import UserError
from scripts.options.study_options import AllreduceOptions
from scripts.studies.allreduce import measure
from scripts.studies.allreduce.allreduce_rank import AllReducePath, num_wrong_values
from scripts.studies.allreduce.analysis import bandwidth_rows, bandwidths, message_sizes, ratio_to_bare_loop, table
from scripts.studies.allreduce.worker_pool import WorkerPool

CPU = torch.device("cpu")


def rounds(bare=1.0, num_rounds=3) -> pandas.DataFrame:
    """A link of 1 ms and 1 GB/s; a bare loop takes `bare` times as long."""
    rows = []
    for number in range(num_rounds):
        for size in message_sizes(2**28):
            seconds = 2 * (1e-3 + size / 2e9) * (1 + 0.01 * number)
            row = {"path": "gloo", "round": number, "ranks": 2, "bytes": size, "seconds": seconds, "wrong": 0}
            rows.append(row | {"cpu_s": 0.5 * seconds, "bare_seconds": bare * seconds, "bare_cpu_s": 0.5 * seconds})
    return pandas.DataFrame(rows)


def test_sizes_go_from_1_kb_to_the_largest():
    assert message_sizes(2**28) == [2**power for power in range(10, 29, 2)]
    assert message_sizes(2**13) == [2**10, 2**12, 2**13]


def test_bandwidths_and_the_ratio_to_a_bare_loop():
    """256 MB in 2 ms + 268.4 ms are 0.993 GB/s; ours is as much faster as the bare loop takes longer."""
    rows = bandwidth_rows(rounds(bare=1.05, num_rounds=3))
    largest = rows[-1]
    assert largest.bytes == 2**28 and largest.bus_bytes_per_s == pytest.approx(0.983e9, rel=2e-3)
    assert largest.bus_low < largest.bus_bytes_per_s < largest.bus_high
    assert ratio_to_bare_loop(rounds(bare=1.05), "gloo") == pytest.approx((1.05, 1.05, 1.05))
    assert ratio_to_bare_loop(rounds(bare=1.05), "gloo", 2**20)[0] == pytest.approx(1.05)
    assert "268,435,456" in table(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wrong_sums_are_counted(dtype):
    """Protects from timing an exchange that does nothing, or half of its work."""
    tensor = torch.zeros(512, dtype=dtype)

    def path(all_reduce) -> AllReducePath:
        return AllReducePath(1, 2, CPU, dtype, all_reduce, all_reduce)

    pattern = torch.arange(512) % 256 % 4
    assert num_wrong_values(path(lambda t: t.copy_((2 * pattern + 1).to(dtype))), tensor) == 0 and not tensor.any()
    assert num_wrong_values(path(lambda t: None), tensor) == 384
    assert num_wrong_values(path(lambda t: t[:256].copy_((2 * pattern[:256] + 1).to(dtype))), tensor) == 192


@pytest.mark.parametrize("num_ranks", [2, 8, 16, 64])
def test_right_sums_of_many_ranks_in_bf16_are_not_called_wrong(num_ranks):
    """Protects the study on 16 GPUs: bf16 has no odd number above 256, and a ring rounds each of its partial sums.
    Mutant: summands up to 31 and the rank's number, as they were."""
    sent = []

    def wrong(rank: int, all_reduce) -> int:
        path = AllReducePath(rank, num_ranks, CPU, torch.bfloat16, all_reduce, all_reduce)
        return num_wrong_values(path, torch.zeros(512, dtype=torch.bfloat16))

    for rank in range(num_ranks):
        wrong(rank, lambda tensor: sent.append(tensor.clone()))
    for first in (0, num_ranks // 2):
        partial = functools.reduce(torch.add, [*sent[first:], *sent[:first]])
        assert partial.dtype == torch.bfloat16
        assert wrong(0, lambda tensor, partial=partial: tensor.copy_(partial)) == 0
        assert wrong(0, lambda tensor, partial=partial: tensor.copy_(partial - sent[-1])) == 512


@pytest.mark.medium
def test_a_rank_that_ends_is_named():
    with (
        WorkerPool("scripts.studies.allreduce.allreduce_rank", ["carrier pigeon", "1", "1024"], 1, 1) as workers,
        pytest.raises(UserError) as output,
    ):
        workers.receive_row()
    assert "rank 0 ended with exit code 1" in str(output.value) and "carrier pigeon" in str(output.value)


def test_a_size_that_cannot_be_checked_is_refused_before_a_rank_starts():
    """Protects `--largest 1000000` from an error of a tensor's shape on rank 0."""
    with pytest.raises(UserError, match="--largest 1000000 is no multiple of 1024 bytes"):
        measure.main(AllreduceOptions(largest=1_000_000))


@pytest.mark.medium
def test_the_command_checks_times_and_fits_real_ranks(tmp_path):
    words = [sys.executable, "-m", "scripts.studies.allreduce.measure", "--out", str(tmp_path / "a b"), "--rounds", "2"]
    done = subprocess.run(
        [*words, "--largest", "16384", "--only", "gloo"], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = pandas.read_csv(tmp_path / "a b" / "allreduce.csv")
    assert [*rows.bytes] == [1024, 4096, 16384] * 2 and (rows.wrong == 0).all() and (rows.seconds > 0).all()
    assert "busbw / a bare loop's" in done.stdout
    assert (tmp_path / "a b" / "allreduce.png").stat().st_size > 10_000


def test_bandwidths_are_those_of_nccl_tests():
    """1 GB in 0.1 s: 10 GB/s; over 2 ranks the bus carries as much, over 8 ranks 7/4 of it."""
    assert bandwidths(1e9, 0.1, 2) == pytest.approx((1e10, 1e10))
    assert bandwidths(1e9, 0.1, 8) == pytest.approx((1e10, 1.75e10))


@pytest.mark.medium
def test_tables_of_an_earlier_session_are_kept(tmp_path, capsys):
    """Protects what took minutes or hours to measure: the same command again replaced its tables without a word.
    Mutant: nothing set aside."""
    first, again = rounds(), rounds(bare=2.0)
    measure.write_results(first, bandwidth_rows(first), "a machine", tmp_path)
    assert "earlier" not in capsys.readouterr().out
    measure.write_results(again, bandwidth_rows(again), "a machine", tmp_path)
    (aside,) = tmp_path.glob("earlier-*")
    for folder, rows in ((aside, first), (tmp_path, again)):
        assert pandas.read_csv(folder / "allreduce.csv").bare_seconds.tolist() == pytest.approx([*rows.bare_seconds])
    assert {path.name for path in aside.iterdir()} == {"allreduce.csv", "bandwidths.csv"}
    assert f"they are in {aside} now" in capsys.readouterr().out


@pytest.mark.medium
def test_a_file_of_another_suite_costs_no_measurement(tmp_path):
    """Protects minutes of measuring, which ended without its tables where --output had other columns. Mutant: the row
    of --output first."""
    measured, output = rounds(), tmp_path / "old.csv"
    output.write_text("path,ranks,of_an_older_suite\n")
    with pytest.raises(UserError, match="has other columns"):
        measure.report(measured, "a machine", tmp_path / "out", output)
    assert (tmp_path / "out/allreduce.csv").exists()
