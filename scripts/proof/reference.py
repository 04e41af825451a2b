"""The training that every strategy has to reproduce: one process that takes the shards one after the other.

    python -m scripts.proof.verify        # compares every strategy with it

It deals the images, cuts the shards and averages the gradients itself, so that a fault of the code under test is
not repeated here. Only the initial weights and the learning rate are the suite's own.
"""

import concurrent.futures
import functools
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor
from tqdm import tqdm

from benchmarks.common.config import Config
from benchmarks.common.decode import quiet
from benchmarks.common.errors import UserError
from benchmarks.common.model import build_model, learning_rate
from benchmarks.common.settings import Shape

ONE_AT_A_TIME = threading.Lock()
ORIENTATION = 274  # the EXIF tag
IMAGENET_MEAN_AND_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as torchvision documents for its models


AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "apex-O1": torch.float16}
PLAIN = ("fp32", "tf32", "apex-O0")  # no autocast; what else a run may compute in has no reference
TRAVELS_AS = {"none": torch.float32, "fp16": torch.float16}


def train_reference(
    config: Config, shape: Shape, precision: str, device: torch.device, noise: float = 0.0
) -> dict[str, torch.Tensor]:
    """The state_dict, on the CPU, after config.epochs x config.steps optimizer steps in this process.

    precision: what the run computed in, of PLAIN or AUTOCAST. Running statistics are those of shard 0, as on rank 0.
    noise: add to every element of every averaged gradient an error, uniform up to this fraction of the tensor's
    largest element. Uses torch's current number of threads. Raises UserError where an image cannot be read.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    images = labelled_images(Path(config.data) / "train")
    net = build_model(config, num_classes(images), device).train()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    autocast = AUTOCAST.get(precision)
    scaler = torch.amp.GradScaler(device.type, enabled=autocast == torch.float16)
    noise_source = torch.Generator(device).manual_seed(1)
    bar = tqdm(total=config.epochs * config.steps, desc="reference", unit="step", disable=None, leave=False)
    with bar:
        for epoch in range(config.epochs):
            for step, batch in enumerate(global_batches(config, len(images), epoch)):
                pixels, target = decode(config, images, batch, device)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(config, epoch + step / config.steps)
                average_gradients(net, pixels, target, shape, autocast, scaler)
                for parameter in net.parameters() if noise else ():
                    error = torch.rand(parameter.shape, generator=noise_source, device=device) * 2 - 1
                    parameter.grad += error * noise * parameter.grad.abs().max()
                scaler.step(optimizer)
                scaler.update()
                bar.update()
    return {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()}


def average_gradients(net: nn.Module, pixels, target, shape: Shape, autocast, scaler: torch.amp.GradScaler) -> None:
    """Leave in each parameter's .grad the mean of the shards' gradients.

    They are added after the backward passes, then divided. DDP divides first: for two shards that is the same to the
    last bit, since halving is exact. fp16 compression adds and divides in fp16.
    """
    num_shards, num_losses = shape.num_shards, 1 if shape.split_size else shape.num_microbatches
    travels_as = TRAVELS_AS[shape.compression] if num_shards > 1 else torch.float32
    sums = [torch.zeros_like(parameter, dtype=travels_as) for parameter in net.parameters()]
    for shard in range(num_shards):
        statistics = [buffer.clone() for buffer in net.buffers()]
        net.zero_grad()
        mine = (tensor.tensor_split(num_shards)[shard].tensor_split(num_losses) for tensor in (pixels, target))
        for part_pixels, part_target in zip(*mine, strict=True):
            with torch.autocast(pixels.device.type, autocast, enabled=autocast is not None):
                # one loss of all scores: the mean of the splits' means would weigh the images of a short one more
                scores = [net(split) for split in part_pixels.split(shape.split_size or len(part_pixels))]
                loss = cross_entropy(torch.cat(scores), part_target)
            scaler.scale(loss).backward()
        for total, parameter in zip(sums, net.parameters(), strict=True):
            total += (parameter.grad / num_losses).to(travels_as)
        if shard > 0:
            for buffer, of_shard_0 in zip(net.buffers(), statistics, strict=True):
                buffer.copy_(of_shard_0)
    for total, parameter in zip(sums, net.parameters(), strict=True):
        parameter.grad = (total / num_shards).to(parameter.dtype)


@functools.cache
def labelled_images(folder: Path) -> list[tuple[Path, int]]:
    """(path, class number) of every image, classes and files in the order of their names."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [
        (Path(root, name), number)
        for number, of_class in enumerate(classes)
        for root, _, names in sorted(os.walk(of_class, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(IMG_EXTENSIONS)
    ]


def num_classes(images: list[tuple[Path, int]]) -> int:
    return 1 + max(number for _, number in images)


def global_batches(config: Config, num_images: int, epoch: int) -> Iterator[list[int]]:
    """The image indices of each global batch of an epoch: shuffled laps over all images, dealt in order.

    The generator's seed is the one thing that has to be as in benchmarks/common/data.py.
    """
    wanted = config.steps * config.global_batch
    deal, order = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch), []
    while len(order) < wanted:
        order += torch.randperm(num_images, generator=deal).tolist()
    for first in range(0, wanted, config.global_batch):
        yield order[first : first + config.global_batch]


