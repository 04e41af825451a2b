"""Export a result set as JSON, with intervals: set_document.py computes it, export.schema.json describes it.

    ./bench export results/x --out set.json

Without --out the text goes to stdout. Exit code: 1 where the set has no run, 2 for a mistake. Needs no torch.
"""

import json
import sys

from scripts.report.set_document import set_document
from scripts.results.options import ExportOptions
from scripts.results.output_files import write_output
from scripts.results.result_set import ResultSet, load_set


def export_text(results: ResultSet) -> str:
    """The set as JSON text, which ends with a line feed. Raises UserError where the set contradicts itself."""
    return json.dumps(set_document(results), indent=1, allow_nan=False) + "\n"


def main(options: ExportOptions) -> int:
    results = load_set(options.results)
    if not results.groups:
        halves = [results.path / name for name in ("A", "B") if (results.path / name / "runs.csv").exists()]
        named = f"; export one of the sets of this comparison: {' or '.join(map(str, halves))}" if halves else ""
        print(f"error: {results.path}/runs.csv has no run, so there is nothing to export{named}", file=sys.stderr)
        return 1
    text = export_text(results)
    if options.out is None:
        print(text, end="")
    else:
        write_output(options.out, text, "--out")
    return 0
