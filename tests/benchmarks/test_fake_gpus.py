"""What strategies do on GPUs, held where there is none (tests/fake_gpus.py).

Nothing may look at a tensor (`.item()`, a branch on its values), for which the host would wait, and none may be on
another device than those that it meets.
"""

import dataclasses

import pytest
from fake_gpus import STEPS, see_gpus, train_on_nothing
from stand_ins import NO_STAND_IN
from support import STRATEGIES

from benchmarks.common.config import Config
from benchmarks.common.errors import Unavailable

SMALL = Config(arch="resnet18", image_size=32, global_batch=8, loader="synthetic", **STEPS)
FAST = {"ddp", "model_parallel"}
# The second of 2 ranks on a machine with 4 GPUs, which has no GPU 0; and a pipeline's first, which has the images.
CASES = [(name, 1) for name in STRATEGIES if name not in NO_STAND_IN] + [("pipeline_parallel", 0)]


@pytest.mark.parametrize(
    ("name", "rank"), [pytest.param(*case, marks=() if case[0] in FAST else pytest.mark.launches) for case in CASES]
)
def test_no_step_looks_at_a_tensor_or_mixes_gpus(monkeypatch, name, rank):
    """Steps, meter, evaluation and step breakdown."""
    see_gpus(monkeypatch, 4)
    train_on_nothing(monkeypatch, name, SMALL, rank=rank)


def test_a_pipeline_of_more_stages_than_blocks_is_skipped(monkeypatch):
    """ResNet-18 has 8 blocks."""
    see_gpus(monkeypatch, 9)
    with pytest.raises(Unavailable, match="8 blocks"):
        train_on_nothing(monkeypatch, "pipeline_parallel", dataclasses.replace(SMALL, global_batch=72), 8, 9)
