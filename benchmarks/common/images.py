"""From files to uint8 pixels of one size: crops, decoders, and the dataset that joins them.

A Crop follows from an image's size, so that only its box has to be decoded. Pixels are those of torchvision's
v2.RandomResizedCrop and v2.RandomHorizontalFlip.
"""

import contextlib
import functools
import importlib
import io
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from PIL import Image, UnidentifiedImageError
from torch.nn.functional import interpolate

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.listing import FIRST_BYTES, list_images

CROP_SCALE, CROP_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of area and aspect, as in v2.RandomResizedCrop
LOG_RATIO = math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])
CROP_TRIES = 10
MAX_VALUES_ONE_THREAD = 32_767  # torch divides more among threads (at::internal::GRAIN_SIZE)
NUMBERS_PER_IMAGE = 24  # two for each try, top, left, flip; the generator has blocks of four


class Crop(NamedTuple):
    """In pixels: a box, the size to which it is resized, and where the result is cut from that."""

    top: int
    left: int
    height: int
    width: int
    new_height: int
    new_width: int
    cut_top: int = 0
    cut_left: int = 0
    flip: bool = False


ChooseCrop = Callable[[int, int], Crop]
"""Of height and width."""


def random_numbers(seed: int, epoch: int, first: int, num_images: int) -> list[list[float]]:
    """NUMBERS_PER_IMAGE in [0, 1) for each position from `first` on: Philox 4x64-10 (Salmon et al., SC11)."""
    key = numpy.array([seed % 2**64, epoch], numpy.uint64)  # of a list with a number above 2**63 numpy makes floats
    stream = numpy.random.Philox(key=key, counter=first * NUMBERS_PER_IMAGE // 4)
    raw = stream.random_raw(num_images * NUMBERS_PER_IMAGE).reshape(num_images, NUMBERS_PER_IMAGE)
    return ((raw >> 11) * 2.0**-53).tolist()


def random_crop(size: int, numbers: list[float]) -> ChooseCrop:
    """numbers: a row of random_numbers."""

    def choose(height: int, width: int) -> Crop:
        return Crop(*_random_box(height, width, numbers), size, size, flip=numbers[2 * CROP_TRIES + 2] < 0.5)

    return choose


def _random_box(height: int, width: int, numbers: list[float]) -> tuple[int, int, int, int]:
    """Top, left, height and width, as v2.RandomResizedCrop computes them."""
    area = height * width
    for first in range(0, 2 * CROP_TRIES, 2):
        target = area * (CROP_SCALE[0] + (CROP_SCALE[1] - CROP_SCALE[0]) * numbers[first])
        ratio = math.exp(LOG_RATIO[0] + (LOG_RATIO[1] - LOG_RATIO[0]) * numbers[first + 1])
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = numbers[2 * CROP_TRIES : 2 * CROP_TRIES + 2]
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    if width / height < min(CROP_RATIO):
        w, h = width, round(width / min(CROP_RATIO))
    elif width / height > max(CROP_RATIO):
        w, h = round(height * max(CROP_RATIO)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def centre_crop(size: int) -> ChooseCrop:
    """Of a shorter side of size * 256 / 224, as torchvision's references validate."""
    short = size * 256 // 224

    def choose(height: int, width: int) -> Crop:
        long = short * max(height, width) // min(height, width)
        h, w = (short, long) if height <= width else (long, short)
        return Crop(0, 0, height, width, h, w, round((h - size) / 2), round((w - size) / 2))

    return choose


def resize_into(box: torch.Tensor | Image.Image, crop: Crop, out: torch.Tensor) -> None:
    """out: uint8, height x width x 3."""
    if isinstance(box, Image.Image):
        resized = torch.from_numpy(
            numpy.array(box.resize((crop.new_width, crop.new_height), Image.Resampling.BILINEAR))
        )
    else:  # the batch's dimension first: else its stride hides that the channels are last
        shape = crop.new_height, crop.new_width
        resized = interpolate(box[None].permute(0, 3, 1, 2), shape, mode="bilinear", antialias=True)
        resized = resized[0].permute(1, 2, 0)
    height, width = out.shape[:2]
    cut = resized[crop.cut_top : crop.cut_top + height, crop.cut_left : crop.cut_left + width]
    # In the training process torch would wake all of its threads to flip 150 kB.
    rows = height if torch.get_num_threads() == 1 else MAX_VALUES_ONE_THREAD // (3 * width)
    for first in range(0, height, rows):
        some = cut[first : first + rows]
        numpy.copyto(out.numpy()[first : first + rows], (some.flip(1) if crop.flip else some).numpy())


EXIF_ORIENTATION = 274  # the tag's number
CPU_DEVICE_ID = -99999  # nvimgcodec's NVIMGCODEC_DEVICE_CPU_ONLY
JPEG_END = b"\xff\xd9"
MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or sys.maxsize)  # Pillow's limit


class Decoded(NamedTuple):
    """A crop's box, not yet resized: uint8, height x width x 3, or Pillow's."""

    pixels: torch.Tensor | Image.Image
    crop: Crop


Decoder = Callable[[Any, ChooseCrop], Decoded]
"""Of a file's bytes, or packed pixels, uint8, height x width x 3."""


class NeedsPillow(Exception):
    """This library cannot read it, or reads it otherwise."""


def image_format(content: bytes) -> str:
    """Raises ValueError for others than JPEG and PNG."""
    for name, first in FIRST_BYTES.items():
        if content.startswith(first):
            return name
    raise ValueError("its first bytes are of neither a JPEG nor a PNG")


def open_image(content: bytes) -> Image.Image:
    """Raises ValueError, and whatever else Pillow raises."""
    try:
        return Image.open(io.BytesIO(content), formats=(image_format(content),))
    except UnidentifiedImageError:  # its text is the address of the BytesIO
        raise ValueError("its header is not readable") from None


def check_decodable(content: bytes, height: int, width: int) -> None:
    """Raises NeedsPillow for a truncated file, of which a crop may look whole, and beyond MAX_PIXELS; ValueError where
    the header has no size (DNL)."""
    if not height or not width:
        raise ValueError(f"its header says {width} x {height} pixels")
    if not content.endswith(JPEG_END) or height * width > MAX_PIXELS:
        raise NeedsPillow


def decode_by_pillow(content: bytes, choose: ChooseCrop) -> Decoded:
    with open_image(content) as image:
        crop = choose(image.height, image.width)
        box = crop.left, crop.top, crop.left + crop.width, crop.top + crop.height
        return Decoded(image.convert("RGB").crop(box), crop)


def cut_pixels(pixels: numpy.ndarray, choose: ChooseCrop) -> Decoded:
    """The Decoder of packed pixels."""
    crop = choose(*pixels.shape[:2])
    box = pixels[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    return Decoded(torch.from_numpy(numpy.ascontiguousarray(box)), crop)


def nvimgcodec_decoder() -> Decoder:
    """Raises ImportError."""
    with silence_stderr():
        library = importlib.import_module("nvidia.nvimgcodec")
        backends = [library.Backend(library.BackendKind.CPU_ONLY)]
        decoder = library.Decoder(device_id=CPU_DEVICE_ID, backends=backends, max_num_cpu_threads=1, options="")
        params = library.DecodeParams(apply_exif_orientation=False)

    def decode(content: bytes, choose: ChooseCrop) -> Decoded:
        if image_format(content) != "JPEG":
            raise NeedsPillow
        stream = library.CodeStream(content)
        check_decodable(content, stream.height, stream.width)
        if stream.num_channels not in (1, 3) or stream.precision != 8:
            raise NeedsPillow
        crop = choose(stream.height, stream.width)
        region = library.Region(start=[crop.top, crop.left], end=[crop.top + crop.height, crop.left + crop.width])
        image = decoder.decode(stream.get_sub_code_stream(region=region), params=params)
        if image is None:
            raise NeedsPillow
        return Decoded(torch.from_numpy(numpy.asarray(image)), crop)

    return decode


def torchcodec_decoder() -> Decoder:
    decode_jpeg = importlib.import_module("torchcodec.decoders").decode_jpeg

    def decode(content: bytes, choose: ChooseCrop) -> Decoded:
        with open_image(content) as image:  # the header only
            if image.format != "JPEG" or image.mode not in ("L", "RGB") or EXIF_ORIENTATION in image.getexif():
                raise NeedsPillow
            check_decodable(content, image.height, image.width)
        return cut_pixels(decode_jpeg(content, mode="RGB").permute(1, 2, 0).numpy(), choose)

    return decode


@dataclass(frozen=True)
class DecoderLibrary:
    """module: to import. package: to install."""

    open: Callable[[], Decoder]
    module: str
    package: str


# In the order of `auto`: the fastest is first.
DECODERS = {
    "nvimgcodec": DecoderLibrary(nvimgcodec_decoder, "nvidia.nvimgcodec", "nvidia-nvimgcodec-cu13"),
    "torchcodec": DecoderLibrary(torchcodec_decoder, "torchcodec", "torchcodec"),
    "pillow": DecoderLibrary(lambda: decode_by_pillow, "PIL", "pillow"),
}


def open_decoder(name: str) -> Decoder:
    """Pillow decodes what the library cannot, and raises errors of any type. '': of packed pixels."""
    if not name:
        return cut_pixels
    by_library = DECODERS[name].open()

    def decode(content: bytes, choose: ChooseCrop) -> Decoded:
        try:
            return by_library(content, choose)
        except (NeedsPillow, RuntimeError):  # the libraries' own
            image, crop = decode_by_pillow(content, choose)
            return Decoded(torch.from_numpy(numpy.array(image)), crop)

    return by_library if name == "pillow" else decode


def resolve_decoder(config: Config) -> str:
    """'' where nothing is decoded. Raises UserError."""
    if config.loader == "synthetic" or (config.loader == "packed" and config.pack != "jpeg256"):
        return ""
    if config.decoder == "auto":
        return next(name for name in DECODERS if import_problem(name) is None)
    if problem := import_problem(config.decoder):
        package = DECODERS[config.decoder].package
        raise UserError(f"decoder {config.decoder}: {problem}; pip install {package}, or use --decoder auto")
    return config.decoder


def decoder_version(name: str) -> str:
    return importlib.import_module(DECODERS[name].module).__version__ if name else ""


@functools.cache
def import_problem(name: str) -> str | None:
    """None where the library decodes a small JPEG."""
    jpeg = io.BytesIO()
    Image.new("RGB", (16, 16)).save(jpeg, "JPEG")
    try:
        DECODERS[name].open()(jpeg.getvalue(), centre_crop(16))
    except Exception as error:  # such as of another glibc or CUDA
        return f"it does not load ({type(error).__name__}: {one_line(error)})"
    return None


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """nvimgcodec reports missing libraries that it does not need."""
    sys.stderr.flush()
    saved_stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(null)


ImageKey = tuple[int, int, int]
"""Epoch, position, index of the image."""


class ImageSource(Protocol):
    """target: a place in `classes`. name: for messages."""

    classes: list[str]

    def __len__(self) -> int: ...
    def content(self, index: int) -> Any: ...
    def target(self, index: int) -> int: ...
    def name(self, index: int) -> str: ...


class FolderSource:
    """Raises UserError where the folder cannot be read or holds no image."""

    def __init__(self, folder: Path):
        try:
            listing = list_images(folder)
        except OSError as error:
            raise UserError(f"cannot read {folder}: {error}; DATA must hold train/ and val/") from None
        if not len(listing):
            raise UserError(f"{folder} holds no class folder with images; expected {folder}/<class>/*.JPEG")
        self._listing, self.classes = listing, listing.classes
        self.target, self.name = listing.target, listing.path

    def __len__(self) -> int:
        return len(self._listing)

    def content(self, index: int) -> bytes:
        with open(self.name(index), "rb", buffering=0) as file:
            return file.read()


class ImageDataset:
    """Cropped to size x size. open_decoder: called in the process that reads. classes: of train/, for val/, too."""

    def __init__(
        self, source: ImageSource, open_decoder: Callable[[], Decoder], size: int, seed: int, classes: list[str]
    ):
        self.source, self.open_decoder, self.size, self.seed = source, open_decoder, size, seed
        self.augment, self.classes = False, classes
        number_of = {name: number for number, name in enumerate(classes)}
        if unknown := [name for name in source.classes if name not in number_of]:
            raise UserError(f"val has classes that train/ lacks: {unknown[:3]!r}; remove or train them")
        self._target_of_class = [number_of[name] for name in source.classes]

    def __len__(self) -> int:
        return len(self.source)

    @functools.cached_property
    def decode(self) -> Decoder:
        return self.open_decoder()

    def read_into(self, out: torch.Tensor, keys: list[ImageKey]) -> list[int]:
        """out: uint8 (N, size, size, 3). Returns the targets. Raises UserError for an unreadable image."""
        targets = []
        for (_, _, index), choose, place in zip(keys, self.crops(keys), out.unbind(), strict=True):
            try:
                pixels, crop = self.decode(self.source.content(index), choose)
                resize_into(pixels, crop, place)
            except Exception as error:  # Pillow's are of many types
                why = one_line(error) or type(error).__name__
                name = repr(self.source.name(index))
                raise UserError(f"{name} is not a readable image ({why}); repair or remove the file") from None
            targets.append(self._target_of_class[self.source.target(index)])
        return targets

    def crops(self, keys: list[ImageKey]) -> list[ChooseCrop]:
        """Of consecutive positions."""
        if not self.augment:
            return [centre_crop(self.size)] * len(keys)
        epoch, first, _ = keys[0]
        return [random_crop(self.size, numbers) for numbers in random_numbers(self.seed, epoch, first, len(keys))]


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
