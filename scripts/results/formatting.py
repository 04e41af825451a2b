"""Numbers, settings and tables as text, in one format everywhere."""

from collections.abc import Callable, Collection, Sequence

from benchmarks.common.errors import UserError


def plural(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plural_of_several(numbers: Collection[int], noun: str) -> str:
    """2/3 runs where some have two and some three."""
    *fewer, most = sorted(set(numbers))
    return "".join(f"{number}/" for number in fewer) + plural(most, noun)


def device_count(number: float, device: str) -> str:
    """2 GPUs; 2 ranks on a CPU. number, device: `world_size` and `device` of runs.csv."""
    return plural(int(number), {"cuda": "GPU", "cpu": "rank"}.get(device, "device"))


def format_number(value: float) -> str:
    """At least three significant digits."""
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
    return f"{value:g}" if isinstance(value, float) else str(value)


def printable(text: str) -> str:
    """One line without control characters, which an SVG may not hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def format_interval(low: float | None, high: float | None, style: Callable[[float], str]) -> str:
    """[low, high]; '' without an interval."""
    return "" if low is None or high is None else f"[{style(low)}, {style(high)}]"


def format_with_interval(value: float, low: float | None, high: float | None, style: Callable[[float], str]) -> str:
    """1.04 [0.91, 1.23], or 1.04 without an interval."""
    return f"{style(value)} {format_interval(low, high, style)}".rstrip()


def text_table(lines: Sequence[Sequence[str]], left_aligned: Collection[int]) -> str:
    """Lines of cells as columns of text. left_aligned: numbers of columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    marks = ["<" if number in left_aligned else ">" for number in range(len(widths))]
    layout = "  ".join(f"{{:{mark}{width}}}" for mark, width in zip(marks, widths, strict=True))
    return "\n".join(layout.format(*line).rstrip() for line in lines)


def parse_percent(text: str, option: str) -> float:
    """'5%' as 0.05. Raises UserError."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not text.endswith("%") or not 0 <= percent < 100:
        raise UserError(f"{option} is {text!r}, but must be a percentage such as 5%")
    return percent / 100
