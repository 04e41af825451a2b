"""Export a result set: JSON with intervals, OpenMetrics, github-action-benchmark's JSON, or JUnit XML.

    ./bench export results/x --format openmetrics --out set.prom

Every value is computed from the set. Without --out the text goes to stdout. Exit code: 1 where the set has no run, 2
for a mistake, or for a set that contradicts itself. Needs no torch.
"""

import json
import sys

from benchmarks.common.store.output_files import write_output
from scripts.export.action_benchmark import action_benchmark_text
from scripts.export.junit import junit_text
from scripts.export.openmetrics import openmetrics_text
from scripts.export.set_document import set_document
from scripts.options.set_options import ExportFormat, ExportOptions
from scripts.sets.result_set import ResultSet, load_set
from scripts.stats.formatting import printable_lines


def export_text(results: ResultSet, export_format: ExportFormat) -> str:
    """The set in a format, as text without control characters that ends with a line feed. Raises UserError where the
    set contradicts itself."""
    document = set_document(results)
    if export_format == "openmetrics":
        text = openmetrics_text(document)
    elif export_format == "github-action-benchmark":
        text = action_benchmark_text(document)
    elif export_format == "junit":
        text = junit_text(results, document)
    else:
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    return printable_lines(text)


def main(options: ExportOptions) -> int:
    results = load_set(options.results)
    if not results.groups:
        halves = [results.path / name for name in ("A", "B") if (results.path / name / "runs.csv").exists()]
        named = f"; export one of the sets of this comparison: {' or '.join(map(str, halves))}" if halves else ""
        print(f"error: {results.path}/runs.csv has no run, so there is nothing to export{named}", file=sys.stderr)
        return 1
    text = export_text(results, options.format)
    if options.out is None:
        print(text, end="")
        return 0
    write_output(options.out, text, "--out")
    return 0