def decode(config: Config, images: list, batch: list[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre crops, float32 (N, 3, image_size, image_size), normalised, and int64 targets (N,).

    Raises UserError for an image that cannot be read; with config.skip_bad_files, the next one takes its place.
    """
    with concurrent.futures.ThreadPoolExecutor() as threads:  # no rank runs beside it: all cores are free
        read = list(threads.map(lambda index: read_image(config, images, index), batch))
    mean, std = (torch.tensor(values, device=device).mul(255).view(1, 3, 1, 1) for values in IMAGENET_MEAN_AND_STD)
    layout = torch.channels_last if config.memory_format == "channels_last" else torch.contiguous_format
    pixels = torch.stack([crop for crop, _ in read]).to(device).float().sub(mean).div(std)
    return pixels.contiguous(memory_format=layout), torch.tensor([target for _, target in read], device=device)


def read_image(config: Config, images: list[tuple[Path, int]], index: int) -> tuple[torch.Tensor, int]:
    """The centre crop, uint8 (3, image_size, image_size), and the class number of one image.

    By config.decoder, which is a library's name here; what that leaves to Pillow is resized as its other images are.
    """
    size = config.image_size
    crop = v2.Compose([v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size)])
    path, target = images[index]
    try:
        with Image.open(path) as image:
            if config.decoder == "pillow":
                return pil_to_tensor(crop(image.convert("RGB"))), target
            # '': packed by Pillow, at full size
            library = DECODERS.get(config.decoder) if image.format == "JPEG" else None
            pixels = library(path.read_bytes()) if library else None
            return crop(pil_to_tensor(image.convert("RGB")) if pixels is None else pixels), target
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if config.skip_bad_files:
            return read_image(config, images, (index + 1) % len(images))
        raise UserError(f"{str(path)!r} is not a readable image ({error}); mend or remove it") from None


def by_nvimgcodec(content: bytes) -> torch.Tensor | None:
    """uint8 (3, height, width) of a JPEG file's content, or None for what the library leaves to Pillow."""
    library, decoder = nvimgcodec_of_thread(threading.get_ident())
    image = decoder.decode(library.CodeStream(content), params=library.DecodeParams(apply_exif_orientation=False))
    return None if image is None else torch.from_numpy(numpy.array(image)).permute(2, 0, 1)


@functools.cache
def nvimgcodec_of_thread(thread: int):
    """The library and a decoder on the CPU that no other thread uses."""
    with ONE_AT_A_TIME, quiet():  # stderr belongs to the process, not to a thread
        from nvidia import nvimgcodec

        backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
        return nvimgcodec, nvimgcodec.Decoder(device_id=-99999, backends=backends, max_num_cpu_threads=1)


def by_torchcodec(content: bytes) -> torch.Tensor | None:
    """uint8 (3, height, width) of a JPEG file's content, or None for what the loader leaves to Pillow."""
    from torchcodec.decoders import decode_jpeg

    with Image.open(io.BytesIO(content)) as image:
        plain = image.mode in ("L", "RGB") and ORIENTATION not in image.getexif()
    return decode_jpeg(content, mode="RGB") if plain else None


DECODERS = {"nvimgcodec": by_nvimgcodec, "torchcodec": by_torchcodec}
