"""Which image is in which batch of which rank: the shards of a global batch, and the order of an epoch.

Batch k of an epoch is positions [k*G, (k+1)*G) of a permutation drawn from (seed, epoch); each rank reads its equal
slice of it.
"""

import dataclasses
from collections.abc import Iterator

import torch

from benchmarks.common.image_dataset import ImageKey


@dataclasses.dataclass(frozen=True)
class Shard:
    """Part `index`, from 0 on, of the `num_shards` equal parts of every global batch.

    num_devices: that compute on its images. Who reads it gets the loader workers that as many ranks would have.
    """

    index: int = 0
    num_shards: int = 1
    num_devices: int = 1


WHOLE_BATCH = Shard()


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Which images one rank reads, in training and in validation.

    reads_train_images: False on a rank that gets activations and targets from another.
    """

    train: Shard = dataclasses.field(default_factory=Shard)
    val: Shard = dataclasses.field(default_factory=Shard)
    reads_train_images: bool = True


class GlobalBatchSampler:
    """One shard's part of every global batch of an epoch, as lists of (epoch, position, index).

    shuffle: an epoch has `num_steps` whole batches, taken from one permutation of the images after the other. Without
    shuffle every image comes exactly once: the last batch holds the rest, and some shards may have no part in it.
    """

    def __init__(
        self,
        num_images: int,
        global_batch: int,
        num_steps: int,
        shard: Shard = WHOLE_BATCH,
        shuffle: bool = True,
        seed: int = 0,
    ):
        self.num_images, self.global_batch, self.num_steps = num_images, global_batch, num_steps
        self.shard, self.num_shards, self.shuffle, self.seed = shard, shard.num_shards, shuffle, seed
        self.epoch = self.start_step = 0

    def __len__(self) -> int:
        return self.num_steps - self.start_step

    def order(self) -> torch.Tensor:
        """Image indices of the epoch, int64, by position."""
        if not self.shuffle:
            return torch.arange(self.num_images)
        num_positions = self.num_steps * self.global_batch
        num_permutations = -(-num_positions // self.num_images)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        permutations = [torch.randperm(self.num_images, generator=generator) for _ in range(num_permutations)]
        return torch.cat(permutations)[:num_positions]

    def __iter__(self) -> Iterator[list[ImageKey]]:
        order = self.order()
        for step in range(self.start_step, self.num_steps):
            positions = range(step * self.global_batch, min((step + 1) * self.global_batch, len(order)))
            per_shard, extra = divmod(len(positions), self.num_shards)
            index = self.shard.index
            first = index * per_shard + min(index, extra)
            of_shard = positions[first : first + per_shard + (index < extra)]
            if of_shard:
                indices = order[of_shard.start : of_shard.stop].tolist()
                yield [(self.epoch, position, image) for position, image in zip(of_shard, indices, strict=True)]
