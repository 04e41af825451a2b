"""`cut: auto`: the blocks' measured times decide, nothing else changes, and the runs of a set share one cut.

.venv/bin/python -m pytest tests/benchmarks/test_measured_cuts.py
"""

import dataclasses
import json
import os

import pytest
import torch
from support import run_strategy
from torch import nn

from benchmarks.common.config.config import Config
from benchmarks.common.config.settings import requested_settings
from benchmarks.common.dist.devices import RankContext
from benchmarks.common.model import measured_cuts
from benchmarks.common.model.measured_cuts import MIN_PASSES, choose_cuts, measure_block_s
from benchmarks.common.model.model import build_model
from benchmarks.common.model.stages import blocks_of, find_cuts
from benchmarks.common.store.recorded_cuts import NAME, cuts_of_run, read_cuts, record_cuts
from benchmarks.common.store.results import read_table
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError
from scripts.sets.result_set import load_set

CPU = RankContext(torch.device("cpu"))
SMALL = Config(arch="resnet18", image_size=32, global_batch=8)


def asked(strategy: str = "pipeline_parallel", config: Config = SMALL, ranks: int = 2, **changes) -> dict:
    return requested_settings(config, strategy, ranks, 1, 1, "2-40-23-abc") | changes


# --- measuring -------------------------------------------------------------------------------------------------


class SlowBlock(nn.Module):
    """Takes `forward_s` and `backward_s` of the test's own clock: ten times as long in the first pass."""

    now_s = 0.0

    def __init__(self, forward_s: float, backward_s: float, disturbed_pass: int = 0):
        super().__init__()
        self.costs, self.disturbed_pass, self.num_passes = (forward_s, backward_s), disturbed_pass, 0
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        self.num_passes += 1
        factor = 10 if self.num_passes in (1, self.disturbed_pass) else 1
        spend(factor * self.costs[0])
        output = activation * self.weight
        output.register_hook(lambda gradient: spend(factor * self.costs[1]))
        return output


def spend(seconds: float) -> None:
    SlowBlock.now_s += seconds


@pytest.mark.parametrize("disturbed_pass", [0, 3])
def test_a_blocks_time_is_its_forward_and_its_backward_pass(disturbed_pass):
    """Protects the cut: neither the first pass, in which kernels are chosen, nor one that other work disturbs counts.
    Mutants: the mean of the passes; the forward pass alone."""
    blocks = [SlowBlock(0.25, 0.5), SlowBlock(0.125, 0.25, disturbed_pass), SlowBlock(1.0, 2.0)]
    found = measure_block_s(SMALL, CPU, blocks, 2, now=lambda: SlowBlock.now_s)
    assert found == [0.75, 0.375, 3.0]
    assert [block.num_passes for block in blocks] == [0, 0, 0], "what is trained are copies"


def test_measuring_leaves_the_model_and_the_random_numbers_as_they_were():
    """Protects the same update for every cut. Mutants: no copy (BatchNorm's statistics move, gradients appear); images
    from the default generator."""
    net = build_model(SMALL, 10, CPU.device)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    random_state = torch.get_rng_state()
    times = measure_block_s(SMALL, CPU, blocks_of(net), 2)
    assert len(times) == 8 and min(times) > 0
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters()) and net.training
    assert len(net.layer1[0]._forward_hooks) == 0


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"norm": "group", "memory_format": "channels_last"}])
def test_blocks_are_measured_as_they_will_train(changes, monkeypatch):
    """Protects the times from another arithmetic or layout. Mutants: no autocast_forward; contiguous images."""
    seen = []

    def convolution(images, *rest, real=torch.nn.functional.conv2d):
        output = real(images, *rest)
        seen.append((output.dtype, images.is_contiguous(memory_format=torch.channels_last), len(images)))
        return output

    monkeypatch.setattr(torch.nn.functional, "conv2d", convolution)
    config = dataclasses.replace(SMALL, **changes)
    measure_block_s(config, CPU, blocks_of(build_model(config, 10, CPU.device)), 3)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    assert {(kind, num_images) for kind, _, num_images in seen} == {(dtype, 3)}
    assert len(seen) >= 20 * (1 + MIN_PASSES) and seen[0][1] == (config.memory_format == "channels_last")


# --- one cut of a set ------------------------------------------------------------------------------------------


