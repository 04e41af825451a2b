"""All published sets on one page: results/gallery.html, static and self-contained, a plain table without JavaScript.

    ./bench gallery [--price-per-hour 0.40]
    ./bench gallery --price-per-hour "cpu2-epyc_torch2.15_202611=0.08 h200_torch2.11_202611=3.50"

The price is of one machine, whatever of it a run used, in any currency: one for all sets, or NAME=PRICE for some.
A set that is not what its manifest says, lacks a file, or was made with local changes is left out, and the page says
why. Exit code: 1 where one is left out, 2 for a mistake. Needs no torch.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tqdm import tqdm

from benchmarks.common.config.settings import IMAGENET_TRAIN_IMAGES
from benchmarks.common.store.output_files import write_output
from benchmarks.common.store.results import MAX_TABLE_BYTES
from benchmarks.common.store.safe_cells import has_formula_after_semicolon, without_formulas
from benchmarks.common.store.safe_names import SAFE_NAME, refuse_links
from benchmarks.common.system.commands import bench_command, shell_word
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_set_file
from benchmarks.common.system.repository import ROOT
from scripts.options.set_options import GalleryOptions
from scripts.pages.headline import headline
from scripts.pages.page_templates import html_template
from scripts.pages.provenance import reproduction_commands
from scripts.pages.report_tables import scale_with_interval, table_rows
from scripts.publish import manifest
from scripts.publish.passive_page import find_active
from scripts.sets.epoch_time import epoch_time
from scripts.sets.identity import compute_precision
from scripts.sets.result_set import ResultSet, load_set
from scripts.sets.run_group import RunGroup
from scripts.sets.set_text import describe_failures, describe_images, describe_sets
from scripts.sets.set_warnings import uncommitted_changes
from scripts.stats.formatting import format_number, format_setting, printable, printable_lines
from scripts.studies.decide.training_cost import NUM_EPOCHS, num_machines, read_prices

LINKED_TABLES = ("runs.csv", "equivalence.csv")
MARK = "published.json"  # what ./bench publish leaves in a set
NEEDED = (MARK, "runs.csv", "windows.csv", "environment.json", "equivalence.csv", "report.html")
BEFORE_MANIFESTS = (0, 1)  # rules (scripts/publish/publishable.py) by which sets were let in without one
COST_COLUMNS = ("1,000 images / unit of money", "epoch, cost", f"{NUM_EPOCHS} epochs, cost")
TEMPLATE = Path(__file__).parent / "templates/gallery.html.j2"
GALLERY_COLUMNS = (
    "strategy",
    "precision",
    "hardware",
    "model",
    "images",
    "devices",
    "images/s",
    "x single",
    "J/image",
    COST_COLUMNS[0],
    "epoch, s",
    COST_COLUMNS[1],
    f"{NUM_EPOCHS} epochs, s",
    COST_COLUMNS[2],
)
TEXT_COLUMNS = GALLERY_COLUMNS[:5]
FILTERS = ("hardware", "precision", "strategy", "model", "set")


def main(options: GalleryOptions) -> int:
    folders = find_sets(options.published)
    names = [path.name for path in folders]
    prices = read_prices(options.price_per_hour.split(), names, "--price-per-hour", "published set")
    entries, left_out = [], {}
    for path in tqdm(folders, desc="sets", disable=None, leave=False):
        try:
            lines = changed_files(path)
            if not lines:
                results = load_set(path)
                lines = why_not_shown(results)
            if not lines:
                entries.append(describe_set(results, prices, options.output.parent))
        except UserError as error:
            lines = [str(error)]
        except Exception as error:  # somebody else's set must not take all others with it
            lines = [f"its figures cannot be worked out: {type(error).__name__}: {str(error)[:200]}"]
        if lines:
            left_out[path.name] = lines
    write_output(options.output, render_gallery(entries, left_out, options.price_per_hour))
    for name, reasons in left_out.items():
        print(f"warning: {printable(name)} is left out: {'; '.join(map(printable, reasons))}", file=sys.stderr)
    print(f"{sum(len(each['rows']) for each in entries)} rows of {len(entries)} sets: {options.output}")
    return int(bool(left_out))


def find_sets(published: Path) -> list[Path]:
    """Folders that ./bench publish has put there, the newest first. Raises UserError where there are none."""
    found = [path.parent for path in published.glob(f"*/{MARK}")]
    if not found:
        raise UserError(
            f"no set is published in {published}; ./bench publish --name ... --results results/x puts one there"
        )
    return sorted(found, key=lambda path: (str(_read_mark(path).get("at", "")), path.name), reverse=True)


def _read_mark(path: Path) -> dict:
    try:
        mark = json.loads(read_set_file(path / MARK, manifest.LIMIT_BYTES))
        return mark if isinstance(mark, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def changed_files(path: Path) -> list[str]:
    """A line for each file of a published set that is missing, not what was published, a page that runs something, or a
    table that a spreadsheet would run.

    Raises UserError for a manifest that cannot be read, and for a link, which would lead out of the set.
    """
    refuse_links(path)
    needed = NEEDED if _read_mark(path).get("rule") in BEFORE_MANIFESTS else (*NEEDED, manifest.MANIFEST)
    lines = [f"{name} is missing{manifest.checkout(path)}" for name in needed if not (path / name).is_file()]
    if not lines and (active := find_active(path / "report.html")):
        lines = [f"report.html holds {active}, which no report has: it could run something in the browser"]
    for name in LINKED_TABLES if not lines else ():
        content = read_set_file(path / name, MAX_TABLE_BYTES)
        text = content.decode(errors="replace")  # what is not UTF-8 may be UTF-16 for a spreadsheet
        if without_formulas(text).encode() != content or has_formula_after_semicolon(text):
            lines.append(f"{name} has a cell that a spreadsheet would run, or another encoding or separator")
    if lines or not (path / manifest.MANIFEST).exists():
        return lines
    return manifest.find_faults(path, manifest.read_manifest(path))


def why_not_shown(results: ResultSet) -> list[str]:
    """Why the set's figures cannot be shown; [] where they can."""
    return [*results.contradictions, *uncommitted_changes(results)] or (
        [] if results.timed_groups else ["no run was timed"]
    )


