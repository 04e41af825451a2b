"""Whether a report runs and loads nothing in a browser, as those that ./bench report writes. Needs no torch.

    what = find_active(Path("results/published/x/report.html"))

The whole text is searched, not only what a parser takes for a tag: browsers do not agree with parsers.
"""

import re
from pathlib import Path

from benchmarks.common.system.files import read_regular_file
from scripts.stats.formatting import printable

LARGEST_BYTES = 1 << 26
# Of the report's template, of Matplotlib's SVG, and plain ones that a later report may have.
TAGS = frozenset(
    (
        "a b body br caption circle clippath code col colgroup dd defs details div dl doctype dt ellipse em figcaption "
        "figure g h1 h2 h3 h4 head hr html i li line lineargradient main meta ol p path pattern polygon polyline pre "
        "rect section small span stop strong style sub summary sup svg table tbody td text tfoot th thead title tr "
        "tspan ul use wbr"
    ).split()
)
TAG = re.compile(r"<[/!?]?([A-Za-z][\w:-]*|.|$)", re.DOTALL)
ACTIVE = re.compile(
    r"\bon[a-z]{3,}\s*=|\b(?:href|src|srcset|background)\s*=\s*(?![\"']?#)|http-equiv|javascript:|@import|url\((?![\"']?#)"
    r"|charset\s*=\s*(?!\"utf-8\")",
    re.IGNORECASE,
)


def find_active(page: Path) -> str:
    """The first thing in the HTML file that could run or load something, as printable text; '' where there is none."""
    try:
        text = read_regular_file(page, LARGEST_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    except OSError as error:
        return f"what cannot be read ({error.strerror})"
    foreign = (tag[0] for tag in TAG.finditer(text) if tag[1].lower() not in TAGS)
    active = (found[0] for found in ACTIVE.finditer(text))
    return printable(next(foreign, "") or next(active, ""))[:40]
