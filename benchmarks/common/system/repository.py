"""Where this checkout lies. Needs no torch."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds benchmarks/, scripts/ and results/."""
