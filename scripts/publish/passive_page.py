"""Whether a report runs and loads nothing in a browser, as those that ./bench report writes. Needs no torch.

    what = find_active(Path("results/published/x/report.html"))

The whole text is searched, not only what a parser takes for a tag: browsers do not agree with parsers. What loads
something from a style or a link is looked for in the text as it stands, and with the character references of HTML and
the escapes of CSS replaced. Of styles, only the functions and the at-rules of the report's template are allowed.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.system.files import read_set_file
from scripts.stats.formatting import CONTROL, printable

LARGEST_BYTES = 1 << 24
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
    r"\bon[a-z]{3,}\s*=|\b(?:href|srcset|background|ping|manifest|base)\s*=\s*(?![\"']?#)|src\s*=|http-equiv"
    r"|charset\s*=\s*(?!\"utf-8\")",
    re.IGNORECASE,
)
LOADS = re.compile(r"javascript:|@import|url\((?![\"']?#)|image-set\(|\bsrc\(|cross-fade\(", re.IGNORECASE)
# Level 3 of CSS Syntax, 4.3.7: up to six hexadecimal digits and one white space, a line's end, or the character itself.
CSS_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})(?:\r\n|[ \t\r\n\f])?|(\r\n|[\r\n\f])|(.))", re.DOTALL)
# Two patterns: of one, a text style=" before a style sheet would take the sheet's beginning as an attribute.
STYLE_SHEET = re.compile(r"<style[^<>]*>(.*?)(?=</style|\Z)", re.IGNORECASE | re.DOTALL)
BROKEN_STYLE = re.compile(r"<style(?![^<>]*>)", re.IGNORECASE)  # STYLE_SHEET would not see it
STYLE_ATTRIBUTE = re.compile(r"\bstyle\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s>]*)", re.IGNORECASE | re.DOTALL)
STYLE_FUNCTIONS = frozenset(
    (
        "calc clamp hsl hsla matrix max min minmax not nth-child repeat rgb rgba rotate selector translate url var"
    ).split()
)
AT_RULES = frozenset(("media", "page", "supports"))
STRANGE = re.compile(r"\\|@([\w-]*)|([\w-]+)\(")


def find_active(page: Path) -> str:
    """The first thing in the HTML file that could run or load something, as printable text; '' where there is none."""
    try:
        text = read_set_file(page, LARGEST_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    except OSError as error:
        return f"what cannot be read ({error.strerror})"
    return printable(next(_strange_things(text), ""))[:40]


def _strange_things(text: str) -> Iterator[str]:
    """What no report of this suite has, in the text of a page."""
    yield from (f"a control character, {found[0]!a}" for found in CONTROL.finditer(text))
    yield from (tag[0] for tag in TAG.finditer(text) if tag[1].lower() not in TAGS)
    yield from (found[0] for found in ACTIVE.finditer(text))
    referenced = html.unescape(text)
    for each in (text, referenced, CSS_ESCAPE.sub(_character, text), CSS_ESCAPE.sub(_character, referenced)):
        yield from (found[0] for found in LOADS.finditer(each))
    for each in (text, referenced):
        yield from (found[0] for found in BROKEN_STYLE.finditer(each))
        for style in (*STYLE_SHEET.finditer(each), *STYLE_ATTRIBUTE.finditer(each)):
            for found in STRANGE.finditer(style[1]):
                rule, function = (found[1] or "").lower(), (found[2] or "").lower()
                if rule not in AT_RULES and function not in STYLE_FUNCTIONS:
                    yield found[0]


def _character(escape: re.Match[str]) -> str:
    """What an escape of CSS stands for."""
    if escape[1]:
        number = int(escape[1], 16)
        return chr(number) if 0 < number <= 0x10FFFF else "\ufffd"
    return escape[3] or ""
