"""A folder of images, written as each source of an import, by the formats' own libraries."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import scipy.io

from scripts.data.entries import WNID
from scripts.data.find_source import TRAIN_TAR, VAL_TAR
from scripts.data.labels import DEVKIT_ARCHIVE, GROUND_TRUTH, META

NUM_TOGETHER = 40  # images of a shard: small sets have several shards
SPLITS = {"train": "train", "val": "validation"}
HUB_IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


CLASSES = ("n01440764", "n01443537", "n02012849", "n03126707")


def jpeg(rng: numpy.random.Generator) -> bytes:
    """The first and last bytes of a JPEG, and what nobody decodes between them."""
    return b"\xff\xd8\xff" + rng.bytes(int(rng.integers(20, 900))) + b"\xff\xd9"


def write_images(folder: Path, seed: int = 0, num_classes: int = 4, num_images: int = 12) -> Path:
    """A data set with WordNet ids for classes and ImageNet's names; train and val have as many images."""
    rng = numpy.random.default_rng(seed)
    for number in range(num_images):
        name = CLASSES[number % num_classes]
        for file in (f"train/{name}/{name}_{number}.JPEG", f"val/{name}/ILSVRC2012_val_{number + 1:08}.JPEG"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(jpeg(rng))
    return folder


def numbered(folder: Path, data: Path) -> Path:
    """A copy whose images of val/ have the names of ImageNet's, which a devkit needs."""
    shutil.copytree(data, folder)
    for number, path in enumerate(sorted((folder / "val").glob("*/*"), key=lambda path: path.name), 1):
        path.rename(path.with_name(f"ILSVRC2012_val_{number:08}.JPEG"))
    return folder


def hub_name(path: Path) -> str:
    """The name in the hub's ImageNet, where the class's name is a wnid: with the class once more."""
    return f"{path.stem}_{path.parent.name}{path.suffix}" if WNID.fullmatch(path.parent.name) else path.name


def images_of(data: Path, part: str) -> list[Path]:
    """Shuffled by a fixed seed, as in published shards."""
    paths = sorted((data / part).glob("*/*"))
    return [paths[place] for place in numpy.random.default_rng(0).permutation(len(paths))]


def classes_of(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "train").iterdir())


def write_parquet(folder: Path, data: Path) -> Path:
    """As `datasets` writes it: data/train-00000-of-00002.parquet."""
    classes = classes_of(data)
    features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([("image", HUB_IMAGE), ("label", pyarrow.int64())], metadata=metadata)
    (folder / "data").mkdir(parents=True)
    for part, split in SPLITS.items():
        paths = images_of(data, part)
        for number, start in enumerate(range(0, len(paths), NUM_TOGETHER)):
            some = paths[start : start + NUM_TOGETHER]
            images = [{"bytes": path.read_bytes(), "path": hub_name(path)} for path in some]
            labels = [classes.index(path.parent.name) for path in some]
            table = pyarrow.table({"image": pyarrow.array(images, HUB_IMAGE), "label": labels}, schema)
            file = folder / "data" / f"{split}-{number:05}-of-{-(-len(paths) // NUM_TOGETHER):05}.parquet"
            pyarrow.parquet.write_table(table, file, row_group_size=10)
    return folder


def add(archive: tarfile.TarFile, name: str, content: bytes, **fields) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(content))


def write_webdataset(folder: Path, data: Path) -> Path:
    """In the documented layout: imagenet1k-train-0000.tar with neighbours name.jpg, name.cls and name.json."""
    folder.mkdir(parents=True)
    classes = classes_of(data)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in classes))
    for part, split in SPLITS.items():
        paths = images_of(data, part)
        for number, start in enumerate(range(0, len(paths), NUM_TOGETHER)):
            with tarfile.open(folder / f"imagenet1k-{split}-{number:04}.tar", "w") as archive:
                for path in paths[start : start + NUM_TOGETHER]:
                    add(archive, f"{path.stem}.cls", str(classes.index(path.parent.name)).encode())
                    add(archive, f"{path.stem}.jpg", path.read_bytes())
                    add(archive, f"{path.stem}.json", b"{}")
    return folder


def tar_of(paths: list[Path]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in paths:
            add(archive, path.name, path.read_bytes())
    return content.getvalue()


def devkit_files(data: Path) -> dict[str, bytes]:
    """The devkit's tables. ILSVRC's numbers are in an order of their own, and a synset with children is no class."""
    classes = classes_of(data)
    fields = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images".split()
    rows = [(number, name, f"{name}, words", "", 0, [], 0, 9) for number, name in enumerate(reversed(classes), 1)]
    rows.append((len(rows) + 1, "n00000000", "all", "", 2, [1, 2], 1, 0))
    synsets = numpy.zeros((len(rows), 1), [(field, "O") for field in fields])
    for place, row in enumerate(rows):
        synsets[place, 0] = row
    meta = io.BytesIO()
    scipy.io.savemat(meta, {"synsets": synsets})
    number_of = {row[1]: row[0] for row in rows}
    in_order = sorted(images_of(data, "val"), key=lambda path: path.name)
    truth = "".join(f"{number_of[path.parent.name]}\n" for path in in_order)
    return {META: meta.getvalue(), GROUND_TRUTH: truth.encode()}


def write_devkit(folder: Path, data: Path) -> None:
    with tarfile.open(folder / DEVKIT_ARCHIVE, "w:gz") as archive:
        for name, content in devkit_files(data).items():
            add(archive, f"ILSVRC2012_devkit_t12/data/{name}", content)


def write_ilsvrc(folder: Path, data: Path) -> Path:
    """image-net.org's three files."""
    folder.mkdir(parents=True)
    with tarfile.open(folder / TRAIN_TAR, "w") as archive:
        for name in classes_of(data):
            add(archive, f"{name}.tar", tar_of(sorted((data / "train" / name).iterdir())))
    (folder / VAL_TAR).write_bytes(tar_of(images_of(data, "val")))
    write_devkit(folder, data)
    return folder


def write_flat(folder: Path, data: Path, table: str = "val_annotations.txt") -> Path:
    """train/ as it is, and the images of val/ in one folder. table: what says their classes."""
    (folder / "val").mkdir(parents=True)
    shutil.copytree(data / "train", folder / "train")
    lines = []
    for path in images_of(data, "val"):
        (folder / "val" / path.name).write_bytes(path.read_bytes())
        lines.append((path, path.parent.name))
    if table == "devkit":
        write_devkit(folder, data)
    elif table.endswith(".csv"):
        text = "ImageId,PredictionString\n" + "".join(f"{path.stem},{name} 0 0 9 9\n" for path, name in lines)
        (folder / table).write_text(text)
    else:
        (folder / "val" / table).write_text("".join(f"{path.name}\t{name}\t0\t0\t9\t9\n" for path, name in lines))
    return folder


WRITERS = {
    "Parquet": write_parquet,
    "WebDataset": write_webdataset,
    "ILSVRC2012's tars": write_ilsvrc,
    "folder with a flat val": write_flat,
}
