"""Text and numbers as LaTeX, and a LaTeX where there is one. Whatever is not a Tex is escaped by the template."""

import os
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.files import replace_atomically
from scripts.results.formatting import format_number, printable

PROGRAM = "pdflatex"
REMEDY = "apt-get install --no-install-recommends texlive-latex-recommended texlive-science"
LIMIT_S = 120
SPECIAL = {letter: f"\\{letter}" for letter in "#$%&_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: f"{{{letter}}}" for letter in "[]*"},  # after a line's end they would be its arguments
    "-": "-{}",  # no dashes: --global-batch is what one types
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "±": r"$\pm$",
    "²": r"$^2$",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "…": r"\dots{}",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT SINGLE QUOTATION MARK}": "`",
    "™": r"\texttrademark{}",
    "®": r"\textregistered{}",
    "©": r"\textcopyright{}",
    "\N{MICRO SIGN}": r"$\mu$",
    "\N{GREEK SMALL LETTER MU}": r"$\mu$",
}


class Tex(str):
    """Text that is LaTeX already."""


def escape_tex(value: object) -> str:
    """A value as text that means itself in LaTeX; a Tex as it is. Letters that pdflatex has not are ?."""
    if isinstance(value, Tex):
        return value
    return "".join(map(_letter, unicodedata.normalize("NFC", printable(str(value)))))


def _letter(letter: str) -> str:
    latin = "À" <= letter <= "ÿ"
    return SPECIAL.get(letter, letter if letter.isascii() or latin else "?")


def tex_command(line: str) -> Tex:
    """A command, with the quotes that a shell takes."""
    return Tex(escape_tex(line).replace("'", r"\textquotesingle{}"))


def tex_number(value: float) -> Tex:
    """A number for siunitx, with the digits of all other tables. A comma would be a decimal one there."""
    return Tex(format_number(value).replace(",", ""))


def tex_interval(low: float | None, high: float | None, style: Callable[[float], Tex] = tex_number) -> Tex:
    """[low, high] as a cell of text; '' without an interval."""
    return Tex("" if low is None or high is None else rf"[\num{{{style(low)}}}, \num{{{style(high)}}}]")


def tex_fixed(value: float) -> Tex:
    """Two decimals: of ratios."""
    return Tex(f"{value:.2f}")


def tex_column_format(cells: list[str]) -> str:
    """The table-format of a column of numbers for siunitx: 3.1 for 199.0 and 7.25, with the places that it needs."""
    halves = [cell.partition(".") for cell in cells if cell]
    whole, after = (max((len(half[place]) for half in halves), default=0) for place in (0, 2))
    return f"{max(1, whole)}.{after}"


def compile_pdf(source: Path) -> Path | None:
    """The PDF of a .tex file, beside it; None without LaTeX, and none of an older .tex is left.

    Raises UserError with LaTeX's first error, OSError where it cannot write.
    """
    target = source.with_suffix(".pdf")
    target.unlink(missing_ok=True)
    if not shutil.which(PROGRAM):
        return None
    with tempfile.TemporaryDirectory(prefix="report-tex-") as folder:
        _copy_sources(source, Path(folder))
        command = [PROGRAM, "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", source.name]
        env = os.environ | {"openin_any": "p", "openout_any": "p"}  # it reads and writes in this folder only
        for _ in tqdm(range(2), desc="report.pdf", disable=None, leave=False):  # twice, for references
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env=env,
                    timeout=LIMIT_S,
                    check=False,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    stdin=subprocess.DEVNULL,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise UserError(f"{PROGRAM} did not end with {source}: {error}") from None
            if done.returncode:
                lines = done.stdout.splitlines()
                first = next((line for line in lines if line.startswith("!")), "it printed no error")
                raise UserError(f"{PROGRAM} cannot make a PDF of {source}: {first.lstrip('! ')}; {REMEDY}")
        made = Path(folder) / f"{source.stem}.pdf"
        replace_atomically(target, lambda file: file.write(made.read_bytes()))
    return target


def _copy_sources(source: Path, folder: Path) -> None:
    charts = folder / "charts"
    charts.mkdir()
    for path, copies in [(source, folder), *((chart, charts) for chart in source.parent.glob("charts/*.png"))]:
        shutil.copy(path, copies)