@pytest.fixture
def in_set(tmp_path, monkeypatch):
    """in_set(strategy, config): the cuts that a run of these settings chooses in one set, in this process."""

    def choose(config: Config = SMALL, num_stages: int = 2, **changes) -> list[int]:
        folder = RunFolder.create(tmp_path / "a set", "pipeline_parallel", 1)
        folder.write_requested(config, asked(config=config, **changes))
        monkeypatch.setenv("RUN_DIR", str(folder.path))
        return choose_cuts(config, CPU, build_model(config, 10, CPU.device), num_stages, 2)

    choose.results = tmp_path / "a set"
    choose.results.mkdir()
    return choose


def no_measurement(*_, **__):
    raise AssertionError("nothing had to be measured")


def test_the_first_run_of_a_set_measures_and_the_others_read(in_set, monkeypatch):
    """Protects the rounds of a set from cuts of their own, by which they would be groups of their own."""
    measured = in_set()
    (entry,) = json.loads((in_set.results / NAME).read_text())["cuts"]
    assert entry["blocks_before"] == measured and 1 <= measured[0] <= 7 and len(entry["block_ms"]) == 8
    planted = [measured[0] % 7 + 1]
    record_cuts(in_set.results, asked(), planted, replace=True)
    monkeypatch.setattr(measured_cuts, "measure_block_s", no_measurement)
    assert in_set() == planted
    longer = dataclasses.replace(SMALL, epochs=9, steps=2, seed=5, lr=1.0, resume=True, account_steps=3)
    assert in_set(longer) == planted, "the warm-up, the rounds with other seeds, a resumed run"


@pytest.mark.parametrize(
    "changes",
    [{"image_size": 40}, {"global_batch": 16}, {"microbatches": 2}, {"split_size": 4}, {"precision": "bf16"}],
    ids=str,
)
def test_what_changes_a_blocks_time_has_a_cut_of_its_own(in_set, monkeypatch, changes):
    """Protects a sweep of micro-batches, and two sizes in one set. Mutant: any field left out of DECIDING_FIELDS."""
    record_cuts(in_set.results, asked(), [7])
    monkeypatch.setattr(measured_cuts, "measure_block_s", lambda *_, **__: [9.0, *[1.0] * 7])
    assert in_set(dataclasses.replace(SMALL, **changes)) == [1]
    assert in_set() == [7]


def test_a_number_and_an_estimate_measure_nothing(in_set, monkeypatch):
    """Protects `--cut 3`, and the hashes of sets whose `cut` is 0, which was the estimate's name."""
    monkeypatch.setattr(measured_cuts, "measure_block_s", no_measurement)
    record_cuts(in_set.results, asked(), [7])
    assert in_set(dataclasses.replace(SMALL, cut=3)) == [3]
    by_roofline = find_cuts(dataclasses.replace(SMALL, cut="estimate"), build_model(SMALL, 10, CPU.device), 2, 2)
    assert (
        in_set(dataclasses.replace(SMALL, cut="estimate")) == in_set(dataclasses.replace(SMALL, cut=0)) == by_roofline
    )
    assert len(json.loads((in_set.results / NAME).read_text())["cuts"]) == 1, "and are not recorded"


@pytest.mark.medium
def test_several_stages_and_one(in_set):
    cuts = in_set(num_stages=3)
    assert len(cuts) == 2 and 0 < cuts[0] < cuts[1] < 8
    assert in_set(num_stages=1, ranks=1) == []


