"""Copies a result set into results/published/<name>/, without what names its machine, user and folders.

    ./bench publish --name cpu2-epyc_torch2.15_202611 --results results/x

What goes along: the tables, environment.json, the same of the sets inside (sweeps, ...), a report of the copy, its
charts as PNG, and SHA256SUMS, which `sha256sum -c` reads. Exit code: 2 for a mistake.
"""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.errors import UserError
from scripts.publish.private_words import private_words, without_private
from scripts.report.page import make_report
from scripts.results.options import PublishOptions
from scripts.results.result_set import load_set
from scripts.shared.commands import shell_word
from scripts.shared.repository import ROOT

PUBLISHED = ROOT / "results/published"
SUMS = "SHA256SUMS"
NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


def main(options: PublishOptions) -> int:
    place, source = PUBLISHED / options.name, options.results
    if not NAME.fullmatch(options.name):
        raise UserError(f"--name {options.name} cannot be a folder; such as cpu2-epyc_torch2.15_202611")
    if place.exists():
        raise UserError(f"{place} is there already; choose another --name")
    if not source.is_dir():
        raise UserError(f"--results {source} is no folder; ./bench run makes one, results/latest is the newest")
    results = load_set(source)
    if not results.timed_groups:
        raise UserError(f"{source} has no ok run with a throughput; ./bench run")
    folders = [source, *sorted(each.parent for each in source.glob("*/runs.csv"))]
    words = private_words(results, folders)
    try:
        PUBLISHED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".publishing-", dir=PUBLISHED) as scratch:
            new = Path(scratch) / options.name
            for folder in folders:
                copy_tables(folder, new / folder.relative_to(source), words)
            make_report(load_set(new)).write(new)
            write_sums(new)
            os.rename(new, place)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or PUBLISHED}: {error.strerror}; nothing is published") from None
    print(f"published: {place}; next: read its report.html, git add {shell_word(place)}, and commit")
    return 0


def copy_tables(source: Path, target: Path, words: Mapping[str, str]) -> None:
    """Hashes of settings stay: they are names by now."""
    target.mkdir()
    for path in sorted(source.glob("*.csv")):
        (target / path.name).write_text(without_private(path.read_text(errors="replace"), words))
    with contextlib.suppress(FileNotFoundError):
        environment = json.loads((source / "environment.json").read_text())
        environment.pop("variables", None)
        (target / "environment.json").write_text(without_private(json.dumps(environment, indent=1), words) + "\n")


def write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / SUMS).write_text("".join(sums))
