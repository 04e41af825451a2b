"""What the tests of plans and jobs share: Make's variables, as the plan reads them; programs that stand for Slurm."""

from pathlib import Path

import pytest
from support import SYNTHETIC_YAML, put

from scripts.suite import plan

VARIABLES = (
    "ARGS CONFIG DATA RESULTS RETRY REPEATS STRATEGIES STRATEGY KEY VALUES RANKS NPROC TIMEOUT HOSTS NODES NNODES "
    "UNTIL BUDGET SEEDS"
)

SCONTROL = """
case "$*" in
"show hostnames "*) printf '%s\\n' node1 node2 ;;
"show node node1 -o") echo "NodeName=node1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=node1 Version=23" ;;
"show job "*) echo " JobId=7 JobState=COMPLETED Reason=None ExitCode=0:0" ;;
esac
"""


@pytest.fixture
def given(monkeypatch, tmp_path):
    """given(**variables): what the plan reads where only these are set, and a small configuration."""
    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)

    def read(**variables) -> plan.Given:
        for name in (
            *VARIABLES.split(),
            "TASKS_PER_NODE",
            "NODE_RANK",
            "CPUS_PER_TASK",
            "GPUS_PER_NODE",
            "THREADS_PER_RANK",
            "REPEAT",
        ):
            monkeypatch.delenv(name, raising=False)
        ours = {"CONFIG": tmp_path / "own.yaml", "NUM_GPUS": 0, "STRATEGIES": "single ddp", "REPEATS": 2}
        for name, value in (ours | variables).items():
            monkeypatch.setenv(name, str(value))
        return plan.read_variables()

    return read


@pytest.fixture
def bin_path(tmp_path) -> Path:
    """A PATH's first folder: Slurm on two nodes of 8 cores, and an ssh that is let in."""
    sinfo, ssh = '[ "${SINFO:-up}" = up ] && echo 8', '[ "${SSH:-yes}" = yes ]'
    put(tmp_path / "bin", sinfo=sinfo, scontrol=SCONTROL, ssh=ssh, srun="echo usage")
    return tmp_path / "bin"