def test_a_run_outside_of_a_set_measures_for_itself(monkeypatch, tmp_path):
    monkeypatch.delenv("RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measured_cuts, "measure_block_s", lambda *_, **__: [*[1.0] * 7, 9.0])
    assert choose_cuts(SMALL, CPU, build_model(SMALL, 10, CPU.device), 2, 2) == [7]
    assert os.listdir(tmp_path) == []


# --- the file --------------------------------------------------------------------------------------------------


def test_the_first_recorded_cut_stays_unless_it_is_replaced(tmp_path):
    """Protects two runs of one set, started by hand at the same time, from two cuts."""
    assert read_cuts(tmp_path, asked()) == []
    assert record_cuts(tmp_path, asked(), [5], [1.23456]) == [5] == record_cuts(tmp_path, asked(), [4])
    assert record_cuts(tmp_path, asked("hybrid_parallel"), [3]) == [3]
    assert read_cuts(tmp_path, asked()) == [5]
    for changes in ({"ranks": 4}, {"nodes": 2}, {"threads_per_rank": 2}, {"cut": 0}):
        assert read_cuts(tmp_path, asked() | changes) == []
    assert record_cuts(tmp_path, asked(), [2, 4], replace=True) == [2, 4] == read_cuts(tmp_path, asked())
    assert read_cuts(tmp_path, asked("hybrid_parallel")) == [3]


ENTRY = {"of": {}, "blocks_before": [4]}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        '{"schema": 1}',
        '{"schema": 2, "cuts": []}',
        json.dumps({"schema": 1, "cuts": [ENTRY | {"of": "x"}]}),
        *(
            json.dumps({"schema": 1, "cuts": [ENTRY | {"blocks_before": cuts}]})
            for cuts in ([], [0], [-1], [5, 3], [3, 3], [True], ["4"], [4.0], 4, "4", {}, [10**9])
        ),
        "[" * 10**5,
        " " * (10**6 + 1),
    ],
    ids=lambda text: text[:60],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path, content):
    """Protects a suite from a set of somebody else: what is read is rising numbers, or nothing."""
    (tmp_path / NAME).write_text(content)
    for use in (lambda: read_cuts(tmp_path, asked()), lambda: record_cuts(tmp_path, asked(), [5])):
        with pytest.raises(UserError, match=rf"{NAME} does not hold the cuts .* remove it"):
            use()
    assert (tmp_path / NAME).read_text() == content


@pytest.mark.parametrize("cuts", [[8], [99], [3, 5]])
def test_a_recorded_cut_that_the_model_has_not_is_refused(in_set, cuts):
    record_cuts(in_set.results, asked(), cuts)
    with pytest.raises(UserError, match=f"recorded cut {', '.join(map(str, cuts))} is none of resnet18's 8 blocks"):
        in_set()


@pytest.mark.parametrize(
    ("requested", "chosen", "cuts"),
    [
        ("auto", 5, (5,)),
        ("auto", "2, 4, 6", (2, 4, 6)),
        (0, 4, (4,)),
        ("estimate", 4, (4,)),
        (5, 5, ()),
        ("auto", "4, 2", ()),
        ("auto", "../4", ()),
        ("auto", None, ()),
        ("auto", [4], ()),
    ],
)
def test_the_cut_of_a_finished_run(requested, chosen, cuts):
    """Protects the proof, which runs with the cut that the run had, from what another's set says there."""
    assert cuts_of_run({"cut": requested}, {"cut": chosen}) == cuts
    assert cuts_of_run({}, {}) == ()


# --- real runs -------------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("has_third", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_runs_of_a_set_have_one_cut_and_are_one_group(tiny_data, tiny_config, tmp_path, has_third):
    """Two runs of two real ranks: the first measures and records, the second, whose set says another cut, has that one
    on both ranks. A third with the first one's cut is in its group. Mutants: no broadcast (the ranks' shapes
    differ); no record."""
    results, where = tmp_path / "a set", {"CONFIG": tiny_config, "DATA": tiny_data, "NPROC": 2}

    def cut_of_a_run(**variables) -> tuple[int, str]:
        row = run_strategy("pipeline_parallel", results, "--epochs 1", **where, **variables)
        assert row["status"] == "ok", row["reason"]
        folder = RunFolder(results / "logs" / row["run_id"])
        return folder.settings()["met"]["cut"], folder.log.read_text()

    measured, log = cut_of_a_run(REPEAT=1)
    (entry,) = json.loads((results / NAME).read_text())["cuts"]
    assert entry["blocks_before"] == [measured] and "ms of each block" in log
    settings = RunFolder(results / "logs" / read_table(results, "runs").run_id[0]).settings()
    assert settings["asked"]["cut"] == "auto" and not [name for name in settings["met"] if "block" in name]
    planted = measured % 7 + 1
    record_cuts(results, settings["asked"], [planted], replace=True)
    cut, log = cut_of_a_run(REPEAT=2)
    assert cut == planted and "ms of each block" not in log
    assert len(load_set(results).groups) == 2
    if has_third:
        record_cuts(results, settings["asked"], [measured], replace=True)
        assert cut_of_a_run(REPEAT=2)[0] == measured
        assert sorted(len(group.ok_runs) for group in load_set(results).groups) == [1, 2]
