"""The page of a GPU check: gpu-check.html, which needs no network and no script, and gpu-check.md. Texts are
escaped."""

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.files import write_text_atomically
from scripts.gpu_check.check import Check
from scripts.gpu_check.check_state import ELSEWHERE, State
from scripts.pages.page_templates import html_template, markdown_template
from scripts.shared import source_version
from scripts.shared.commands import bench_command
from scripts.stats.formatting import printable, printable_lines

TEMPLATES = Path(__file__).parent
HEADINGS = {  # the order of the page
    "failed": "Failed",
    "not reached": "Not reached",
    "passed": "Passed",
    "elsewhere": "Not run here",
    "skipped": "Skipped",
    "left": "Left for several GPUs",
    "needs": "Needs what is not here",
}


def write_page(
    results: Path,
    listed: Sequence[Check],
    state: State,
    why_left: dict[str, str],
    *,
    on_gpu: bool,
    remarks: Sequence[str],
) -> None:
    """why_left: by name. remarks: what a reader must know first."""
    groups: dict[str, list[dict]] = {status: [] for status in HEADINGS}
    for check in listed:
        found = state.ended.get(check.name, {})
        status = found.get("status") or kind_of_left(check, why_left.get(check.name, "not reached"))
        log = found.get("log", "")
        groups[status].append(
            {
                "name": check.name,
                "claim": check.claim,
                "words": printable(found.get("words") or why_left.get(check.name, "not reached")),
                "seconds": f"{found['seconds']:.0f}" if "seconds" in found else "",
                "command": check.command,
                "log": os.path.relpath(log, results) if log else "",
            }
        )
    described = state.ended.get("environment", {})
    values = {
        "name": results.name,
        "on_gpu": on_gpu,
        "remarks": list(remarks),
        "device": described.get("words", "") if described.get("status") != ELSEWHERE else "",
        "commit": source_version.commit() or "",
        "changed": bool(source_version.local_changes()) if source_version.commit() else False,
        "counts": {named(status): len(rows) for status, rows in groups.items() if rows},
        "groups": [(status, HEADINGS[status], rows) for status, rows in groups.items() if rows],
        "has_report": (results / "report.html").exists(),
        "again": bench_command("gpu-check", results=results),
    }
    pages = {
        "gpu-check.html": html_template(TEMPLATES / "check_page.html.j2"),
        "gpu-check.md": markdown_template(TEMPLATES / "check_page.md.j2"),
    }
    for name, template in pages.items():
        write_text_atomically(results / name, printable_lines(template.render(values)))


def named(status: str) -> str:
    """A heading within a sentence."""
    return HEADINGS[status][0].lower() + HEADINGS[status][1:]


def kind_of_left(check: Check, why: str) -> str:
    if not why.startswith("needs "):
        return "not reached"
    return "left" if "two_gpus" in check.needs else "needs"
