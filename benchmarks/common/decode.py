"""Decode one box of a JPEG with the fastest installed library, or with Pillow where that library cannot read it.

EXIF orientation is ignored, as torchvision's ImageFolder ignores it. Only JPEGs and PNGs are read; a file's first bytes
say which it is. For an EPS Pillow would start Ghostscript.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import torch
from PIL import Image, UnidentifiedImageError

from benchmarks.common.config import Config
from benchmarks.common.crops import ChooseCrop, Crop
from benchmarks.common.listing import FIRST_BYTES
from benchmarks.common.errors import UserError
from benchmarks.common.gpus import usable_gpus

GPU_DECODER = "nvimgcodec-gpu"
NVIMGCODEC_MODULE = "nvidia.nvimgcodec"
NVIMGCODEC_VERSION = [0, 9]  # the oldest
EXIF_ORIENTATION = 274  # the tag's number
CPU_DEVICE_ID = -99999  # nvimgcodec's NVIMGCODEC_DEVICE_CPU_ONLY
JPEG_END = b"\xff\xd9"
MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or sys.maxsize)  # beyond it Pillow raises an error


class Decoded(NamedTuple):
    """The pixels of a crop's box, not yet resized."""

    pixels: torch.Tensor | Image.Image
    """A uint8 tensor, height x width x 3, or a Pillow image."""
    crop: Crop
    by_pillow: bool
    """Whether the library could not read the image, so that Pillow did."""


# A file's content is bytes. Of a packed file of pixels it is a uint8 array, height x width x 3.
Decoder = Callable[[Any, ChooseCrop], Decoded]


class NeedsPillow(Exception):
    """This library cannot read the image, or might read it otherwise than Pillow."""


def image_format(content: bytes) -> str:
    """ "JPEG" or "PNG", by the first bytes of a file's content. Raises ValueError for other formats."""
    for name, first in FIRST_BYTES.items():
        if content.startswith(first):
            return name
    raise ValueError("its first bytes are of neither a JPEG nor a PNG")


def open_image(content: bytes) -> Image.Image:
    """Pillow's image of a JPEG's or a PNG's content: its header is read, its pixels are not yet.

    Raises ValueError for other formats and for a header that is not readable, and whatever else Pillow raises.
    """
    try:
        return Image.open(io.BytesIO(content), formats=(image_format(content),))
    except UnidentifiedImageError:  # its text is the address of the BytesIO
        raise ValueError("its header is not readable") from None


def describe_error(error: Exception) -> str:
    """A line that says why an image is not readable: the error's text, with its type where the text is not enough."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
    return text if text and isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"


def resolve_decoder(config: Config) -> str:
    """The name of the library that decodes for this configuration; '' for a loader that decodes nothing.

    Raises UserError for a library that was requested by name and cannot be imported, or has no GPU.
    """
    if config.loader == "synthetic" or (config.loader == "packed" and config.pack != "jpeg256"):
        return ""
    if config.decoder == "auto":
        return next(name for name in AUTO_DECODERS if import_problem(name) is None)
    if config.decoder == GPU_DECODER and not usable_gpus():
        raise UserError(f"decoder {GPU_DECODER} needs a GPU, and there is none here; use --decoder auto")
    if problem := import_problem(config.decoder):
        package = DECODERS[config.decoder].package
        raise UserError(f"decoder {config.decoder}: {problem}; pip install {package}, or use --decoder auto")
    return config.decoder


def decoder_version(name: str) -> str:
    """The version of the library with this resolved name; '' where nothing is decoded."""
    return importlib.import_module(DECODERS[name].module).__version__ if name else ""


@functools.cache
def import_problem(name: str) -> str | None:
    """Why the library cannot decode a small JPEG in a loader's worker; None where it can."""
    if DECODERS[name].module == NVIMGCODEC_MODULE and (too_old := _too_old_nvimgcodec()):
        return too_old
    jpeg = io.BytesIO()
    Image.new("RGB", (16, 16)).save(jpeg, "JPEG")
    try:
        decoded = DECODERS[name].open()(jpeg.getvalue(), lambda height, width: Crop(0, 0, height, width, 16, 16))
    except Exception as error:  # a library for another glibc, CUDA or Python fails in a way of its own
        return f"it does not load ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    return None if decoded.pixels is not None else "it cannot read a JPEG"


def _too_old_nvimgcodec() -> str | None:
    """Up to 0.8 it calls cudaMallocHost, which fails in a forked worker of a process that uses CUDA."""
    try:
        version = importlib.metadata.version(DECODERS["nvimgcodec"].package)
    except importlib.metadata.PackageNotFoundError:
        return None
    if [int(number) for number in re.findall(r"\d+", version)[:2]] < NVIMGCODEC_VERSION:
        return f"version {version} cannot decode in workers beside CUDA; 0.9 can"
    return None


def open_decoder(name: str) -> Decoder:
    """The library's decoder. Pillow decodes what the library cannot.

    The decoder raises Pillow's error, of any type, for an image that Pillow cannot read either.
    """
    by_pillow = pillow_decoder()
    if name == "pillow":
        return by_pillow
    by_library = DECODERS[name].open()

    def decode(content: bytes, choose: ChooseCrop) -> Decoded:
        try:
            return by_library(content, choose)
        except (NeedsPillow, RuntimeError):  # both libraries raise RuntimeError for what they do not know
            image, crop, _ = by_pillow(content, choose)
            return Decoded(torch.from_numpy(numpy.array(image)), crop, by_pillow=True)

    return decode


