"""JPEG in, the pixels of one box out: by the fastest library that is here, and by Pillow what that cannot read.

A reader takes a file's content and a Choose, and returns (box, view, by_pillow): the box's pixels as uint8 height x
width x 3, or as a Pillow image. Orientation in EXIF is ignored, as torchvision's ImageFolder ignores it.

Only JPEGs and PNGs are read. A file's first bytes say which it is, whatever its name ends in. Of other formats, Pillow
would start Ghostscript for an EPS, and nvimgcodec divides by zeros of a damaged JPEG 2000.
"""

import contextlib
import functools
import importlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator

import numpy
import PIL
import torch
from PIL import Image, UnidentifiedImageError

from benchmarks.common.config.config import Config
from benchmarks.common.data.crops import Choose, View, most_pixels
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.gpus import usable_gpus

DECODERS = ("nvimgcodec", "torchcodec", "pillow")  # the fastest first
ON_GPU = "nvimgcodec-gpu"  # which auto does not take
MODULES = {"nvimgcodec": "nvidia.nvimgcodec", ON_GPU: "nvidia.nvimgcodec", "torchcodec": "torchcodec"}
PACKAGES = {"nvimgcodec": "nvidia-nvimgcodec-cu13", ON_GPU: "'nvidia-nvimgcodec-cu13[nvjpeg]'"}
FIRST_BYTES = {"JPEG": b"\xff\xd8\xff", "PNG": b"\x89PNG\r\n\x1a\n"}
ON_CPU = -99999  # nvimgcodec's NVIMGCODEC_DEVICE_CPU_ONLY
JPEG_END = b"\xff\xd9"

Reader = Callable[[bytes, Choose], tuple[torch.Tensor | Image.Image, View, bool]]


class LeftToPillow(Exception):
    """This library cannot read the image, or might read it otherwise than Pillow."""


def image_format(content: bytes) -> str:
    """ "JPEG" or "PNG", by the first bytes of a file's content. Raises ValueError for all others."""
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


def what_failed(error: Exception) -> str:
    """A line that says why an image is not readable: the error's text, with its type where the text is not enough."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
    return text if text and isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"


def resolved_decoder(config: Config) -> str:
    """What config.decoder came to: the library's name; '' for a loader that decodes nothing.

    Raises UserError for a library that was asked for by name and is not here, or has no GPU.
    """
    if config.loader == "synthetic" or (config.loader == "packed" and config.pack != "jpeg256"):
        return ""
    if config.decoder == "auto":
        return next(name for name in DECODERS if loads(name) is None)
    if config.decoder == ON_GPU and not usable_gpus():
        raise UserError(f"decoder {ON_GPU} needs a GPU, and there is none here; use --decoder auto")
    if problem := loads(config.decoder):
        package = PACKAGES.get(config.decoder, config.decoder)
        raise UserError(f"decoder {config.decoder}: {problem}; pip install {package}, or use --decoder auto")
    return config.decoder


def decoder_version(name: str) -> str:
    """Of the library with a resolved_decoder's name; '' where nothing is decoded."""
    if name == "pillow":
        return PIL.__version__
    return importlib.import_module(MODULES[name]).__version__ if name else ""


@functools.cache
def loads(name: str) -> str | None:
    """None where the library is installed and reads an image, else why not."""
    probe = io.BytesIO()
    Image.new("RGB", (16, 16)).save(probe, "JPEG")
    try:
        box, *_ = READERS[name]()(probe.getvalue(), lambda height, width: View(0, 0, height, width, 16, 16))
    except Exception as error:  # a library for another glibc, CUDA or Python fails in a way of its own
        return f"it does not load ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    return None if box is not None else "it cannot read a JPEG"


def reader(name: str) -> Reader:
    """The library's reader, backed by Pillow. An image that Pillow cannot read either raises Pillow's error, of any
    type."""
    by_pillow = read_by_pillow()
    if name == "pillow":
        return by_pillow
    fast = READERS[name]()

    def read(content: bytes, choose: Choose):
        try:
            return fast(content, choose)
        except (LeftToPillow, RuntimeError):  # both libraries raise RuntimeError for what they do not know
            box, view, _ = by_pillow(content, choose)
            return torch.from_numpy(numpy.array(box)), view, True

    return read


