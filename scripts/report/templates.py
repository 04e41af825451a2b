"""Templates of pages: each text of a set that stands in one is escaped, since a set may come from somebody else."""

import re
from pathlib import Path

import jinja2
from markupsafe import Markup

from scripts.results.formatting import printable

FOLDER = Path(__file__).parent / "pages"


def render(name: str, **values: object) -> str:
    """report.html or report.md. Every value is escaped, unless it is Markup."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=escape_markdown if name.endswith(".md") else None,
    )
    pages.filters["code"] = lambda text: Markup(printable(text))
    return pages.get_template(f"{name}.j2").render(values)


def escape_markdown(value: object) -> Markup:
    """Text that means itself in Markdown, in a table, too."""
    if isinstance(value, Markup):
        return value
    text = re.sub(r"&(?=#?\w+;)", "&amp;", printable(str(value)).replace("\\", "\\\\"))
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"[`*|~]|^#|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", text)
    text = re.sub(r"\](?=[(\[])", r"\\]", text)  # [text](address) would be a link
    return Markup(re.sub(r"^\[(?=[^\]]*\]:)", r"\\[", text.strip()))  # [text]: address would define one
