"""Where this checkout lies. Standard library alone."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKOUTS_PREFIX = ".worktrees-"
"""Of checkouts of other commits, in results/."""
