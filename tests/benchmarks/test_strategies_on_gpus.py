"""What strategies do for GPUs alone, held where there is none.

.venv/bin/python -m pytest tests/benchmarks/test_strategies_on_gpus.py
"""

import dataclasses

import pytest
import torch
import torch.distributed as dist
from fake_gpus import STEPS, see_gpus, train_on_nothing
from stand_ins import start_fake_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks import fsdp, zero1
from benchmarks.common import engine
from benchmarks.common.clock import Clock
from benchmarks.common.config import Config
from benchmarks.common.errors import Unavailable
from benchmarks.common.loader import MEMORY_FORMATS
from benchmarks.common.model import build_model, build_optimizer, start_momentum

SMALL = Config(arch="resnet18", image_size=32, global_batch=8, loader="synthetic", **STEPS)
CPU = torch.device("cpu")


@pytest.fixture
def group_of_two():
    """This process as rank 0 of 2, of which the other is not there: its collectives are known, and do nothing."""
    start_fake_group(dist.init_process_group, 0, 2)
    yield
    dist.destroy_process_group()


# --- dataparallel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_gpus, searches", [(1, True), (2, False)])
def test_dataparallel_does_not_search_for_algorithms_in_every_step(monkeypatch, num_gpus, searches):
    """Protects the published comparison: torch starts a thread a GPU in every forward pass, and cuDNN's plans are kept
    by thread, so that its search would be a part of every timed step. The settings of the row say that it is off."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    see_gpus(monkeypatch, num_gpus)
    found = []

    def look(strategy) -> None:
        found.append((torch.backends.cudnn.benchmark, dict(strategy.columns)))

    train_on_nothing(monkeypatch, "dataparallel", SMALL, drive=look)
    assert found == [(searches, {} if searches else {"cudnn_benchmark": False})]


# --- ddp_amp in fp16 ----------------------------------------------------------------------------------------------


def trained_with_scaler(momentum: float, fused: bool, overflow_at: int) -> list[torch.Tensor]:
    """Weights after each of 4 steps, of which one has an infinite gradient, which the scaler leaves out."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    config = dataclasses.replace(SMALL, momentum=momentum, fused=fused, weight_decay=0.1)
    optimizer = build_optimizer(config, net)
    if fused:
        start_momentum(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weights = []
    for number in range(4):
        optimizer.zero_grad()
        images = torch.full((5, 3), float("inf")) if number == overflow_at else torch.randn(5, 3)
        scaler.scale(net(images).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        weights.append(net.weight.detach().clone())
    return weights


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("overflow_at", [0, 2, 9])
def test_the_fused_update_leaves_out_what_the_plain_one_leaves_out(monkeypatch, momentum, overflow_at):
    """Protects ddp_amp in fp16, whose very first step mostly overflows: SGD's fused update, which asks on the GPU, then
    goes on from momentum that somebody has written. Memory that nobody has written is made to show here."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **options: empty_like(tensor, **options).fill_(1e6))
    plain, fused = (trained_with_scaler(momentum, each, overflow_at) for each in (False, True))
    for number, (one, other) in enumerate(zip(plain, fused, strict=True)):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, msg=f"step {number}")


# --- fsdp and zero1 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch, num_blocks", [("resnet18", 8), ("resnet50", 16)])
def test_the_norms_of_a_block_are_gathered_at_once(group_of_two, arch, num_blocks):
    """Protects fsdp in bf16: each group is a gather, and 53 norms of their own were 53 of them."""
    config = dataclasses.replace(SMALL, arch=arch, precision="bf16")
    model = build_model(dataclasses.replace(config, precision="fp32"), 10)
    fsdp.shard(model, config, init_device_mesh("cpu", (2,), mesh_dim_names=("shard",)))
    groups: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            group = module._get_fsdp_state()._fsdp_param_group
            groups.setdefault(id(group), []).append(name)
            assert module._get_fsdp_state()._mp_policy.param_dtype is None  # bf16 beside float32 statistics is refused
    assert len(groups) == num_blocks + 1 and max(map(len, groups.values())) == (3 if arch == "resnet18" else 4)


def test_fsdp_updates_all_shards_by_a_few_kernels(monkeypatch):
    """Protects fsdp's time on fast GPUs: by default torch updates DTensors one by one, 644 kernels a step. Mutant: the
    default."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    start = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: start_fake_group(start, 0, 2))
    strategy = fsdp.build(SMALL)
    try:
        assert all(group["foreach"] and not group["fused"] for group in strategy.optimizer.param_groups)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("memory_format, num_sent", [("contiguous", 2), ("channels_last", 62)])
def test_zero1_sends_a_ranks_share_as_one_tensor(monkeypatch, memory_format, num_sent):
    """Protects zero1 from a broadcast for each of ResNet-50's 161 tensors; where weights lie in channels_last, they
    cannot lie in one contiguous tensor."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    start, sent = dist.init_process_group, []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: start_fake_group(start, 0, 2))
    strategy = zero1.build(dataclasses.replace(SMALL, memory_format=memory_format))
    try:
        for parameter in strategy.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        broadcast = dist.broadcast

        def counted(tensor, *args, **options):
            sent.append(tensor)
            return broadcast(tensor, *args, **options)

        monkeypatch.setattr(dist, "broadcast", counted)
        strategy.optimizer.step()
        formats = [p.is_contiguous(memory_format=MEMORY_FORMATS[memory_format]) for p in strategy.model.parameters()]
    finally:
        dist.destroy_process_group()
    assert len(sent) == num_sent and (memory_format != "contiguous" or all(formats))


# --- pipeline_parallel --------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_a_pipeline_of_more_stages_than_blocks_is_skipped(monkeypatch):
    """Protects make bench-all on many GPUs from a failed row: ResNet-18 has a block for each of 8, and none for a
    ninth. Mutant: refused by the cut, as a mistake of the user's."""
    see_gpus(monkeypatch, 9)
    config = dataclasses.replace(SMALL, global_batch=72)
    built = []
    with monkeypatch.context() as patch:
        train_on_nothing(patch, "pipeline_parallel", config, 7, 8, drive=lambda strategy: built.append(strategy))
    assert [strategy.columns["cut"] for strategy in built] == ["1, 2, 3, 4, 5, 6, 7"]
    with pytest.raises(Unavailable, match="resnet18 has 8 blocks, too few for 9 stages; use fewer ranks"):
        train_on_nothing(monkeypatch, "pipeline_parallel", config, 8, 9)


# --- clock and memory ---------------------------------------------------------------------------------------------


class Queue:
    """Stands for a stream: what it was given, in order."""

    def __init__(self, device, name: str = "own"):
        self.device, self.name, self.done = torch.device(device), f"{name} of {torch.device(device)}", []

    def wait_stream(self, other: "Queue") -> None:
        self.done.append(f"waits for {other.name}")


def test_a_moment_of_two_gpus_is_when_both_are_done_and_neither_waits(monkeypatch):
    """Protects comm_ms and overlap_pct of hybrid_parallel: half of the gradients are on the second GPU, whose end a
    moment of the first one's queue does not see. The clock's own stream waits for both; theirs wait for nothing."""
    see_gpus(monkeypatch, 4)
    queues = {number: Queue(torch.device("cuda", number), "current") for number in range(4)}
    recorded = []

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self, queue: Queue) -> None:
            recorded.append((queue.name, list(queue.done)))

    monkeypatch.setattr(torch.cuda, "Stream", Queue)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: queues[torch.device(device).index])
    devices = [torch.device("cuda", number) for number in (2, 3)]
    Clock(devices).now()
    Clock(devices[:1]).now()
    both = ["waits for current of cuda:2", "waits for current of cuda:3"]
    assert recorded == [("own of cuda:2", both), ("current of cuda:2", [])]
    assert not any(queue.done for queue in queues.values())


