"""Which rank is named: the one that failed, and not the ones that it left.

.venv/bin/python -m pytest tests/runner/test_cause.py
"""

import resource
from types import SimpleNamespace

import pytest

from scripts.runner import limits
from scripts.runner.cause import SMALLER_BATCH, first_cause
from scripts.runner.limits import met_limit

# As gloo, NCCL, the stores, Horovod and torch.multiprocessing word it.
LEFT = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:12345",
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1065] readv error: No route to host",
    "RuntimeError: [../gloo/transport/tcp/buffer.cc:83] Timed out waiting 20000ms for recv operation to complete",
    "RuntimeError: Application timeout caused pair closure",
    "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
    "RuntimeError: Broken pipe",
    "RuntimeError: NCCL communicator was aborted on rank 1.",
    "RuntimeError: NCCL Error 6: remote process exited",
    "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:133, remote process exited",
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
    "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (127.0.0.1, 29500).",
    "DistStoreError: wait timeout after 60000ms, keys: /default_pg/0//cuda//0",
    "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    "HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks.",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "ProcessExitedException: process 1 terminated with signal SIGKILL",
    "ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last)",
    "InternalTorchDynamoError: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1",
    "RuntimeError: TCPStore: the rank 0's server has gone",
]
OWN = [
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/FileStore/x'",
    "FileNotFoundError: [Errno 2] No such file or directory: 'TCPStore'",
    "PermissionError: [Errno 13] Permission denied: '/mnt/socket timeout/dist_error.JPEG'",
    "KeyError: 'connection closed'",
    "KeyError: 'dist_error'",
    "ValueError: gloo error, connection reset",
    "RuntimeError: /data/gloo/error: cannot be read",
    "RuntimeError: cannot decode '/data/nccl timeout/FileStore connection closed.JPEG'",
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding /mnt/TCPStore/connection",
    'RuntimeError: the model\'s folder "wait timeout" is empty',
    "RuntimeError: expected dist_error_scale to be positive",
    "DistutilsPlatformError: no compiler",
    "OSError: [Errno 5] Input/output error: '/mnt/broken pipe/FileStore'",
    "ConnectionResetError: Caught ConnectionResetError in DataLoader worker process 0.\nOriginal Traceback",
    "cannot read /data/FileStore/x: connection closed; fix its permissions or mount",  # a UserError has no name
    "FileStore is not a folder with train/<class>/",
    "ArithmeticError: planted in this step",
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
]


@pytest.mark.parametrize("own", OWN)
def test_the_rank_that_failed_is_named_whatever_its_message_holds(own):
    """Protects the reader from looking at the wrong rank: each of these against each thing that a left rank says."""
    for left in LEFT:
        notes = [{"status": "failed", "reason": left, "rank": 0}, {"status": "failed", "reason": own, "rank": 1}]
        status, reason = first_cause(notes, "", 1, [], num_ranks=2)
        assert (status, reason.removesuffix(SMALLER_BATCH)) == ("failed", f"rank 1: {own}"), left


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("NCCL error in: x.cpp:77, unhandled system error (run with NCCL_DEBUG=INFO for details)", True),
        ("Failed to initialize NCCL communicator: unhandled system error", True),
        ("NCCL error in: x.cpp:77, remote process exited or there was a network error", False),
        ("Gloo: unhandled system error", False),
    ],
)
def test_a_system_error_of_nccl_names_the_small_shared_memory(text, helps):
    """Protects the first run in a container: docker gives 64 MB of /dev/shm, in which NCCL's ranks exchange, and its
    words name neither. Mutants: no remedy; the remedy for every error of NCCL."""
    notes = [{"rank": rank, "status": "failed", "reason": f"DistBackendError: {text}"} for rank in (1, 0)]
    status, reason = first_cause(notes, "", 1, [], num_ranks=2)
    assert (status, reason.startswith(f"rank 1: DistBackendError: {text}")) == ("failed", True)
    assert ("; /dev/shm may be too small" in reason) == helps


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("rank 1: signal 7, a bus error: a file was cut short, or /dev/shm is full", "; /dev/shm has 64 MB, and 0 are"),
        (
            "rank 0: RuntimeError: unable to open shared memory object </torch_1>",
            "; /dev/shm has 64 MB, and 0 are free",
        ),
        ("rank 0: RuntimeError: can't start new thread", "; there may be 100 processes and threads"),
        ("exit code 1: libgomp: Thread creation failed: Resource temporarily", "; there may be 100 processes"),
        ("rank 0: signal 9, possibly out of memory", "; 2 GB may be used"),
        ("rank 0: OSError: [Errno 12] Cannot allocate memory", "; 2 GB may be used"),
        ("rank 0: OSError: [Errno 24] Too many open files: 'x'", "; a process may have 100 files open"),
        ("rank 0: OutOfMemoryError: CUDA out of memory", ""),
        ("rank 0: signal 19", ""),
    ],
)
def test_the_limit_that_a_run_met_has_its_number(monkeypatch, reason, limit):
    """Protects containers, shared machines and shells with ulimit: the library's words name no number."""
    soft = {resource.RLIMIT_NPROC: 100, resource.RLIMIT_AS: 2 * 10**9, resource.RLIMIT_NOFILE: 100}
    monkeypatch.setattr(limits.resource, "getrlimit", lambda kind: (soft[kind], -1))
    monkeypatch.setattr(limits, "control_groups", lambda controller: [])
    full = SimpleNamespace(f_blocks=64, f_bavail=0, f_frsize=10**6)
    monkeypatch.setattr(limits.os, "statvfs", lambda path: full)
    assert met_limit(reason).startswith(limit) and bool(limit) == bool(met_limit(reason))


