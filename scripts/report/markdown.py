"""Text that means itself in Markdown."""

import re

from scripts.results.formatting import printable


def escape_markdown(value: object) -> str:
    """Text that means itself in Markdown, in a table too, and is still readable as it is."""
    text = printable(str(value)).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"[`*|~]|^#|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", text)
    text = re.sub(r"\](?=[(\[])", r"\\]", text)  # [text](address) would be a link
    return re.sub(r"^\[(?=[^\]]*\]:)", r"\\[", text.strip())  # [text]: address would define one
