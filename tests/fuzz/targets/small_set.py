"""A small result set for the targets: the tables of a published one, with the rows of a few runs."""

import json
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published"
NAME = "cpu2-epyc_torch2.15_202611b"
TABLES = ("runs", "settings", "windows", "epochs", "wall")
STRATEGIES = ("single", "ddp")


def write_small_set(folder: Path) -> None:
    """The rows of STRATEGIES in TABLES, the environment, and the manifest of these runs."""
    runs = (PUBLISHED / NAME / "runs.csv").read_text().splitlines()
    ids = {line.split(",")[1] for line in runs[1:] if line.split(",")[3] in STRATEGIES}
    for table in TABLES:
        head, *lines = (PUBLISHED / NAME / f"{table}.csv").read_text().splitlines()
        kept = [line for line in lines if table == "settings" or ids & {*line.split(",")[:2]}]
        (folder / f"{table}.csv").write_text("\n".join([head, *kept]) + "\n")
    (folder / "environment.json").write_text((PUBLISHED / NAME / "environment.json").read_text())


def small_manifest() -> dict:
    """The published one's, with the runs of STRATEGIES."""
    reported = json.loads((PUBLISHED / NAME / "manifest.json").read_text())
    return reported | {"runs": [run for run in reported["runs"] if run["strategy"] in STRATEGIES]}
