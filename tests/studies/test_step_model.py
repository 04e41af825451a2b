"""Each strategy's timeline against cases worked by hand: one bucket, no overlap, full overlap, contention, waits.

.venv/bin/python -m pytest tests/studies/test_step_model.py
"""

import dataclasses

import numpy
import pytest

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import Link
from scripts.studies.predict.step_model import (
    STEP_TIME_MODELS,
    Cluster,
    StepTimes,
    StrategyOptions,
    ddp,
    ddp_compressed,
    fsdp,
    local_sgd,
    pipeline_parallel,
)
from scripts.studies.predict.timeline import (
    MIB,
    Blocks,
    Gradient,
    ddp_buckets,
    expected_maximum,
    model_blocks,
    overlapped_s,
)

LINK = Link(latency_s=0.0, bytes_per_s=100 * MIB)
PAIR = Cluster(devices_per_node=2, within=LINK, between=LINK, has_trees=False)
DEFAULTS = StrategyOptions()


def step(*gradients: Gradient, spread: float = 0.0) -> StepTimes:
    """1 s forward, 2 s backward, 0.5 s of data, 0.25 s that no batch size changes."""
    return StepTimes(8, 1.0, 2.0, 0.5, 0.25, gradients, spread)


def gradient(mib: float, ready: float, block: str = "all", out_bytes: int = 0) -> Gradient:
    return Gradient(f"{block} {ready}", block, int(mib * MIB), ready, out_bytes)


ONE = step(gradient(100, 1.0))


def test_full_overlap_costs_nothing():
    """Ready at 1 s of 2, 0.5 s on the way: over before the backward pass is."""
    assert overlapped_s(2.0, [(1.0, 0.5)], 0.0) == 2.0


def test_no_overlap_costs_all_of_it():
    assert overlapped_s(2.0, [(2.0, 0.5)], 0.0) == 2.5


def test_part_overlap_by_hand():
    """The first is under way from 1.0 to 2.2, the second waits for it until then and ends at 2.5."""
    assert overlapped_s(2.0, [(1.0, 1.2), (1.5, 0.3)], 0.0) == pytest.approx(2.5)
    # a gap: the link is idle from 0.7 to 1.8
    assert overlapped_s(2.0, [(0.5, 0.2), (1.8, 0.1)], 0.0) == pytest.approx(2.0)


def test_contention_by_hand():
    """Half the core while 0.5 s are on the way: 0.25 s of computing are late. All of it: as if nothing overlapped."""
    assert overlapped_s(2.0, [(1.0, 0.5)], 0.5) == pytest.approx(2.25)
    assert overlapped_s(2.0, [(1.0, 0.5)], 1.0) == pytest.approx(2.5)
    # what computing is done while the last one is under way is not slowed any more: 1.6 + 0.8 of which 0.4 compute
    assert overlapped_s(2.0, [(1.6, 0.8)], 0.5) == pytest.approx(2.4)


def test_overlap_takes_draws():
    found = overlapped_s(numpy.array([2.0, 4.0]), [(numpy.array([1.0, 2.0]), numpy.array([1.5, 1.5]))], 0.0)
    assert found.tolist() == [2.5, 4.0]


def test_buckets_are_those_of_ddp():
    """1 MiB, then 25: a bucket is full once it holds as much, whatever it holds more; the rest is the last one."""
    found = ddp_buckets([gradient(3, 0.2), gradient(0.5, 0.1), gradient(20, 0.3), gradient(4, 0.4), gradient(9, 1.0)])
    assert found == [(int(3.5 * MIB), 0.2), (33 * MIB, 1.0)]
    assert ddp_buckets([gradient(3, 0.2), gradient(20, 0.3), gradient(4, 0.4), gradient(9, 1.0)])[1:] == [
        (33 * MIB, 1.0)
    ]
    assert ddp_buckets([gradient(2, 0.5), gradient(30, 0.6), gradient(1, 1.0)]) == [
        (2 * MIB, 0.5),
        (30 * MIB, 0.6),
        (1 * MIB, 1.0),
    ]
    assert [ready for _, ready in ddp_buckets([gradient(2, n / 4) for n in range(1, 5)], bucket_cap_mb=4)] == [0.5, 1.0]