def describe_set(results: ResultSet, prices: dict[str, float], base: Path) -> dict:
    """What the page says of a set, as text, with links from a page in the folder `base`."""
    at = _link(results.path, base)
    timed = results.timed_groups
    report_rows = {row["strategy"]: row for row in table_rows(results)}
    mark, again = _read_mark(results.path), ""
    if (results.path / manifest.MANIFEST).exists():
        again = bench_command("reproduce", os.path.relpath(results.path.resolve(), ROOT))
    strategies = [*dict.fromkeys(group.strategy for group in timed)]
    rows = [
        _row(results, group, report_rows[group.label], prices.get(results.name))
        | {"number": strategies.index(group.strategy)}
        for group in sorted(timed, key=lambda each: -each.timed_throughput.value)
    ]
    return {
        "name": results.name,
        "verdict": headline(results)[0],
        "aa_verdicts": [over.verdict for over in results.aa_comparisons.values()],
        "about": f"{describe_sets([results])}; {describe_images(timed)}",
        "at": format_setting(mark.get("at")),
        "rule": "" if again else format_setting(mark.get("reason") or "it has no manifest.json"),
        "commit": ", ".join(sorted(set(results.ok_runs.commit) - {""})),
        "torch": ", ".join(sorted({version.split("+")[0] for version in results.ok_runs.torch})),
        "price": prices.get(results.name),
        "report": f"{at}/report.html",
        "proof": f"{at}/equivalence.csv",
        "runs": f"{at}/runs.csv",
        "commands": reproduction_commands(results),
        "again": again,
        "again_each": [_again_with(again, name) for name in strategies],
        "troubles": describe_failures(results),
        "rows": rows,
    }


