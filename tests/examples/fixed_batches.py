"""Batches of noise, which follow from the images' numbers."""

from collections.abc import Iterator
from typing import Any

import torch

NUM_CLASSES, IMAGE_SIZE = 4, 32


def fixed_batch(numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, as if they were normalised, and classes."""
    generators = [torch.Generator().manual_seed(number) for number in numbers]
    images = [torch.randn(3, IMAGE_SIZE, IMAGE_SIZE, generator=generator) for generator in generators]
    return torch.stack(images), torch.tensor([number % NUM_CLASSES for number in numbers])


class FixedLoader:
    """Stands for torch's DataLoader."""

    def __init__(self, images, batch_size, shuffle=False, sampler=None, drop_last=False, **of_workers: Any):
        self.numbers = sampler or getattr(images, "indices", range(len(images)))  # of a Subset
        self.batch_size, self.shuffle, self.drop_last, self.num_passes = batch_size, shuffle, drop_last, 0

    def __len__(self) -> int:
        whole, rest = divmod(len(self.numbers), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = list(self.numbers)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.num_passes)
            order = torch.randperm(len(order), generator=generator).tolist()
        self.num_passes += 1
        for first in range(0, len(self) * self.batch_size, self.batch_size):
            yield fixed_batch(order[first : first + self.batch_size])