def test_ddp_with_one_bucket_by_hand():
    """All gradients at the end: computing, then a ring of 2 over 100 MiB at 100 MiB/s."""
    assert ddp(ONE, PAIR, 2, DEFAULTS) == pytest.approx(3.75 + 1.0)
    assert ddp(ONE, PAIR, 1, DEFAULTS) == 3.75


def test_ddp_hides_what_is_ready_early():
    early = step(gradient(50, 0.25), gradient(50, 1.0))
    assert ddp(early, PAIR, 2, DEFAULTS) == pytest.approx(3.75 + 0.5)


def test_two_bytes_a_value_halve_the_exchange():
    assert ddp_compressed(ONE, PAIR, 2, DEFAULTS) == pytest.approx(3.75 + 0.5)
    slow_halves = dataclasses.replace(PAIR, half_precision=Link(0.0, 25 * MIB))
    assert ddp_compressed(ONE, slow_halves, 2, DEFAULTS) == pytest.approx(3.75 + 2.0)
    assert ddp(ONE, slow_halves, 2, DEFAULTS) == pytest.approx(3.75 + 1.0)


def test_local_sgd_divides_by_its_period():
    assert local_sgd(ONE, PAIR, 2, StrategyOptions(local_period=4)) == pytest.approx(3.75 + 0.25)


def test_the_slowest_of_many():
    """0.5642 = 1 / sqrt(pi), 0.8463 = 1.5 / sqrt(pi); of 1,000: 3.2414 (Harter, Biometrika 48, 1961)."""
    assert [expected_maximum(n) for n in (1, 2, 3, 1000)] == pytest.approx([0, 0.5642, 0.8463, 3.2414], abs=1e-4)
    waits = step(gradient(100, 1.0), spread=0.1)
    assert ddp(waits, PAIR, 2, DEFAULTS) == pytest.approx(4.75 + 0.05642, abs=1e-5)
    assert local_sgd(waits, PAIR, 2, DEFAULTS) == pytest.approx(4.0 + 0.05642 / 2, abs=1e-5)


def test_other_ranks_slow_computing():
    """1.2 times as long beside another, and what is alone is as it was."""
    shared = dataclasses.replace(PAIR, slowdown=1.2)
    assert ddp(ONE, shared, 2, DEFAULTS) == pytest.approx(1.2 * 3.75 + 1.0)
    assert ddp(ONE, shared, 1, DEFAULTS) == 3.75


def test_fsdp_by_hand():
    """Two blocks of 50 MiB: 0.25 s to gather or to scatter one over 2 devices.

    Forward, 0.5 s a block: 0.25 until the first is there, then the second is hidden: 1.25. Backward, 1 s a block: the
    same, and the scatter of the last at the end: 0.25 + 2 + 0.25.
    """
    pair = step(gradient(50, 0.5, "late"), gradient(50, 1.0, "early"))
    assert fsdp(pair, PAIR, 2, DEFAULTS) == pytest.approx(0.75 + 1.25 + 2.5)
    # all of the core while anything is under way: 6 messages, and nothing is hidden
    busy = dataclasses.replace(PAIR, contention=1.0)
    assert fsdp(pair, busy, 2, DEFAULTS) == pytest.approx(3.75 + 6 * 0.25)


def test_gathers_go_in_rings():
    """Protects FSDP from half of a tree, which nobody has: 8 devices, 1 s a message and no time for bytes. Half of a
    ring has 7 messages in one node, 1 + 3 by rings in and between 4 nodes of 2; an all-reduce by trees 6, and 2 + 4."""
    slow = Link(1.0, 1e30)
    node = Cluster(devices_per_node=8, within=slow, between=slow)
    assert node.all_gather_s(MIB, 8) == pytest.approx(7) and node.all_reduce_s(MIB, 8) == pytest.approx(6)
    nodes = dataclasses.replace(node, devices_per_node=2)
    assert nodes.all_gather_s(MIB, 8) == pytest.approx(1 + 3) and nodes.all_reduce_s(MIB, 8) == pytest.approx(2 + 4)
    assert dataclasses.replace(nodes, has_trees=False).all_gather_s(MIB, 8) == pytest.approx(7)
    # FSDP: forward 7 s for the only block and 1 s of computing, backward 7 + 2 + 7
    assert fsdp(ONE, node, 8, DEFAULTS) == pytest.approx(0.75 + 8 + 16)