def test_an_interface_that_is_not_here_is_named():
    """Across nodes GLOO_SOCKET_IFNAME is the user's."""
    note = {"rank": 0, "status": "failed", "reason": "RuntimeError: [gloo/x.cc:1] Unable to find interface for: ib0"}
    assert "; unset GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or name " in first_cause([note], "", 1, [], 2)[1]


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory", True),
        ("RuntimeError: shapes do not match", False),
    ],
)
def test_a_rank_without_memory_names_the_smaller_batch(reason, helps):
    """Protects a GPU of 8 GB whose forecast was too low: torch's words speak of fragmentation, and of no batch.
    Mutants: no remedy; the remedy for every error."""
    status, found = first_cause([{"rank": 0, "status": "failed", "reason": reason}], "", 1, [], num_ranks=1)
    assert (status, found.startswith(f"rank 0: {reason}")) == ("failed", True)
    assert ("--global-batch" in found) == helps


NCCL = """[rank{0}]:[E1121 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=9408, Timeout(ms)=10000) ran for 10021 ms
"""
NEWER = "E1121 7 ProcessGroupNCCL.cpp:512] [TC][rank={0}][name=default_pg] Operation timed out after 10000 ms\n"
SIGNAL_6 = "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 7)\n"


@pytest.mark.parametrize("line", [NCCL, NEWER])
def test_what_nccl_says_of_a_rank_that_hangs(line):
    """NCCL's watchdog, of torch 2.15 in other words, aborts the ranks that waited: they leave no note, and their signal
    6 is not the cause."""
    log = line.format(0) + line.format(2) + SIGNAL_6
    timeout = "rank 0: a collective timed out"
    assert first_cause([], log, 1, [], num_ranks=3) == ("timeout", f"{timeout}; rank 1 gave no sign")
    assert first_cause([], log, 1, [], num_ranks=4) == ("timeout", timeout)
    assert first_cause([], SIGNAL_6, 1, [], num_ranks=3) == ("failed", "rank 0: signal 6")


def test_a_command_without_a_result_says_how_it_ended():
    """Protects who looks for the cause of a run in one process: there is no launcher of ranks that could be meant."""
    assert first_cause([], "", 0, [], num_ranks=1) == ("failed", "ended with exit code 0 but left no result")
    assert first_cause([], "", -9, [], num_ranks=1)[1].startswith("its command: signal 9, possibly out of memory")
    assert first_cause([], "x\nKeyError: 'a'\n", 1, [], num_ranks=1) == ("failed", "exit code 1: KeyError: 'a'")
