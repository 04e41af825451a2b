"""Images in, batches on the device out, the same global batches for every strategy and any number of ranks.

sharding.py says which image is in which batch of which rank.
"""

import contextlib
import dataclasses
import errno
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.common.config import Config
from benchmarks.common.settings import IMAGENET_TRAIN_IMAGES
from benchmarks.common import decode, packed
from benchmarks.common.batch_readers import Batch, HostLoader, wait_for_copy
from benchmarks.common.image_dataset import (
    MAX_REPLACEMENT_TRIES,
    FolderSource,
    ImageDataset,
    packed_pixels_decoder,
)
from benchmarks.common.mapped_arrays import TRUNCATED_FILE_HELP
from benchmarks.common.sharding import GlobalBatchSampler, Shard, Sharding
from benchmarks.common.rank import AllReduce, RankContext
from benchmarks.common import machine
from benchmarks.common.errors import UserError

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # as torchvision documents
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGENET_CLASSES = 1000
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

Mark = Callable[[str], None]
"""Called at the end of a phase, with its name."""


class Loader:
    """Batches on the device: float32 NCHW images, normalised, and int64 targets.

    resolved: for the settings of the run, the value of each `auto` of the configuration.
    """

    def __init__(
        self,
        host_batches: Iterable[Batch],
        sampler: GlobalBatchSampler,
        config: Config,
        device: torch.device,
        classes: list[str],
    ):
        self.host_batches, self.sampler, self.device = host_batches, sampler, device
        self.resolved: dict[str, str | int] = {}
        self.classes, self.skip_bad_files = classes, config.skip_bad_files
        self.memory_format = MEMORY_FORMATS[config.memory_format]
        self.mean = torch.tensor(IMAGENET_MEAN, device=device).mul(255).view(1, 3, 1, 1)
        self.std = torch.tensor(IMAGENET_STD, device=device).mul(255).view(1, 3, 1, 1)
        self.shift, self.scale = -self.mean / self.std, 1 / self.std
        self.num_bad_files = self.num_by_pillow = 0

    @property
    def num_steps(self) -> int:
        """Steps of a whole epoch."""
        return self.sampler.num_steps

    def set_epoch(self, epoch: int, start_step: int = 0) -> None:
        """Choose the epoch, and so its order and augmentations, and the step to start from."""
        self.sampler.epoch, self.sampler.start_step = epoch, start_step

    def fetch(self, host_batches: Iterator[Batch]) -> Batch | None:
        """The next batch, or None at the end. For a GPU, its copy may be in progress.

        Raises UserError for an unreadable file, unless config.skip_bad_files.
        """
        with _explain_worker_failures():
            batch = next(host_batches, None)
        if batch is None:
            return None
        if batch.problems:
            if not self.skip_bad_files:
                raise UserError(f"{batch.problems[0]}; repair or remove the file, or use --skip-bad-files")
            if self.sampler.shuffle and len(batch.target) < self.sampler.global_batch // self.sampler.num_shards:
                raise UserError(
                    f"{batch.problems[0]}, nor are the {MAX_REPLACEMENT_TRIES - 1} after it; repair the data set"
                )
            self.num_bad_files += len(batch.problems)
        self.num_by_pillow += batch.num_by_pillow
        return batch

    def to_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and targets for a step. The device waits for the batch's copy, or copies it, and normalises it."""
        images, target = wait_for_copy(batch, self.device)
        return (self.normalised(images) if images.dtype == torch.uint8 else images), target

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """(images - mean) / std as float32.

        On a GPU this is one kernel, which rounds once. On the CPU it is two, bit for bit as in the proof's reference.
        """
        if self.device.type == "cpu":
            return images.to(torch.float32, memory_format=self.memory_format).sub_(self.mean).div_(self.std)
        floats = torch.empty_like(images, dtype=torch.float32, memory_format=self.memory_format)
        return torch.addcmul(self.shift, images, self.scale, out=floats)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self.with_marks(lambda phase: None)

    def with_marks(self, mark: Mark) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of an epoch. mark: called at the end of each phase, with its name: "data", waiting for a batch;
        "copy", its way to the device; and "other", all that comes before either."""
        with _explain_worker_failures():
            host_batches = iter(self.host_batches)
        while True:
            mark("other")
            batch = self.fetch(host_batches)
            mark("data")
            if batch is None:
                return
            if len(batch.target):
                mark("other")
                on_device = self.to_device(batch)
                mark("copy")
                yield on_device


class Loaders(NamedTuple):
    """The loaders of one rank."""

    train: Loader
    val: Loader


def count_bad_files(loaders: Sequence[Loader], device: torch.device, all_reduce: AllReduce) -> dict[str, int]:
    """Columns of a run's row, over all ranks: unreadable images, and images that Pillow had to decode."""
    counts = [[loader.num_bad_files, loader.num_by_pillow] for loader in loaders]
    total = all_reduce(torch.tensor(counts, dtype=torch.float64, device=device).sum(dim=0)).tolist()
    return dict(zip(("skipped_files", "num_by_pillow"), map(int, total), strict=True))


