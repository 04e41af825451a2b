"""The facts of a machine in a set's environment.json, which scripts/runner/environment.py writes. Needs no torch.

facts = read_environment(results / "environment.json")
"""

import json
from pathlib import Path
from typing import Any


def read_environment(path: Path) -> dict[str, Any]:
    """The facts by name. Old sets have fewer. Raises OSError for a file that is missing or cannot be read, and
    ValueError for one that is damaged."""
    facts = json.loads(path.read_bytes())
    if not isinstance(facts, dict):
        raise ValueError("it holds no facts of the machine")
    return facts