@pytest.mark.medium
def test_peak_memory_is_of_the_windows_and_not_of_cudnns_search(monkeypatch):
    """Protects peak_memory_mb: forgotten on every GPU that is used, once, right before the first window, and read
    before the evaluation, of the GPU that had most: the sum over GPUs stood beside strategies with one GPU a rank.
    Mutants: the sum; read at the end of the run."""
    see_gpus(monkeypatch, 4)
    happened, peaks = [], []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: int(index < 2))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda index: happened.append(f"reset {index}"))
    monkeypatch.setattr(
        torch.cuda, "max_memory_allocated", lambda index: happened.append(f"read {index}") or 7e6 * (1 + index)
    )

    class Told(Clock):
        def start(self) -> None:
            happened.append("window")
            super().start()

    monkeypatch.setattr(engine, "Clock", Told)
    monkeypatch.setattr(engine._Run, "evaluate", lambda run, epoch: happened.append("evaluation"))
    monkeypatch.setattr(engine._Run, "summarize", lambda run: peaks.append(run.peak_memory_mb))
    monkeypatch.setattr(engine.Record, "finish", lambda record, summary, resolved: None)
    config = dataclasses.replace(SMALL, steps=6, warmup_steps=2, windows=2)
    train_on_nothing(monkeypatch, "model_parallel", config)
    assert happened == ["reset 0", "reset 1", "window", "window", "read 0", "read 1", "evaluation"]
    assert peaks == [14.0]
