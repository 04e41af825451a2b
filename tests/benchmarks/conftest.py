import pytest
import torch
import torchvision
from torch import nn


class SmallModel(nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()
        self.conv1, self.bn1, self.fc = nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.Linear(8, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn1(self.conv1(images)).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def small_model():
    """In the place of ResNet-18, of which a step takes 40 ms and a checkpoint 90 MB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.models, "resnet18", SmallModel)
        yield