def test_a_pipeline_by_hand():
    """2 stages of half the work, 4 micro-batches: 5 slots of 3 / 4 s, each with a message there and back.

    A micro-batch is 8 * 2 / 4 = 4 images of 2.5 MiB: 0.1 s. Both stages' 16 images are read by the first.
    """
    pair = step(gradient(50, 0.5, "late", 0), gradient(50, 1.0, "early", int(2.5 * MIB)))
    expected = 5 * (3.0 / 4 + 2 * 0.1) + 2 * 0.5 + 0.25 / 2
    assert pipeline_parallel(pair, PAIR, 2, StrategyOptions(num_stages=2)) == pytest.approx(expected)
    # two copies of it: the gradients of a stage, 50 MiB, over 2 devices
    assert pipeline_parallel(pair, PAIR, 4, StrategyOptions(num_stages=2)) == pytest.approx(expected + 0.5)


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(UserError, match="3 stages, but the model has 2 blocks"):
        pipeline_parallel(step(gradient(1, 0.5, "b"), gradient(1, 1.0, "a")), PAIR, 3, StrategyOptions(num_stages=3))
    with pytest.raises(UserError, match="2 stages do not divide 3 devices"):
        pipeline_parallel(step(gradient(1, 0.5, "b"), gradient(1, 1.0, "a")), PAIR, 3, StrategyOptions(num_stages=2))


def test_a_micro_batch_has_an_image():
    """8 images a device, 2 stages: 16 micro-batches are the most."""
    pair = step(gradient(1, 0.5, "b"), gradient(1, 1.0, "a"))
    assert pipeline_parallel(pair, PAIR, 2, StrategyOptions(microbatches=16)) > 0
    with pytest.raises(UserError, match="17 micro-batches of 16 images in 2 stages: fewer than one image each"):
        pipeline_parallel(pair, PAIR, 2, StrategyOptions(microbatches=17))


def test_blocks_are_in_the_order_of_the_forward_pass():
    found = model_blocks([gradient(1, 0.1, "fc"), gradient(2, 0.4, "fc"), gradient(4, 1.0, "stem", 7)])
    assert found == Blocks(pytest.approx([0.6, 0.4]), [4 * MIB, 3 * MIB], [7, 0])
    with pytest.raises(UserError, match="alternate"):
        model_blocks([gradient(1, 0.1, "a"), gradient(1, 0.2, "b"), gradient(1, 0.3, "a")])


def test_nodes_have_a_slower_way_between_them():
    """4 nodes of 2 over a slow link: a flat ring of 8, or in three parts; NCCL takes the better, gloo has the first."""
    slow = Link(0.0, 10 * MIB)  # a device's share: one ring has both
    gloo = dataclasses.replace(PAIR, between=slow)
    assert gloo.all_reduce_s(100 * MIB, 8) == pytest.approx(2 * 7 / 8 * 100 / 20)
    nccl = dataclasses.replace(gloo, has_trees=True)
    assert nccl.all_reduce_s(100 * MIB, 8) == pytest.approx(min(8.75, 1.0 + 2 * 3 / 4 * 50 / 10))
    assert nccl.all_reduce_s(100 * MIB, 2) == pytest.approx(1.0)


@pytest.mark.parametrize("strategy", STEP_TIME_MODELS.values(), ids=[*STEP_TIME_MODELS])
def test_nothing_is_faster_on_a_slower_link_or_more_devices(strategy):
    """Protects the direction of every term: less bandwidth, more latency, contention or devices never help."""
    gradients = [gradient(3, (n + 1) / 12, f"block {n // 3}", 1000) for n in range(12)]
    machine = Cluster(2, Link(1e-4, 1e9), Link(1e-3, 1e8), contention=0.1)
    times = [strategy(step(*gradients), machine, n, DEFAULTS) for n in (2, 8, 64, 512)]
    assert times == sorted(times) and times[0] >= 3.75 - 0.25  # a pipeline's stages update their own weights only
    for worse in ({"within": Link(1e-2, 1e9)}, {"between": Link(1e-3, 1e7)}, {"contention": 0.9}, {"slowdown": 1.5}):
        assert strategy(step(*gradients), dataclasses.replace(machine, **worse), 64, DEFAULTS) >= times[2]


def test_fewer_images_take_less_and_the_update_as_long():
    assert ONE.with_images(4).seconds == pytest.approx(3.5 / 2 + 0.25)
