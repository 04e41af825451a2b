"""What images runs trained on, in words, from the fingerprint of the data: no name of a folder is believed.

    from scripts.sets.dataset_text import describe_images

Needs no torch.
"""

import re
from collections.abc import Iterable

from scripts.sets.result_set import RunGroup
from scripts.stats.formatting import format_setting

COUNTS = re.compile(
    r"(\d+)-(\d+)-(\d+)-"
)  # benchmarks.common.data.fingerprint: classes, training and validation images
UNKNOWN = "unrecorded images"


def describe_images(groups: Iterable[RunGroup]) -> str:
    """Such as "12 classes, 480 training and 132 validation images"; several kinds are joined by "or"."""
    return " or ".join(dict.fromkeys(_of(group) for group in groups)) or UNKNOWN


def _of(group: RunGroup) -> str:
    """Sets that an older suite made tell no fingerprint, but whether the images were synthetic."""
    if {format_setting(loader) for loader in group.ok.loader} == {"synthetic"}:
        return "synthetic images"
    found = COUNTS.match(str(group.identity.requested.get("fingerprint") or ""))
    if not found:
        return UNKNOWN
    classes, train, val = (f"{int(number):,}" for number in found.groups())
    return f"{classes} classes, {train} training and {val} validation images"
