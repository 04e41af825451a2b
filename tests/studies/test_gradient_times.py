"""Hooks see when the backward pass has each gradient, and the buckets that follow are DDP's own.

.venv/bin/python -m pytest tests/studies/test_gradient_times.py
"""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config
from benchmarks.common.model.model import build_model
from benchmarks.common.system.errors import UserError
from scripts.studies.predict import gradient_times
from scripts.studies.predict.machine_models import read_gradients
from scripts.studies.predict.timeline import ddp_buckets, model_blocks

CPU = torch.device("cpu")
SMALL = Config(arch="resnet18", image_size=32, global_batch=2)


@pytest.fixture(scope="module")
def profile():
    return gradient_times.profile(SMALL, 12, CPU)


@pytest.mark.medium
def test_gradients_come_from_the_last_layer_to_the_first(profile):
    """Protects readiness: the classifier's are there early, the first convolution's at the end, and none is missing."""
    found = profile.gradients
    sizes = {name: 4 * parameter.numel() for name, parameter in build_model(SMALL, 12, CPU).named_parameters()}
    assert {each.name: each.num_bytes for each in found} == sizes
    assert {found[0].name, found[1].name} == {"fc.weight", "fc.bias"} and found[-1].name == "conv1.weight"
    ready = [each.ready for each in found]
    assert ready == sorted(ready) and 0 < ready[0] < 0.2 < 0.8 < ready[-1] <= 1
    assert profile.forward_s > 0 and profile.backward_s > 0


@pytest.mark.medium
def test_blocks_are_those_that_a_pipeline_cuts_between(profile):
    """8 residual blocks; after the first, 64 channels of 8 x 8 pixels in float32; the last hands on the scores."""
    blocks = model_blocks(profile.gradients)
    assert len(blocks.compute_shares) == 8 and sum(blocks.compute_shares) == pytest.approx(1)
    assert sum(blocks.gradient_bytes) == sum(gradient.num_bytes for gradient in profile.gradients)
    assert blocks.out_bytes[0] == 4 * 64 * 8 * 8 and blocks.out_bytes[-1] == 4 * 12


@pytest.mark.parametrize("bucket_cap_mb", [0.0, 4.0])
def test_buckets_are_those_that_ddp_makes(profile, tmp_path, bucket_cap_mb):
    """Protects the rule from being ours alone: DDP tells the sizes of the buckets that it has rebuilt."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(build_model(SMALL, 12, CPU), bucket_cap_mb=bucket_cap_mb or None)
        for _ in range(3):
            model(torch.randn(2, 3, 32, 32)).sum().backward()
        reported = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    finally:
        dist.destroy_process_group()
    assert [size for size, _ in ddp_buckets(profile.gradients, bucket_cap_mb)] == [
        int(size) for size in reported.split(",")
    ]
    assert len(reported.split(",")) == (3 if bucket_cap_mb == 0 else 7)


@pytest.mark.medium
def test_a_file_of_gradients_is_read_back(tmp_path, profile):
    gradient_times.main(gradient_times.GradientTimesOptions(out=tmp_path / "gradients.csv", num_classes=12), SMALL)
    found = read_gradients(tmp_path / "gradients.csv")
    assert [each.num_bytes for each in found] and {each.name for each in found} == {g.name for g in profile.gradients}


def test_no_gradients_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"scripts\.studies\.predict\.gradient_times"):
        read_gradients(tmp_path / "gradients.csv")
    (tmp_path / "gradients.csv").write_text("name,block\nfc,layer4.1\n")
    with pytest.raises(UserError, match="holds no gradients"):
        read_gradients(tmp_path / "gradients.csv")
