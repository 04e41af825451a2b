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

SPLITS = {"train": "train", "val": "validation"}
HUB_IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
CLASSES = ("n01440764", "n01443537", "n02012849", "n03126707")


def jpeg(number: int) -> bytes:
    """The first and last bytes of a JPEG, and what nobody decodes between them."""
    return b"\xff\xd8\xff" + numpy.random.default_rng(number).bytes(300 + number) + b"\xff\xd9"


def write_images(folder: Path) -> Path:
    """12 images of 4 classes in train, and 12 in val, with ImageNet's names."""
    for number in range(12):
        name = CLASSES[number % 4]
        for place, file in enumerate((f"train/{name}/{name}_{number}.JPEG", f"val/{name}/{val_name(number + 1)}")):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(jpeg(2 * number + place))
    return folder


def val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08}.JPEG"


def images_of(data: Path, part: str) -> list[Path]:
    """Shuffled by a fixed seed, as in published shards."""
    paths = sorted((data / part).glob("*/*"))
    return [paths[place] for place in numpy.random.default_rng(0).permutation(len(paths))]


def shards_of(data: Path, part: str) -> list[list[Path]]:
    """The images in three shards."""
    paths = images_of(data, part)
    return [paths[place::3] for place in range(3)]


def classes_of(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "train").iterdir())


def write_parquet(folder: Path, data: Path) -> Path:
    """As `datasets` writes it: data/train-00000-of-00003.parquet. A name of the hub has the class once more."""
    classes = classes_of(data)
    (folder / "data").mkdir(parents=True)
    for part, split in SPLITS.items():
        for number, paths in enumerate(shards_of(data, part)):
            rows = []
            for path in paths:
                is_wnid = WNID.fullmatch(path.parent.name)
                name = f"{path.stem}_{path.parent.name}{path.suffix}" if is_wnid else path.name
                rows.append((name, path.read_bytes(), classes.index(path.parent.name)))
            write_table(folder / "data" / f"{split}-{number:05}-of-00003.parquet", rows, classes)
    return folder


def write_table(path: Path, rows: list[tuple[str, bytes, int]], classes: list[str]) -> None:
    """rows: an image's path, its bytes and its label."""
    features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([("image", HUB_IMAGE), ("label", pyarrow.int64())], metadata=metadata)
    images = pyarrow.array([{"bytes": content, "path": name} for name, content, _ in rows], HUB_IMAGE)
    table = pyarrow.table({"image": images, "label": [label for *_, label in rows]}, schema)
    pyarrow.parquet.write_table(table, path)


def tar_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, inner in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(inner)
            archive.addfile(member, io.BytesIO(inner))
    return content.getvalue()


def write_webdataset(folder: Path, data: Path) -> Path:
    """In the documented layout: imagenet1k-train-0000.tar with neighbours name.jpg, name.cls and name.json."""
    folder.mkdir(parents=True)
    classes = classes_of(data)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in classes))
    for part, split in SPLITS.items():
        for number, paths in enumerate(shards_of(data, part)):
            files = {}
            for path in paths:
                label = str(classes.index(path.parent.name)).encode()
                files |= {f"{path.stem}.cls": label, f"{path.stem}.jpg": path.read_bytes(), f"{path.stem}.json": b"{}"}
            (folder / f"imagenet1k-{split}-{number:04}.tar").write_bytes(tar_of(files))
    return folder


def write_devkit(folder: Path, data: Path) -> None:
    """ILSVRC's numbers are in an order of their own, and a synset with children is no class."""
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
    inside = "ILSVRC2012_devkit_t12/data"
    files = {f"{inside}/{META}": meta.getvalue(), f"{inside}/{GROUND_TRUTH}": truth.encode()}
    with tarfile.open(fileobj=io.BytesIO(tar_of(files))) as plain, tarfile.open(folder / DEVKIT_ARCHIVE, "w:gz") as out:
        for member in plain:
            out.addfile(member, plain.extractfile(member))


def write_ilsvrc(folder: Path, data: Path) -> Path:
    """image-net.org's three files."""
    folder.mkdir(parents=True)
    of_class = {
        f"{name}.tar": tar_of({path.name: path.read_bytes() for path in sorted((data / "train" / name).iterdir())})
        for name in classes_of(data)
    }
    (folder / TRAIN_TAR).write_bytes(tar_of(of_class))
    (folder / VAL_TAR).write_bytes(tar_of({path.name: path.read_bytes() for path in images_of(data, "val")}))
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