@contextlib.contextmanager
def _explain_worker_failures() -> Iterator[None]:
    """Say what to do where workers fail because memory or /dev/shm is full. Raises UserError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if "Bus error" in f"{error} {error.__cause__}":  # torch's own text, which names the signal, may be the cause
            remedy = f"bus error: {TRUNCATED_FILE_HELP}"
        elif any(sign in str(error) for sign in ("killed by signal", "exited unexpectedly")):
            remedy = (
                "the kernel may have killed it for lack of memory (see dmesg): use fewer --workers or a smaller batch"
            )
        elif full or any(sign in str(error) for sign in ("shared memory", "DataLoader timed out")):
            remedy = (
                "/dev/shm may be full: enlarge it or use --workers 0; if only the files are slow, raise --timeout-s"
            )
        else:
            raise
        raise UserError(f"the loader's workers gave no batch ({str(error).splitlines()[0]}); {remedy}") from error


class SyntheticBatches:
    """One random batch, already on the device, repeated for each step of an epoch: training without input."""

    def __init__(self, config: Config, sampler: GlobalBatchSampler, device: torch.device):
        self.sampler = sampler
        size = (config.global_batch // sampler.num_shards, 3, config.image_size, config.image_size)
        random = torch.Generator().manual_seed(config.seed + sampler.shard.index)
        images = torch.randn(size, generator=random).contiguous(memory_format=MEMORY_FORMATS[config.memory_format])
        target = torch.randint(IMAGENET_CLASSES, size[:1], generator=random)
        self.batch = Batch(images.to(device), target.to(device))

    def __iter__(self) -> Iterator[Batch]:
        return itertools.repeat(self.batch, len(self.sampler))


def build_loaders(config: Config, context: RankContext, sharding: Sharding | None = None) -> Loaders:
    """The training and the validation Loader of one rank.

    sharding: default: a shard for each rank of the world. Ranks that hold parts of one model share a shard.
    Raises UserError where the batch does not divide or the data are unfit.
    """
    if sharding is None:
        of_rank = Shard(context.rank, context.world_size)
        sharding = Sharding(of_rank, of_rank)
    num_shards = sharding.train.num_shards
    if config.global_batch % num_shards:
        raise UserError(
            f"global_batch {config.global_batch} is not a multiple of {num_shards} ranks; change one of them"
        )
    if config.loader == "synthetic":
        return _synthetic_loaders(config, context, sharding)
    num_workers = machine.resolve_num_workers(config.workers, context.device.type == "cuda")
    decoder = decode.resolve_decoder(config)
    resolved: dict[str, str | int] = {"decoder": decoder, "decoder_version": decode.decoder_version(decoder)}
    resolved |= {"workers": num_workers}
    # one process that loads for several devices gets the workers that as many ranks would have
    train_config, val_config = (
        dataclasses.replace(config, workers=num_workers * shard.num_devices) for shard in (sharding.train, sharding.val)
    )
    train_set, val_set = open_datasets(config)
    train_sampler, val_sampler = _samplers(config, len(train_set), len(val_set), sharding)
    train_host: Iterable[Batch]
    if sharding.reads_train_images:
        train_host = HostLoader(train_config, context, train_set, train_sampler)
    else:
        train_host = _unread_batches(train_sampler, context.device)
    train = Loader(train_host, train_sampler, config, context.device, train_set.classes)
    val_host = HostLoader(val_config, context, val_set, val_sampler)
    val = Loader(val_host, val_sampler, config, context.device, train_set.classes)
    train.resolved = resolved
    return Loaders(train, val)


def _samplers(
    config: Config, num_train: int, num_val: int, sharding: Sharding
) -> tuple[GlobalBatchSampler, GlobalBatchSampler]:
    """The samplers of training and of validation, for data sets of these numbers of images."""
    global_batch, seed = config.global_batch, config.seed
    train_steps = config.steps or max(1, num_train // global_batch)
    val_steps = -(-num_val // global_batch)
    train = GlobalBatchSampler(num_train, global_batch, train_steps, sharding.train, seed=seed)
    val = GlobalBatchSampler(num_val, global_batch, val_steps, sharding.val, shuffle=False, seed=seed)
    return train, val


def _unread_batches(sampler: GlobalBatchSampler, device: torch.device) -> list[Batch]:
    """Batches without images, with targets on the device to receive into: the same ones for each step."""
    target = torch.zeros(sampler.global_batch // sampler.num_shards, dtype=torch.int64, device=device)
    return [Batch(torch.empty(0, device=device), target)] * sampler.num_steps


def _synthetic_loaders(config: Config, context: RankContext, sharding: Sharding) -> Loaders:
    """Training on one random batch, with an epoch of ImageNet's length, and no validation."""
    train_sampler, val_sampler = _samplers(config, IMAGENET_TRAIN_IMAGES, 0, sharding)
    classes = [str(number) for number in range(IMAGENET_CLASSES)]
    train_host: Iterable[Batch]
    if sharding.reads_train_images:
        train_host = SyntheticBatches(config, train_sampler, context.device)
    else:
        train_host = _unread_batches(train_sampler, context.device)
    train = Loader(train_host, train_sampler, config, context.device, classes)
    return Loaders(train, Loader([], val_sampler, config, context.device, classes))


def open_datasets(config: Config) -> tuple[ImageDataset, ImageDataset]:
    """train/ and val/ of config.data, as files or packed. Training has random crops and flips, validation centre crops.

    Raises UserError where the images cannot be read, or a requested decoder cannot be imported.
    """
    sources: Sequence[FolderSource | packed.PackedSource]
    if config.loader == "packed":
        sources = packed.open_packs(config)
    else:
        sources = [FolderSource(Path(config.data) / part) for part in ("train", "val")]
    name = decode.resolve_decoder(config)
    open_decoder = functools.partial(decode.open_decoder, name) if name else packed_pixels_decoder
    train, val = (
        ImageDataset(source, open_decoder, config.image_size, config.seed, sources[0].classes) for source in sources
    )
    train.replace_unreadable, train.augment = True, config.augment
    return train, val
