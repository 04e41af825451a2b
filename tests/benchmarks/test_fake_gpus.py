"""Every strategy's step, meter, evaluation and account on GPUs that are not there (tests/fake_gpus.py).

    .venv/bin/python -m pytest tests/benchmarks/test_fake_gpus.py

Nothing on the way may look at a tensor (`.item()`, a branch on its values), which would have the host wait for the GPU
in every step, and none may be on another device than those that it meets. With fake GPUs the backward pass only says
which parameters it reaches; with fake CPUs it runs, too.
"""

import dataclasses
import inspect
import re

import pytest
import torch
import torch.distributed as dist
from fake_gpus import STEPS, see_gpus, train_on_nothing
from stand_ins import NO_STAND_IN, WithoutDriver, backward, start_fake_group, to
from support import REMEDY_WITHOUT, ROOT, STRATEGIES
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config

SMALL = Config(arch="resnet18", image_size=32, global_batch=8, loader="synthetic", **STEPS)
FAST = {"ddp", "model_parallel"}
OPTIONS = {  # beside the defaults
    "layout": ("ddp", {"memory_format": "channels_last"}),
    "layout of Apex": ("apex_ddp", {"memory_format": "channels_last"}),
    "layout in stages": ("pipeline_parallel", {"memory_format": "channels_last"}),
    "GroupNorm": ("ddp", {"norm": "group"}),
    "GroupNorm in stages": ("pipeline_parallel", {"norm": "group", "precision": "bf16"}),
    "fp16": ("ddp_amp", {"precision": "fp16"}),
    "gpipe": ("pipeline_parallel", {"pipeline_schedule": "gpipe", "microbatches": 2}),
    "a stream for copies": ("model_parallel", {"copy_stream": True, "split_size": 4}),
    "micro-batches": ("hybrid_parallel", {"split_size": 2}),
    "compression": ("horovod_ddp", {"compression": "fp16"}),
}
# What has the host wait for the GPU in every step all the same: whose code, a line of it, and how the README names it.
# None of it runs on fake GPUs: PowerSGD's hook is DDP's own, and batch_norm_stats has no kernel without data.
HOST_WAITS = {
    "powersgd": (powerSGD_hook.powerSGD_hook, "torch.cuda.synchronize(device)", "`--comm-hook powersgd`"),
    "norm sync": (SyncBatchNorm.forward, "count_all = count_all[mask]", "`--norm sync`"),
}


FAKED = [name for name in STRATEGIES if name not in NO_STAND_IN]


def cases(names):
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", cases(FAKED))
def test_no_step_looks_at_a_tensor_or_mixes_gpus(monkeypatch, name):
    """Protects timed windows on GPUs: 2 ranks on a machine with 4, the second of them, which has no GPU 0."""
    see_gpus(monkeypatch, 4)
    train_on_nothing(monkeypatch, name, SMALL, rank=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAKED)
def test_rank_0_does_not_either(monkeypatch, name):
    """Protects the rank with the images, the rows and the checkpoints."""
    see_gpus(monkeypatch, 4)
    train_on_nothing(monkeypatch, name, SMALL, rank=0)


@pytest.mark.parametrize("name", cases([name for name in FAKED if "GPU" not in REMEDY_WITHOUT.get(name, "")]))
@pytest.mark.medium
def test_no_backward_pass_looks_at_a_tensor(monkeypatch, name):
    """Protects the other half of a step, with its hooks."""
    see_gpus(monkeypatch, 0)
    train_on_nothing(monkeypatch, name, SMALL, rank=1)


@pytest.mark.slow
@pytest.mark.parametrize("what", OPTIONS)
def test_no_option_looks_at_a_tensor(monkeypatch, what):
    name, options = OPTIONS[what]
    see_gpus(monkeypatch, 4)
    for rank in (0, 1):
        with monkeypatch.context() as patch:
            train_on_nothing(patch, name, dataclasses.replace(SMALL, **options), rank)


@pytest.mark.parametrize("what", HOST_WAITS)
def test_what_waits_on_the_host_is_known_and_named(what):
    """Protects "no `.item()` inside": its exceptions stand beside it, and what torch has fixed must leave the list."""
    function, line, name = HOST_WAITS[what]
    assert line in inspect.getsource(function)
    (clock,) = re.findall(r"\*\*The clock times whole steps.*?\n- ", (ROOT / "README.md").read_text(), re.DOTALL)
    assert name in clock


# --- the stand-ins ------------------------------------------------------------------------------------------------


def net_on(device: str) -> nn.Module:
    return to(nn.Sequential(nn.Flatten(1), nn.Linear(12, 4)), device)


def scatter():
    nn.DataParallel(net_on("cuda:0"), [0, 1])(torch.empty(4, 12, device="cuda:0"))


def send_rows():
    stage = PipelineStage(net_on("cpu"), 0, 2, torch.device("cpu"), torch.empty(2, 12), torch.empty(2, 4))
    ScheduleGPipe(stage, 2, cross_entropy).step(torch.empty(4, 12))


def step_fused():
    net = net_on("cuda:0")
    for parameter in net.parameters():
        parameter.grad = torch.empty_like(parameter)
    torch.optim.SGD(net.parameters(), momentum=0.9, fused=True).step()


def reduce_by_horovod():
    hvd = pytest.importorskip("horovod.torch", reason="scripts/setup/install_horovod.sh has not run")
    hvd.allreduce(torch.empty(1))  # whose ranks are processes; with them it would read the data


WHY = {  # what has a stand-in, and what it says of a tensor without data
    "Module.to": (lambda: nn.Linear(1, 1).to("cuda:0"), "Couldn't swap"),
    "backward": (lambda: net_on("cuda:0")(torch.empty(1, 12, device="cuda:0")).sum().backward(), "PrimaryContext"),
    "DistributedDataParallel": (lambda: DistributedDataParallel(net_on("cpu")), "data is not allocated yet"),
    "DataParallel": (
        lambda: nn.DataParallel(net_on("cuda:0"), [0, 1])(torch.empty(4, 12, device="cuda:0")),
        "driver|NVIDIA|device",
    ),
    "pipelining": (send_rows, "Failed to run stage backward|c10d.recv_"),  # the second in torch 2.10
    "fused SGD": (step_fused, "_fused_sgd_|driver"),
    "Horovod": (reduce_by_horovod, "initialized"),
    # Apex is not installed where there is no GPU; copy.deepcopy ends the process.
}


@pytest.mark.parametrize("what", WHY)
def test_what_has_a_stand_in_needs_it(monkeypatch, what):
    """Protects the other tests from standing in for what could be tested itself."""
    see_gpus(monkeypatch, 2)
    refused, words = WHY[what]
    start_fake_group(dist.init_process_group, 0, 2)
    try:
        with WithoutDriver(), pytest.raises((RuntimeError, ValueError), match=words):
            refused()
    finally:
        dist.destroy_process_group()


def test_the_stand_in_for_backward_reaches_what_backward_reaches(monkeypatch):
    """Protects the tests with fake GPUs: parameters that the loss does not depend on have no gradient."""
    first, second, unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
    for run in (backward, torch.autograd.backward):
        for parameter in (first, second, unused):
            parameter.grad = None
        run(((first * second).sum() + first.sum()).relu())
        assert [parameter.grad is None for parameter in (first, second, unused)] == [False, False, True]
