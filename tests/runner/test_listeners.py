"""What a run on one machine listens on: loopback, and nothing else. Real runs, held in their training by tests/faults;
Slurm's daemons are in tests/test_slurm_local.py."""

import contextlib
import signal
from pathlib import Path

import psutil
import pytest
from fault_runs import finish, start, until_planted
from support import ONE_PROCESS, ROOT, RUNNABLE

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def listeners(variable: str, value: Path) -> set[tuple[str, str]]:
    """(address, command line) of every listening TCP socket of the processes that have this variable."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(variable) == str(value):
                sockets = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
                found |= {(each.laddr.ip, " ".join(process.cmdline())) for each in sockets}
    return found


KINDS = [name for name in ("single", "ddp", "ddp_spawn", "horovod_ddp") if name in RUNNABLE]
"""One of each kind of launcher: no other process, torchrun, torch.multiprocessing, horovodrun."""


@pytest.mark.launches
@pytest.mark.real_interpreter  # which process listens, by its command line
@pytest.mark.parametrize("strategy", KINDS)
def test_a_run_on_one_machine_listens_on_loopback(tmp_path, strategy):
    """Whoever reaches a port of a run can stop it. And the files by which ranks met are gone afterwards."""
    results, temporary = tmp_path / "set", tmp_path / "tmp"
    temporary.mkdir()
    args = "--steps 1000 --global-batch 8"  # BatchNorm needs two values of a channel, and a pipeline has micro-batches
    process = start([ROOT / "launchers" / f"{strategy}.sh"], results, "slow", ARGS=args, TMPDIR=temporary)
    try:
        run_dir = until_planted(results)
        found = listeners("RUN_DIR", run_dir)
    finally:
        process.send_signal(signal.SIGTERM)
        finish(process, results)
    if strategy not in ONE_PROCESS:
        assert found, "ranks that talk to each other listen somewhere"
    left = [*temporary.glob("torchelastic_*"), *temporary.glob("ranks.*"), *run_dir.glob("rendezvous")]
    assert not [each for each in found if each[0] not in LOOPBACK] and not left
