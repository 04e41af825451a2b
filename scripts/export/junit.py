"""A set's runs and proofs as JUnit XML, which CI systems show as tests.

A run that is ok passes, one that was skipped is skipped, and every other has failed; each with its reason. Where a
round was tried again, the last attempt counts. A proof passes where it covers the group's settings and found the same
weights. A group without a proof is skipped.
"""

import math
import xml.etree.ElementTree as ElementTree
from typing import Any

from benchmarks.common.store.frames import iterate_rows
from scripts.export.set_document import Document, plain
from scripts.sets.result_set import ResultSet
from scripts.sets.run_group import RunGroup

OUTCOMES = ("tests", "failures", "skipped")


def junit_text(results: ResultSet, document: Document) -> str:
    """The XML of a set and its document: a suite of runs, and one of proofs."""
    root = ElementTree.Element("testsuites", name=document["set"])
    runs = [_run(document, group, row) for group in results.groups for row in _last_attempts(group)]
    proofs = [_proof(document, group) for group in document["groups"]]
    suites = [_suite("runs", runs), _suite("proofs", proofs)]
    for outcome in OUTCOMES:
        root.set(outcome, str(sum(int(suite.get(outcome, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(name: str, cases: list[ElementTree.Element]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=name)
    found = {"failures": "failure", "skipped": "skipped"}
    counts = {outcome: sum(case.find(tag) is not None for case in cases) for outcome, tag in found.items()}
    for outcome in OUTCOMES:
        suite.set(outcome, str(counts.get(outcome, len(cases))))
    suite.set("errors", "0")
    suite.extend(cases)
    return suite


def _last_attempts(group: RunGroup) -> list[Any]:
    """The last row of each round, in the order of the rounds; rows without a round are one."""
    last = {row.repeat if row.repeat == row.repeat else math.inf: row for row in iterate_rows(group.rows)}
    return [last[number] for number in sorted(last)]


def _run(document: Document, group: RunGroup, row: Any) -> ElementTree.Element:
    of_round = f", round {row.repeat:g}" if row.repeat == row.repeat else ""
    case = ElementTree.Element("testcase", classname=f"{document['set']}.runs", name=f"{plain(group.label)}{of_round}")
    if 0 <= row.wall_s < math.inf:
        case.set("time", f"{row.wall_s:.3f}")
    reason = plain(row.reason) or "no reason was recorded"
    if row.status == "skipped":
        ElementTree.SubElement(case, "skipped", message=reason)
    elif row.status != "ok":
        ElementTree.SubElement(case, "failure", type=plain(row.status) or "no status", message=reason)
    return case


def _proof(document: Document, group: Document) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=f"{document['set']}.proofs", name=group["label"])
    verdict, text = group["proof"]["verdict"], group["proof"]["text"]
    if verdict == "failed":
        ElementTree.SubElement(case, "failure", type="proof", message=text)
    elif verdict != "proved":
        ElementTree.SubElement(case, "skipped", message=text or "no proof: no run is ok")
    return case
