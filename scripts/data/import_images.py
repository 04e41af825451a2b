"""Bring ImageNet, as it is had from hubs and from image-net.org, into folders.

    ./bench data import FROM TO

FROM: a folder with Parquet files, WebDataset's tars, ILSVRC2012's tars and devkit, or a flat val folder. TO gets
train/<class>/ and val/<class>/.
"""

from benchmarks.common.errors import UserError
from benchmarks.common.listing import fingerprint
from scripts.data.check import check_image_folder
from scripts.data.find_source import find_source
from scripts.data.options import ImportOptions
from scripts.data.write_shards import disk_errors, write_source


def main(options: ImportOptions) -> int:
    with disk_errors(options.source, options.to, "mend it, and start again"):
        num_images = write_source(find_source(options.source, options.classes), options.to)
    for split, number in num_images.items():
        print(f"{options.to / split}: {number:,} images")
    try:
        print(check_image_folder(options.to))
        print(f"fingerprint {fingerprint(options.to)}")
    except UserError as error:
        print(f"not complete yet: {error}")
    return 0