def _again_with(command: str, strategy: str) -> str:
    """The command for one strategy, to be pasted. It would take a name such as --results=x for an option."""
    if not SAFE_NAME.fullmatch(strategy):
        return "# the command of a strategy is left out: the strategy's name is no name"
    return f"{command} --strategies {shell_word(strategy)}"


def _link(path: Path, base: Path) -> str:
    return quote(os.path.relpath(path.resolve(), base.resolve()))


def _row(results: ResultSet, group: RunGroup, said: dict, price: float | None) -> dict[str, Any]:
    """One strategy of a set: its cells by column, and what it is filtered by. said: its row of the report."""
    first, epoch = group.ok_runs.iloc[0], epoch_time(results, group)
    cells = {
        "strategy": group.label + ("" if group.is_parallel else " (not parallel)"),
        "precision": compute_precision(group.identity) or format_setting(first.precision),
        "hardware": format_setting(first.device_name),
        "model": f"{format_setting(first.arch)}, {format_setting(first.image_size)} px",
        "images": describe_images([group]),
        "devices": format_setting(first.world_size)
        + (f" on {format_setting(first.nodes)} nodes" if first.nodes > 1 else ""),
        **{name: said[name] for name in ("images/s", "x single", "J/image")},
        "epoch, s": scale_with_interval(epoch.value, epoch, format_number),
        f"{NUM_EPOCHS} epochs, s": format_number(NUM_EPOCHS * epoch.value),
    }
    if price:
        second = price * num_machines(group) / 3600
        rate = group.timed_throughput
        cells |= {
            COST_COLUMNS[0]: scale_with_interval(rate.value / second / 1000, rate, format_number),
            COST_COLUMNS[1]: scale_with_interval(second * epoch.value, epoch, format_number),
            COST_COLUMNS[2]: format_number(NUM_EPOCHS * second * epoch.value),
        }
    filters = {name: cells[name] for name in FILTERS if name in cells}
    filters |= {"strategy": group.strategy, "set": results.name}
    proof = said["same update?"] or "none"
    return {"cells": cells, "filters": filters, "proof": proof, "measured": epoch.measured}


def render_gallery(entries: list[dict], left_out: dict[str, list[str]], price: str) -> str:
    """The page as HTML, without control characters: names of folders and published.json may have some."""
    rows = [row for each in entries for row in each["rows"]]
    columns = [name for name in GALLERY_COLUMNS if any(row["cells"].get(name) for row in rows)]
    kinds = {name: sorted({row["filters"][name] for row in rows}) for name in FILTERS}
    html = html_template(TEMPLATE).render(
        sets=entries,
        rows=rows,
        columns=columns,
        text_columns=TEXT_COLUMNS,
        kinds=kinds,
        left_out=left_out,
        price=price,
        num_epochs=NUM_EPOCHS,
        num_images=f"{IMAGENET_TRAIN_IMAGES:,}",
        aa=describe_aa_of_all([verdict for each in entries for verdict in each["aa_verdicts"]]),
        without_energy="J/image" not in columns,
        any_measured=any(row["measured"] for row in rows),
    )
    return printable_lines(html)


def describe_aa_of_all(verdicts: list[str]) -> str:
    """How many A/A comparisons of all sets found a difference; '' without one."""
    decided = [verdict for verdict in verdicts if verdict != "no verdict"]
    found = sum(verdict != "no difference seen" for verdict in decided)
    if not decided:
        return ""
    return (
        f"A/A: {len(decided)} comparison{'s' if len(decided) > 1 else ''} of runs with the same settings; a "
        f"difference was seen in {found}. Each is one pair of its set's family, which errs in at most about 1 of "
        "20 where rounds are independent and nearly normal: of one pair among ten, 1 of 200 at most is then expected."
    )
