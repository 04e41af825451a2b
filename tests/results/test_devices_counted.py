"""`world_size` of runs.csv counts devices. Protects whoever reads "4 ranks" where two ranks had two GPUs each."""

import pandas
import pytest
from result_sets import write_set

from scripts.report import paper
from scripts.results.formatting import device_count
from scripts.results.result_set import load_set
from scripts.results.set_text import describe_sets

H100 = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "backend": "nccl"}


@pytest.fixture
def two_gpus_a_rank(tmp_path):
    """A set of hybrid_parallel: two ranks with two GPUs each, and single on one."""
    folder = tmp_path / "set"
    write_set(folder, {"single": 100.0, "hybrid_parallel": 170.0}, **H100)
    rows = pandas.read_csv(folder / "runs.csv", dtype=str, keep_default_na=False)
    rows.loc[rows.strategy == "hybrid_parallel", "world_size"] = "4"
    rows.to_csv(folder / "runs.csv", index=False)
    return folder


def test_two_ranks_of_two_gpus_are_four_devices(two_gpus_a_rank):
    """The table of the paper, and what charts say of themselves. Mutant: "ranks" in any."""
    results = load_set(two_gpus_a_rank)
    of_paper = {group.strategy: paper._row(results, group) for group in results.groups}
    assert of_paper["hybrid_parallel"]["devices"] == "4" and "ranks" not in of_paper["single"]
    assert describe_sets([results]).endswith("NVIDIA H100 80GB HBM3, 1 to 4 GPUs")


def test_on_a_cpu_a_rank_stands_for_a_device():
    assert [device_count(n, device) for n, device in ((1, "cpu"), (2.0, "cpu"), (1, "cuda"), (2, ""))] == [
        "1 rank", "2 ranks", "1 GPU", "2 devices",
    ]  # fmt: skip
