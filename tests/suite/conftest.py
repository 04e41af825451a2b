"""What the tests of plans share: Make's variables, as the plan reads them."""

import pytest
from support import SYNTHETIC_YAML

from scripts.suite import plan

VARIABLES = (
    "ARGS CONFIG DATA RESULTS RETRY REPEATS STRATEGIES STRATEGY KEY VALUES RANKS NPROC TIMEOUT HOSTS NODES NNODES "
    "UNTIL BUDGET SEEDS"
)


@pytest.fixture
def given(monkeypatch, tmp_path):
    """given(**variables): what the plan reads where only these are set, and a small configuration."""
    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)

    def read(**variables) -> plan.Given:
        for name in (*VARIABLES.split(), "TASKS_PER_NODE", "GPUS_PER_NODE", "THREADS_PER_RANK", "REPEAT"):
            monkeypatch.delenv(name, raising=False)
        ours = {"CONFIG": tmp_path / "own.yaml", "NUM_GPUS": 0, "STRATEGIES": "single ddp", "REPEATS": 2}
        for name, value in (ours | variables).items():
            monkeypatch.setenv(name, str(value))
        return plan.read_variables()

    return read
