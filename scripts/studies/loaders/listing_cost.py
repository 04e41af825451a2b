"""What a rank, and the plan of a suite, pay to know the images at ImageNet's size: by ImageFolder, and by the index.

    python -m scripts.studies.loaders.listing_cost         # on 1.3 million hard links, made in a temporary folder
    python -m scripts.studies.loaders.listing_cost --data /data/imagenet

Seconds, and 10^6 bytes of memory that are the process's own (not shared pages of a mapped file); then how much of its
own a forked loader worker comes to hold after it has looked up every image once, as in an epoch.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tyro
from tqdm import tqdm

from benchmarks.common.system.errors import UserError

NUM_CLASSES, NUM_FILES, MOST_LINKS = 1000, 400, 60_000  # ext4 allows a file 65,000 names
WAYS = [  # what, how, in which cache; a plan checks the folder and takes its fingerprint
    ("ImageFolder", "imagefolder", "of ranks"),
    ("index, first time", "index", "of ranks"),
    ("index, afterwards", "index", "of ranks"),
    ("plan, first time", "plan", "of plans"),
    ("plan, afterwards", "plan", "of plans"),
]
MEASURE = """
import json, os, sys, time
from pathlib import Path
way, root = sys.argv[1], Path(sys.argv[2])
if way == "index":
    from benchmarks.common.data.listing import list_images
elif way == "plan":
    from benchmarks.common.data.fingerprint import cached_fingerprint
    from scripts.setup.check_data import check_image_folder
else:
    from torchvision.datasets import ImageFolder

def known(part):
    return list_images(root / part) if way == "index" else ImageFolder(str(root / part))

def own_mb():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) / 1e3 * 1.024

before, began = own_mb(), time.perf_counter()
if way == "plan":
    counts, parts = check_image_folder(root), []
    cached_fingerprint(root)
else:
    parts = [known(part) for part in ("train", "val")]
seconds, own = time.perf_counter() - began, own_mb() - before
read, write = os.pipe()
if not os.fork():  # a loader worker: it shares every page until it writes to one, and counting references writes
    def private_mb():
        with open("/proc/self/smaps_rollup") as file:
            lines = [line for line in file if line.startswith("Private_Dirty:")]
        return sum(int(line.split()[1]) for line in lines) / 1e3 * 1.024
    before = private_mb()
    for part in parts:
        for index in range(len(part)):
            path = part.path(index) if way == "index" else part.samples[index][0]
    os.write(write, str(private_mb() - before).encode())
    os._exit(0)
os.wait()
grown = float(os.read(read, 100))
images = sum(map(len, parts)) or counts.num_train_images + counts.num_val_images
print(json.dumps({"images": images, "seconds": seconds, "own_mb": own, "worker_growth_mb": grown}))
"""


@dataclasses.dataclass(frozen=True)
class Options:
    data: str = ""
    """Folder with train/ and val/; empty: hard links in a temporary folder, as many as ImageNet has images."""


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(options.data) if options.data else Path(temporary) / "links"
        if not options.data:
            make_links(root)
        print(f"{'':<20}{'images':>10}{'seconds':>10}{'own MB':>10}{'a worker, MB':>14}")
        for what, way, cache in WAYS:
            os.environ["XDG_CACHE_HOME"] = str(Path(temporary) / cache)
            row = measured(root, way)
            worker = "" if way == "plan" else f"{row['worker_growth_mb']:14.1f}"
            print(f"{what:<20}{row['images']:>10}{row['seconds']:10.3f}{row['own_mb']:10.1f}{worker}", flush=True)


def measured(root: Path, way: str = "index") -> dict:
    """images, seconds, own_mb and worker_growth_mb of a fresh process. Raises UserError where it fails."""
    done = subprocess.run([sys.executable, "-c", MEASURE, way, str(root)], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"listing {root} failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return json.loads(done.stdout)


def make_links(root: Path, num_train: int = 1_281_167, num_val: int = 50_000) -> None:
    """train/ and val/ of NUM_CLASSES classes, with that many links to a few small files beside them."""
    files = root / "files"
    files.mkdir(parents=True)
    targets = [files / f"{number}.JPEG" for number in range(NUM_FILES)]
    for target in targets:
        target.write_bytes(b"\xff\xd8\xff\xd9")
    total = num_train + num_val
    assert total <= NUM_FILES * MOST_LINKS
    with tqdm(total=total, desc="linking", unit="file", disable=None, leave=False) as bar:
        for part, num_images in (("train", num_train), ("val", num_val)):
            for number in range(NUM_CLASSES):
                folder = root / part / f"n{number:08d}"
                folder.mkdir(parents=True)
                for image in range(number, num_images, NUM_CLASSES):
                    os.link(targets[image % NUM_FILES], folder / f"{folder.name}_{image}.JPEG")
                    bar.update()


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
