"""./bench study allreduce: sums are checked, bandwidths are those of nccl-tests, ranks are real."""

import functools

import pandas
import pytest
import torch

from scripts.studies.allreduce import measure
from scripts.studies.allreduce.allreduce_rank import num_wrong_values
from scripts.studies.allreduce.analysis import bandwidth_rows, bandwidths, message_sizes
from scripts.studies.options import AllreduceOptions


def test_bandwidths_are_those_of_nccl_tests():
    """1 GB in 0.1 s: 10 GB/s; over 2 ranks the bus carries as much, over 8 ranks 7/4 of it."""
    assert bandwidths(1e9, 0.1, 2) == pytest.approx((1e10, 1e10))
    assert bandwidths(1e9, 0.1, 8) == pytest.approx((1e10, 1.75e10))
    assert message_sizes(2**28) == [2**power for power in range(10, 29, 2)]
    rounds = [
        {"path": "gloo", "round": n, "ranks": 2, "bytes": 2**28, "seconds": 0.27 * (1 + 0.01 * n), "wrong": 0}
        for n in range(3)
    ]
    (row,) = bandwidth_rows(pandas.DataFrame(rounds))
    assert row.bus_low < row.bus_bytes_per_s < row.bus_high and row.bus_bytes_per_s == pytest.approx(0.98e9, rel=0.01)


@pytest.mark.parametrize("num_ranks", [2, 64])
def test_wrong_sums_are_counted_and_right_ones_in_bf16_are_not(num_ranks):
    """bf16 has no odd number above 256, and a ring rounds each of its partial sums."""
    sent = []

    def wrong(rank: int, exchange) -> int:
        return num_wrong_values(rank, num_ranks, torch.zeros(512, dtype=torch.bfloat16), exchange)

    for rank in range(num_ranks):
        wrong(rank, lambda tensor: sent.append(tensor.clone()))
    for first in (0, num_ranks // 2):
        total = functools.reduce(torch.add, [*sent[first:], *sent[:first]])
        assert wrong(0, lambda tensor, total=total: tensor.copy_(total)) == 0
        assert wrong(0, lambda tensor, total=total: tensor[:256].copy_(total[:256])) > 0
    assert wrong(0, lambda tensor: None) > 0


@pytest.mark.launches
def test_real_ranks_and_their_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    options = AllreduceOptions(tmp_path / "a b", nproc=2, rounds=3, largest=16384)
    assert measure.main(options) == 0
    rows = pandas.read_csv(tmp_path / "a b" / "allreduce.csv")
    assert [*rows.bytes] == [1024, 4096, 16384] * 6 and (rows.wrong == 0).all() and (rows.seconds > 0).all()
    assert {*rows.path} == {"gloo, fp32", "gloo, bf16"} and "busbw" in capsys.readouterr().out