def pillow_decoder() -> Decoder:
    def decode(content: bytes, choose: ChooseCrop) -> Decoded:
        with open_image(content) as image:
            crop = choose(image.height, image.width)
            box = crop.left, crop.top, crop.left + crop.width, crop.top + crop.height
            return Decoded(image.convert("RGB").crop(box), crop, by_pillow=False)

    return decode


def nvimgcodec_decoder(on_gpu: bool = False) -> Decoder:
    """on_gpu: it decodes on the current GPU of the calling thread.

    On a GPU the whole image is decoded, as nvJPEG before 13.2 gets the edge of a region wrong. The kernel that resizes
    all other crops, on the host, resizes its crop, too.
    """
    library, params, decoder_of = _nvimgcodec()

    def decode(content: bytes, choose: ChooseCrop) -> Decoded:
        if image_format(content) != "JPEG":
            raise NeedsPillow
        stream = library.CodeStream(content)
        check_decodable(content, stream.height, stream.width)
        if stream.num_channels not in (1, 3) or stream.precision != 8:
            raise NeedsPillow
        crop = choose(stream.height, stream.width)
        bottom, right = crop.top + crop.height, crop.left + crop.width
        if not on_gpu:
            region = library.Region(start=[crop.top, crop.left], end=[bottom, right])
            stream = stream.get_sub_code_stream(region=region)
        device = torch.cuda.current_device() if on_gpu else CPU_DEVICE_ID
        decoder, cuda_stream = decoder_of(os.getpid(), threading.get_ident(), device)
        image = decoder.decode(stream, params=params, cuda_stream=cuda_stream)
        if image is None:
            raise NeedsPillow("it decodes no JPEG")
        pixels = torch.from_numpy(numpy.asarray(image.cpu() if on_gpu else image))  # cpu() waits for the decoder
        if on_gpu:
            pixels = pixels[crop.top : bottom, crop.left : right].contiguous()
        return Decoded(pixels, crop, by_pillow=False)

    return decode


@functools.cache
def _nvimgcodec() -> tuple[ModuleType, Any, Callable[[int, int, int], tuple[Any, int]]]:
    """The library, its parameters, and a function of (process id, thread id, device) that gives a decoder and its CUDA
    stream."""
    with silence_stderr():
        library = importlib.import_module(NVIMGCODEC_MODULE)

    opening = threading.Lock()  # stderr belongs to the process, not to a thread

    @functools.cache  # without a limit: of fewer decoders than threads, most images would find none
    def decoder_of(process_id: int, thread_id: int, device: int) -> tuple[Any, int]:
        kinds = ("CPU_ONLY",) if device == CPU_DEVICE_ID else ("HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU")
        # the default stream would have every decode wait for training, and training for it
        cuda_stream = 0 if device == CPU_DEVICE_ID else torch.cuda.Stream(device).cuda_stream
        with opening, silence_stderr():
            backends = [library.Backend(getattr(library.BackendKind, kind)) for kind in kinds]
            options = "" if device == CPU_DEVICE_ID else ":fancy_upsampling=1"  # of colours, as on the CPU
            decoder = library.Decoder(device_id=device, backends=backends, max_num_cpu_threads=1, options=options)
            return decoder, cuda_stream

    return library, library.DecodeParams(apply_exif_orientation=False), decoder_of


def torchcodec_decoder() -> Decoder:
    decode_jpeg = importlib.import_module("torchcodec.decoders").decode_jpeg

    def decode(content: bytes, choose: ChooseCrop) -> Decoded:
        with open_image(content) as image:  # the header only
            if image.format != "JPEG" or image.mode not in ("L", "RGB") or EXIF_ORIENTATION in image.getexif():
                raise NeedsPillow
            height, width = image.height, image.width
        check_decodable(content, height, width)
        crop = choose(height, width)
        pixels = decode_jpeg(content, mode="RGB").permute(1, 2, 0)
        box = pixels[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
        return Decoded(torch.from_numpy(numpy.ascontiguousarray(box.numpy())), crop, by_pillow=False)

    return decode


@dataclass(frozen=True)
class DecoderLibrary:
    """A library that decodes JPEGs.

    open: makes its Decoder. module: what is imported. package: what pip installs.
    in_auto: whether decoder=auto may choose it.
    """

    open: Callable[[], Decoder]
    module: str
    package: str
    in_auto: bool = True


# By the names that the configuration's field `decoder` takes. The fastest is first.
DECODERS = {
    "nvimgcodec": DecoderLibrary(nvimgcodec_decoder, NVIMGCODEC_MODULE, "nvidia-nvimgcodec-cu13"),
    "torchcodec": DecoderLibrary(torchcodec_decoder, "torchcodec", "torchcodec"),
    "pillow": DecoderLibrary(pillow_decoder, "PIL", "pillow"),
    GPU_DECODER: DecoderLibrary(
        functools.partial(nvimgcodec_decoder, on_gpu=True),
        NVIMGCODEC_MODULE,
        "'nvidia-nvimgcodec-cu13[nvjpeg]'",
        in_auto=False,
    ),
}
AUTO_DECODERS = tuple(name for name, library in DECODERS.items() if library.in_auto)


def check_decodable(content: bytes, height: int, width: int) -> None:
    """Raises NeedsPillow for a truncated file, of which a crop above the cut would look whole, and for a size beyond
    Pillow's limit, such as a damaged header's.

    Raises ValueError for an image without pixels. Some scanners write 0 into a JPEG's header and its height after its
    pixels (DNL); no library here reads that.
    """
    if not height or not width:
        raise ValueError(f"its header says {width} x {height} pixels")
    if not content.endswith(JPEG_END) or height * width > MAX_PIXELS:
        raise NeedsPillow


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """nvimgcodec reports NVIDIA's other libraries as errors where they are missing."""
    sys.stderr.flush()
    saved_stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(null)