def read_by_pillow() -> Reader:
    def read(content: bytes, choose: Choose):
        with open_image(content) as image:
            view = choose(image.height, image.width)
            box = view.left, view.top, view.left + view.width, view.top + view.height
            return image.convert("RGB").crop(box), view, False

    return read


def read_by_nvimgcodec(on_gpu: bool = False) -> Reader:
    """on_gpu: it decodes on the current GPU of the thread that reads. The crop comes back to the host, to be resized by
    the same kernel as all others."""
    library, params, decoder_of = _nvimgcodec()

    def read(content: bytes, choose: Choose):
        if image_format(content) != "JPEG":
            raise LeftToPillow
        stream = library.CodeStream(content)
        check_plain(content, stream.height, stream.width)
        if stream.num_channels not in (1, 3) or stream.precision != 8:
            raise LeftToPillow
        view = choose(stream.height, stream.width)
        end = [view.top + view.height, view.left + view.width]
        box = stream.get_sub_code_stream(region=library.Region(start=[view.top, view.left], end=end))
        where = torch.cuda.current_device() if on_gpu else ON_CPU
        decoder, stream = decoder_of(os.getpid(), threading.get_ident(), where)
        image = decoder.decode(box, params=params, cuda_stream=stream)
        if image is None:
            raise LeftToPillow("it decodes no JPEG")
        return torch.from_numpy(numpy.asarray(image.cpu() if on_gpu else image)), view, False  # cpu() waits for it

    return read


@functools.cache
def _nvimgcodec():
    """The library, its parameters, and a decoder with its CUDA stream for each process, thread and device: none is
    shared, none outlives a fork."""
    with quiet():
        library = importlib.import_module(MODULES["nvimgcodec"])

    switching = threading.Lock()  # stderr is the whole process's

    @functools.lru_cache(maxsize=64)
    def decoder_of(pid: int, thread: int, device: int):
        kinds = ("CPU_ONLY",) if device == ON_CPU else ("HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU")
        # the default stream would have every decode wait for training, and training for it
        stream = 0 if device == ON_CPU else torch.cuda.Stream(device).cuda_stream
        with switching, quiet():
            backends = [library.Backend(getattr(library.BackendKind, kind)) for kind in kinds]
            options = "" if device == ON_CPU else ":fancy_upsampling=1"  # of colours, as on the CPU
            decoder = library.Decoder(device_id=device, backends=backends, max_num_cpu_threads=1, options=options)
            return decoder, stream

    return library, library.DecodeParams(apply_exif_orientation=False), decoder_of


def read_by_torchcodec() -> Reader:
    decode_jpeg = importlib.import_module("torchcodec.decoders").decode_jpeg

    def read(content: bytes, choose: Choose):
        with open_image(content) as image:  # the header only
            if image.format != "JPEG" or image.mode not in ("L", "RGB") or 274 in image.getexif():
                raise LeftToPillow
            height, width = image.height, image.width
        check_plain(content, height, width)
        view = choose(height, width)
        pixels = decode_jpeg(content, mode="RGB").permute(1, 2, 0)
        box = pixels[view.top : view.top + view.height, view.left : view.left + view.width]
        return torch.from_numpy(numpy.ascontiguousarray(box.numpy())), view, False

    return read


READERS = {
    "nvimgcodec": read_by_nvimgcodec,
    "torchcodec": read_by_torchcodec,
    "pillow": read_by_pillow,
    ON_GPU: functools.partial(read_by_nvimgcodec, on_gpu=True),
}


def check_plain(content: bytes, height: int, width: int) -> None:
    """Leave to Pillow a file that is cut off, which a crop above the cut would not show, and what it calls a bomb.

    Raises ValueError for an image without pixels. Some scanners write 0 into a JPEG's header and its height after its
    pixels (DNL); no library here reads that.
    """
    if not height or not width:
        raise ValueError(f"its header says {width} x {height} pixels")
    if not content.endswith(JPEG_END) or height * width > most_pixels():
        raise LeftToPillow


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing on stderr: nvimgcodec calls it an error that NVIDIA's other libraries, which it can use, are not here."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
