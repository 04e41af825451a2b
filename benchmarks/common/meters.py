"""Loss and accuracy as sums and counts that stay on the device until somebody asks."""

import dataclasses

import torch

from benchmarks.common.rank import AllReduce


@dataclasses.dataclass(frozen=True)
class Totals:
    """What a Meter saw: mean loss, top-1 and top-5 accuracy in per cent, and the number of images."""

    loss: float
    acc1: float
    acc5: float
    images: int


class Meter:
    """Exact averages over images: sums are added up, over steps and then ranks, and divided once.

    No averages of averages, no padding, no `.item()` until `totals`. float64, so that counts are exact.
    """

    def __init__(self, device: torch.device):
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, top-1, top-5, images

    def update(self, loss: torch.Tensor, output: torch.Tensor, target: torch.Tensor) -> None:
        """loss: scalar mean over the batch; output: (N, classes) scores; target: (N,) class numbers."""
        top = output.topk(min(5, output.shape[1]), dim=1).indices.eq(target[:, None])
        num_images = len(target)
        batch = torch.stack([loss.double() * num_images, top[:, 0].sum().double(), top.sum().double()])
        self.sums[:3] += batch
        self.sums[3] += num_images

    def totals(self, all_reduce: AllReduce) -> Totals | None:
        """Totals over all ranks, on every rank; None where no image was seen."""
        loss, top1, top5, images = all_reduce(self.sums.clone()).tolist()
        if not images:
            return None
        return Totals(loss / images, 100 * top1 / images, 100 * top5 / images, int(images))
