"""Every strategy's step, meter, evaluation and account on GPUs that are not there (tests/fake_gpus.py).

    .venv/bin/python -m pytest tests/benchmarks/test_fake_gpus.py

Nothing on the way may look at a tensor (`.item()`, a branch on its values), which would have the host wait for the GPU
in every step, and none may be on another device than those that it meets. With fake GPUs the backward pass only says
which parameters it reaches; with fake CPUs it runs, too.
"""

import inspect
import re

import pytest
from fake_gpus import STEPS, see_gpus, train_on_nothing
from stand_ins import NO_STAND_IN
from support import REMEDY_WITHOUT, ROOT, STRATEGIES
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.modules._functions import SyncBatchNorm

from benchmarks.common.config import Config

SMALL = Config(arch="resnet18", image_size=32, global_batch=8, loader="synthetic", **STEPS)
FAST = {"ddp", "model_parallel"}
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


@pytest.mark.parametrize("what", HOST_WAITS)
def test_what_waits_on_the_host_is_known_and_named(what):
    """Protects "no `.item()` inside": its exceptions stand beside it, and what torch has fixed must leave the list."""
    function, line, name = HOST_WAITS[what]
    assert line in inspect.getsource(function)
    (clock,) = re.findall(r"\*\*The clock times whole steps.*?\n- ", (ROOT / "README.md").read_text(), re.DOTALL)
    assert name in clock
