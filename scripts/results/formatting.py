"""Numbers, settings and tables as text, in one format everywhere."""

import json
import re
from collections.abc import Callable, Collection, Sequence

from benchmarks.common.errors import UserError


def plural(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plural_of_several(numbers: Collection[int], noun: str) -> str:
    """1 run where all have one; 2/3 runs where some have two and some three."""
    *fewer, most = sorted(set(numbers))
    return "".join(f"{number}/" for number in fewer) + plural(most, noun)


def device_count(number: float, device: str) -> str:
    """2 GPUs, or 2 ranks on a CPU, where a rank stands for a device. number: `world_size` of runs.csv, which counts
    devices: a rank of hybrid_parallel has two GPUs. device: `device` of runs.csv."""
    return plural(int(number), {"cuda": "GPU", "cpu": "rank"}.get(device, "device"))


def format_number(value: float) -> str:
    """At least three significant digits, and no more decimals than a reader can use."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """40 s, 12 minutes, or 2.5 hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 90 * 60 else f"{seconds / 3600:.1f} hours"


def format_setting(value: object) -> str:
    """A setting for a label: 64 for 64.0, yes for True, `unknown` for an empty cell."""
    if value is None or value == "" or value != value:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# A terminal obeys escape codes, and shows text in another order after the characters for right-to-left text. A browser
# may take text with escape characters for ISO-2022-JP, in which they vanish: o<ESC>(Bnload is onload.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def printable_lines(text: str) -> str:
    """The text of a whole page or file, with ? for each of CONTROL. A set may come from somebody else, and its names
    may stand in any line: whatever a command makes of a set goes through here once, at the end."""
    return CONTROL.sub("?", text)


def printable(text: str) -> str:
    """Without control characters, which could steer a terminal and which an SVG may not hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def format_interval(low: float | None, high: float | None, style: Callable[[float], str]) -> str:
    """[low, high], or nothing where one sample says nothing of the spread."""
    return "" if low is None or high is None else f"[{style(low)}, {style(high)}]"


def format_with_interval(value: float, low: float | None, high: float | None, style: Callable[[float], str]) -> str:
    """1.04 [0.91, 1.23], or 1.04 without an interval."""
    return f"{style(value)} {format_interval(low, high, style)}".rstrip()


def text_table(lines: Sequence[Sequence[str]], left_aligned: Collection[int]) -> str:
    """Lines of cells as columns of text; those whose numbers are in `left_aligned` begin at their left edge."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    marks = ["<" if number in left_aligned else ">" for number in range(len(widths))]
    layout = "  ".join(f"{{:{mark}{width}}}" for mark, width in zip(marks, widths, strict=True))
    return "\n".join(layout.format(*line).rstrip() for line in lines)


def parse_percent(text: str, option: str) -> float:
    """'5%' as 0.05. Raises UserError for anything that is not a percentage from 0 to 100."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not text.endswith("%") or not 0 <= percent < 100:
        raise UserError(f"{option} is {text!r}, but must be a percentage such as 5%")
    return percent / 100
