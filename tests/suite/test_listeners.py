"""What a run on one machine listens on: loopback, and nothing else.

    .venv/bin/python -m pytest tests/suite/test_listeners.py

Real runs of every strategy that can run here, held in their training by tests/faults.
"""

import contextlib
import signal
from pathlib import Path

import psutil
import pytest
from fault_runs import finish, start, until_planted
from support import ONE_PROCESS, ROOT, RUNNABLE

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def listeners(run_dir: Path) -> set[tuple[str, str]]:
    """(address, command line) of every listening TCP socket of the run's processes."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RUN_DIR") == str(run_dir):
                sockets = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
                found |= {(each.laddr.ip, " ".join(process.cmdline())) for each in sockets}
    return found


FAST = {"ddp", "horovod_ddp"}  # one of each tool that listens


@pytest.mark.parametrize(
    "strategy", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNNABLE]
)
def test_a_run_on_one_machine_listens_on_loopback(tmp_path, strategy):
    """Protects users of a shared machine: whoever reaches a port of a run can stop it, or worse."""
    results = tmp_path / "set"
    process = start([ROOT / "launchers" / f"{strategy}.sh"], results, "slow", ARGS="--steps 1000")
    try:
        run_dir = until_planted(results)
        found = listeners(run_dir)
    finally:
        process.send_signal(signal.SIGTERM)
        finish(process, results)
    if strategy not in ONE_PROCESS:
        assert found, "ranks that talk to each other listen somewhere"
    assert not {line for address, line in found if address not in LOOPBACK}
