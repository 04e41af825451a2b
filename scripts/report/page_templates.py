"""The templates of pages. Each text of a set that stands in a page is escaped: a set may come from somebody else."""

from pathlib import Path

import jinja2

from scripts.report.latex import escape_tex
from scripts.report.markdown import escape_markdown

TEMPLATES = Path(__file__).parent / "templates"


def html_template(path: Path) -> jinja2.Template:
    """A template that escapes every value."""
    loader = jinja2.FileSystemLoader(path.parent)
    html = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return html.get_template(path.name)


def markdown_template(path: Path) -> jinja2.Template:
    """A template that escapes what it gives to the filter md."""
    loader = jinja2.FileSystemLoader(path.parent)
    markdown = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    markdown.filters["md"] = escape_markdown
    return markdown.get_template(path.name)


def tex_template(path: Path) -> jinja2.Template:
    """A template with <% %> and << >>, which escapes every value, unless it is a Tex."""
    tex = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        finalize=escape_tex,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return tex.get_template(path.name)
