"""Random small sources of each kind, with one entry damaged, renamed, doubled or removed: an import that ends well has
every image of the source under its class, and one that does not names the entry.

.venv/bin/python -m pytest tests/data/test_generated.py     # slow: 300 sources of each kind
"""

import collections
import hashlib
import io
import random
import shutil
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from data.sources import HUB_IMAGE, WRITERS, add, write_images

from benchmarks.common.errors import UserError
from scripts.data import check, import_images
from scripts.data.find_source import TRAIN_TAR
from scripts.options.data_options import ImportOptions

NUM_SOURCES = 300
FIRST = b"\xff\xd8\xff"
Entry = tuple[str, bytes]  # name and content
Images = collections.Counter  # of (split, class, hash)
pytestmark = pytest.mark.usefixtures("own_cache")


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def images_in(data: Path) -> Images:
    files = [*data.glob("train/*/*"), *data.glob("val/*/*")]
    return Images((path.parts[-3], path.parts[-2], hash_of(path.read_bytes())) for path in files)


def change(entries: list[Entry], chance: random.Random) -> tuple[list[Entry], list[str]]:
    """The entries with one of them changed, and the names that a refusal may give."""
    place = chance.randrange(len(entries))
    name, content = entries[place]
    stem, _, ending = name.rpartition(".")
    stem = stem or name
    new = chance.choice([f"{stem} (1).{ending}", f"x_v1.0.{ending}", f"{stem}.gif", stem, f"{name}.part", "0099.JPEG"])
    half = content[: len(content) // 2]
    damaged = chance.choice([b"", b"garbage", half.ljust(len(content) + 20, b"\0")])
    changed = {
        "damaged": [(name, damaged)],
        "renamed": [(new, content)],
        "doubled": [(name, content), (chance.choice([name, new]), content)],
        "removed": [],
    }[chance.choice(["damaged", "renamed", "doubled", "removed"])]
    return entries[:place] + changed + entries[place + 1 :], [name, stem, new]


def read_tar(content: bytes) -> list[Entry]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return [(member.name, archive.extractfile(member).read()) for member in archive]


def tar_content(entries: list[Entry]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, inner in entries:
            add(archive, name, inner)
    return content.getvalue()


def change_tar(path: Path, chance: random.Random) -> list[str]:
    entries = read_tar(path.read_bytes())
    if path.name == TRAIN_TAR:
        place = chance.randrange(len(entries))
        if chance.random() < 0.2:
            path.write_bytes(tar_content(entries[:place] + entries[place + 1 :]))
            return [entries[place][0].removesuffix(".tar")]
        inner, names = change(read_tar(entries[place][1]), chance)
        path.write_bytes(
            tar_content([*entries[:place], (entries[place][0], tar_content(inner)), *entries[place + 1 :]])
        )
        return [*names, entries[place][0]]
    entries, names = change(entries, chance)
    path.write_bytes(tar_content(entries))
    return [*names, path.name]


def change_parquet(path: Path, chance: random.Random) -> list[str]:
    table = pyarrow.parquet.read_table(path)
    rows = table.to_pylist()
    entries = [(row["image"]["path"], row["image"]["bytes"]) for row in rows]
    changed, names = change(entries, chance)
    label_of = {row["image"]["path"]: row["label"] for row in rows}
    renamed = [label_of[name] for name, _ in entries if name not in dict(changed)]
    images = [{"bytes": content, "path": name} for name, content in changed]
    labels = [label_of.get(name, renamed[0] if renamed else label_of[names[0]]) for name, _ in changed]
    if chance.random() < 0.1 and labels:
        labels[0] = (labels[0] + 1) % 2
        names += [f"{images[0]['path']}"]
    table = pyarrow.table({"image": pyarrow.array(images, HUB_IMAGE), "label": labels}, table.schema)
    pyarrow.parquet.write_table(table, path)
    return [*names, path.name]


def change_folder(folder: Path, chance: random.Random) -> list[str]:
    """One of the images of a class or of val/, or a line of the table."""
    of_class = chance.choice([*(folder / "train").iterdir(), folder / "val", folder / "val"])
    table = folder / "val" / "val_annotations.txt"
    if chance.random() < 0.2:
        lines = table.read_text().splitlines()
        line = chance.choice(lines)
        name, label = line.split("\t")[:2]
        lines.remove(line)
        lines += chance.choice([[], [line, line], [line, line.replace(label, "n00000001")], [f"x{line}"]])
        table.write_text("\n".join(lines))
        return [name]
    entries = [(path.name, path.read_bytes()) for path in sorted(of_class.iterdir()) if path != table]
    entries, names = change(entries, chance)
    for path in [*of_class.iterdir()]:
        if path != table:
            path.unlink()
    for name, content in entries:
        (of_class / name).write_bytes(content)
    return [*names, of_class.name]


def change_files(folder: Path, chance: random.Random) -> list[str]:
    """A whole shard."""
    path = chance.choice(sorted([*folder.rglob("*.tar"), *folder.rglob("*.parquet")]))
    changed, names = change([(path.name, path.read_bytes())], chance)
    path.unlink()
    for new, inner in changed:
        path.with_name(new).write_bytes(inner)
    return names


def change_source(kind: str, folder: Path, chance: random.Random) -> list[str]:
    if kind == "folder with a flat val":
        return change_folder(folder, chance)
    if chance.random() < 0.2:
        return change_files(folder, chance)
    if kind == "Parquet":
        return change_parquet(chance.choice(sorted(folder.rglob("*.parquet"))), chance)
    return change_tar(chance.choice(sorted(folder.rglob("*.tar"))), chance)


def contents_of(folder: Path) -> Images:
    """The hashes of all images of a source, however they are packed."""
    found: Images = Images()

    def look(name: str, content: bytes) -> None:
        if content.startswith(FIRST):
            found[hash_of(content)] += 1
        elif content.startswith(b"PAR1") and content.endswith(b"PAR1"):
            for row in pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist():
                look(row["image"]["path"], row["image"]["bytes"])
        elif content[257:262] == b"ustar":
            for inner, inner_content in read_tar(content):
                look(inner, inner_content)

    for path in folder.rglob("*"):
        if path.is_file():
            look(path.name, path.read_bytes())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_an_import_has_every_image_under_its_class_or_names_what_is_wrong(kind, tmp_path, monkeypatch, capsys):
    chance, num_refused = random.Random(kind), 0
    monkeypatch.setattr("data.sources.NUM_TOGETHER", 3)
    for seed in range(NUM_SOURCES):
        folder = tmp_path / str(seed)
        num_classes = chance.randint(2, 4)
        data = write_images(folder / "data", seed, num_classes, chance.randint(num_classes, 9))
        expected = images_in(data)
        source, target = WRITERS[kind](folder / "from", data), folder / "to"
        names = change_source(kind, source, chance)
        place_of = {image[2]: image[:2] for image in expected}
        try:
            import_images.main(ImportOptions(source, target))
        except UserError as error:
            num_refused += 1
            numbers = [
                str(int(name[-13:-5])) for name in names if name.startswith("ILSVRC2012_val_") and len(name) == 28
            ]
            left = contents_of(source)
            wanted = {*names, *numbers} | {place_of[one][1] for one in place_of if one not in left}  # or its class
            assert any(name and name in str(error) for name in wanted), (seed, names, str(error))
            assert not {"train", "val"} & {path.name for path in target.glob("*")}, seed
        else:
            there = images_in(target)
            assert there == Images({(*place_of[one], one): n for one, n in contents_of(source).items()}), (seed, names)
            if len([*target.iterdir()]) == 2:
                counts = check.check_image_folder(target)
                assert counts.num_train_images + counts.num_val_images == there.total()
        shutil.rmtree(folder)
    capsys.readouterr()
    assert NUM_SOURCES / 4 < num_refused < NUM_SOURCES
