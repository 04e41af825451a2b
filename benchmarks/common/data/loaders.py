"""Images in, batches on the device out, the same global batches for every strategy and any number of ranks.

Batch k of an epoch is positions [k*G, (k+1)*G) of a permutation drawn from (seed, epoch); each rank reads its
equal slice of it. The augmentation of an image is drawn from (seed, epoch, position), so that pixels depend on
neither the ranks, nor the loader's workers, nor where a resumed run started.
"""

import contextlib
import dataclasses
import errno
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.common.config.config import Config
from benchmarks.common.config.settings import IMAGENET_TRAIN_IMAGES
from benchmarks.common.data import decode, packed
from benchmarks.common.data.batch_readers import Batch, HostBatches, arrived
from benchmarks.common.data.image_dataset import NEIGHBOURS_TRIED, Files, Photographs, raw_reader
from benchmarks.common.data.mapped_arrays import CUT_SHORT
from benchmarks.common.dist.devices import RankContext, Reduce
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's training set, as torchvision documents
IMAGENET_CLASSES = 1000
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class GlobalBatches:
    """One shard's part of every global batch of an epoch, as lists of (epoch, position, index).

    shuffle: an epoch deals `num_steps` whole batches from shuffled laps over the images, so that a set smaller
    than an epoch is dealt again. Otherwise every image comes exactly once: the last batch is what is left,
    and where that is less than one image a shard, some shards have no part in it.
    """

    def __init__(self, num_images, global_batch, num_steps, shard=0, num_shards=1, shuffle=True, seed=0):
        self.num_images, self.global_batch, self.num_steps = num_images, global_batch, num_steps
        self.shard, self.num_shards, self.shuffle, self.seed = shard, num_shards, shuffle, seed
        self.epoch = self.start_step = 0

    def __len__(self) -> int:
        return self.num_steps - self.start_step

    def order(self) -> torch.Tensor:
        """Image indices of the epoch, int64, in the order in which they are dealt."""
        if not self.shuffle:
            return torch.arange(self.num_images)
        wanted = self.num_steps * self.global_batch
        deal = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        laps = [torch.randperm(self.num_images, generator=deal) for _ in range(-(-wanted // self.num_images))]
        return torch.cat(laps)[:wanted]

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        order = self.order()
        for step in range(self.start_step, self.num_steps):
            positions = range(step * self.global_batch, min((step + 1) * self.global_batch, len(order)))
            share, extra = divmod(len(positions), self.num_shards)
            first = self.shard * share + min(self.shard, extra)
            mine = positions[first : first + share + (self.shard < extra)]
            if mine:
                indices = order[mine.start : mine.stop].tolist()
                yield [(self.epoch, position, index) for position, index in zip(mine, indices, strict=True)]


class Loader:
    """Batches on the device: float32 NCHW images, normalised, and int64 targets.

    `fetch` and `to_device` are looked up at every batch, so that the account of a step can time them from
    outside. met: what each `auto` of its configuration came to.
    """

    def __init__(self, host_batches, batches: GlobalBatches, config: Config, device: torch.device, classes: list[str]):
        self.host_batches, self.batches, self.device = host_batches, batches, device
        self.met: dict[str, str | int] = {}
        self.classes, self.skip_bad_files = classes, config.skip_bad_files
        self.memory_format = MEMORY_FORMATS[config.memory_format]
        self.mean = torch.tensor(MEAN, device=device).mul(255).view(1, 3, 1, 1)
        self.std = torch.tensor(STD, device=device).mul(255).view(1, 3, 1, 1)
        self.shift, self.scale = -self.mean / self.std, 1 / self.std
        self.num_bad_files = self.num_by_pillow = 0

    @property
    def num_steps(self) -> int:
        """Steps of a whole epoch."""
        return self.batches.num_steps

    def set_epoch(self, epoch: int, start_step: int = 0) -> None:
        """Choose the epoch, and so its order and augmentations, and the step to start from."""
        self.batches.epoch, self.batches.start_step = epoch, start_step

    def fetch(self, host_batches: Iterator[Batch]) -> Batch | None:
        """The next batch, or None at the end; for a GPU its copy may be under way. Raises UserError for an unreadable
        file."""
        with _worker_troubles():
            batch = next(host_batches, None)
        if batch is None:
            return None
        if batch.problems:
            if not self.skip_bad_files:
                raise UserError(f"{batch.problems[0]}; mend or remove the file, or use --skip-bad-files")
            if self.batches.shuffle and len(batch.target) < self.batches.global_batch // self.batches.num_shards:
                raise UserError(f"{batch.problems[0]}, nor are the {NEIGHBOURS_TRIED - 1} after it; mend the data set")
            self.num_bad_files += len(batch.problems)
        self.num_by_pillow += batch.num_by_pillow
        return batch

    def to_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """What a step takes: the device waits for the batch's copy, or copies it, and makes floats of bytes."""
        images, target = arrived(batch, self.device)
        return (self.normalised(images) if images.dtype == torch.uint8 else images), target

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """(images - mean) / std as float32. On a GPU by one kernel, which reads bytes and writes floats once; it rounds
        once where the CPU, bit for bit as the proof's reference, rounds twice."""
        if self.device.type == "cpu":
            return images.to(torch.float32, memory_format=self.memory_format).sub_(self.mean).div_(self.std)
        floats = torch.empty_like(images, dtype=torch.float32, memory_format=self.memory_format)
        return torch.addcmul(self.shift, images, self.scale, out=floats)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        with _worker_troubles():
            host_batches = iter(self.host_batches)
        while (batch := self.fetch(host_batches)) is not None:
            if len(batch.target):
                yield self.to_device(batch)


def num_odd_files(loaders: list[Loader], device: torch.device, reduce: Reduce) -> dict[str, int]:
    """For a run's row, over all ranks: images that others replaced, and images that the decoder left to Pillow."""
    counts = [[loader.num_bad_files, loader.num_by_pillow] for loader in loaders]
    total = reduce(torch.tensor(counts, dtype=torch.float64, device=device).sum(dim=0)).tolist()
    return dict(zip(("skipped_files", "num_by_pillow"), map(int, total), strict=True))


@contextlib.contextmanager
def _worker_troubles() -> Iterator[None]:
    """What a lack of memory, or of room in /dev/shm, looks like from the training process, with the remedy."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if "Bus error" in f"{error} {error.__cause__}":  # torch's own text, which names the signal, may be the cause
            remedy = f"bus error: {CUT_SHORT}"
        elif any(sign in str(error) for sign in ("killed by signal", "exited unexpectedly")):
            remedy = "the kernel may have, for lack of memory (see dmesg): use fewer --workers or a smaller batch"
        elif full or any(sign in str(error) for sign in ("shared memory", "DataLoader timed out")):
            remedy = (
                "/dev/shm may be full: enlarge it or use --workers 0; if the files only are slow, raise --timeout-s"
            )
        else:
            raise
        raise UserError(f"the loader's workers gave no batch ({str(error).splitlines()[0]}); {remedy}") from error


class SyntheticBatches:
    """One random batch that already lives on the device, as often as an epoch has steps: training without input."""

    def __init__(self, config: Config, batches: GlobalBatches, device: torch.device):
        self.batches = batches
        size = (config.global_batch // batches.num_shards, 3, config.image_size, config.image_size)
        random = torch.Generator().manual_seed(config.seed + batches.shard)
        images = torch.randn(size, generator=random).contiguous(memory_format=MEMORY_FORMATS[config.memory_format])
        target = torch.randint(IMAGENET_CLASSES, size[:1], generator=random)
        self.batch = Batch(images.to(device), target.to(device))

    def __iter__(self):
        return itertools.repeat(self.batch, len(self.batches))


def build_loaders(
    config: Config, context: RankContext, shard: int | None = None, num_shards: int | None = None, num_devices: int = 1
) -> tuple[Loader, Loader]:
    """The training and the validation Loader of one rank.

    num_devices: how many it feeds; it gets the loader workers that as many ranks would have.
    shard, num_shards: which part of each global batch to read (default: rank of world_size); ranks that hold
    parts of one model share a shard. Raises UserError where the batch does not divide or the data are unfit.
    """
    shard = context.rank if shard is None else shard
    num_shards = context.world_size if num_shards is None else num_shards
    if config.global_batch % num_shards:
        raise UserError(f"global_batch {config.global_batch} does not divide by {num_shards} ranks; change one of them")
    G, dealt = config.global_batch, {"shard": shard, "num_shards": num_shards, "seed": config.seed}
    if config.loader == "synthetic":
        steps = config.steps or IMAGENET_TRAIN_IMAGES // G
        train_batches = GlobalBatches(IMAGENET_TRAIN_IMAGES, G, steps, **dealt)
        val_batches = GlobalBatches(0, G, 0, shuffle=False, **dealt)
        classes = [str(number) for number in range(IMAGENET_CLASSES)]
        train_set = SyntheticBatches(config, train_batches, context.device)
        return (
            Loader(train_set, train_batches, config, context.device, classes),
            Loader([], val_batches, config, context.device, classes),
        )
    workers = machine.num_workers(config.workers, context.device.type == "cuda")
    decoder = decode.resolved_decoder(config)
    met = {"decoder": decoder, "decoder_version": decode.decoder_version(decoder)}
    met |= {"workers": workers} if config.workers == "auto" else {}
    config = dataclasses.replace(config, workers=workers * num_devices)
    train_set, val_set = image_folders(config)
    train_batches = GlobalBatches(len(train_set), G, config.steps or max(1, len(train_set) // G), **dealt)
    val_batches = GlobalBatches(len(val_set), G, -(-len(val_set) // G), shuffle=False, **dealt)
    train, val = (
        Loader(HostBatches(config, context, images, batches), batches, config, context.device, train_set.classes)
        for images, batches in ((train_set, train_batches), (val_set, val_batches))
    )
    train.met = met
    return train, val


def image_folders(config: Config) -> tuple[Photographs, Photographs]:
    """train/ and val/ of config.data, as files or packed: random crops and flips in training, else centre crops.

    Raises UserError where they cannot be read, or a decoder that was asked for is not here.
    """
    if config.loader == "packed":
        sources = packed.open_packs(config)
    else:
        sources = [Files(Path(config.data) / part) for part in ("train", "val")]
    name = decode.resolved_decoder(config)
    open_reader = functools.partial(decode.reader, name) if name else raw_reader
    train, val = (
        Photographs(source, open_reader, config.image_size, config.seed, sources[0].classes) for source in sources
    )
    train.fill_gaps, train.augment = True, config.augment
    return train, val
