"""Whether the images are still those of the plan, by whose name the row of a run is kept.

    images_have_changed(requested)

A suite of hours takes that name once. Called after a run has ended, so that nothing timed waits for it. Needs no torch.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.common.data.contents import cached_contents
from benchmarks.common.data.listing import cache_path
from benchmarks.common.system.repository import ROOT

IMAGES_CHANGED = "the images have changed since the suite began; start a new set"
IMAGES_UNKNOWN = "the suite was killed while it looked whether the images have changed; run it again"


def can_compare_images(requested: Mapping[str, Any]) -> bool:
    """Whether it can be told if the images have changed.

    The cache has the times of the hashed files, 20,000 at most: only where one differs are images read again. Without
    it, as for images that were just written, nothing is known. So it is of packed and of synthetic images, and on other
    nodes, whose folders the plan has not seen.
    """
    planned, data = requested.get("contents"), ROOT / str(requested.get("data", ""))  # as ranks see it
    if not planned or requested.get("loader") != "folder" or requested.get("nodes") != 1:
        return False
    return cache_path(data, "contents").exists()


def images_have_changed(requested: Mapping[str, Any]) -> bool:
    """Whether the folder of images has other contents than the requested settings say, or cannot be read any more.
    False where can_compare_images is.

    Any error is a change, one of Python such as RecursionError, too: the images could be read when the plan was made.
    An error that went on would take the row of a finished run with it, and the data set's owner could choose it.
    """
    if not can_compare_images(requested):
        return False
    try:
        return cached_contents(ROOT / str(requested.get("data", ""))) != requested["contents"]
    except Exception:
        return True
