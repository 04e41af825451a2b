"""Which rank is named: the one that failed, and not the ones that it left."""

import pytest

from scripts.runner.cause import first_cause, remedies

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
    "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (127.0.0.1, 29500).",
    "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    "HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks.",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "ProcessExitedException: process 1 terminated with signal SIGKILL",
    "InternalTorchDynamoError: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1",
    "RuntimeError: TCPStore: the rank 0's server has gone",
]
OWN = [
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/FileStore/x'",
    "KeyError: 'connection closed'",
    "RuntimeError: expected dist_error_scale to be positive",
    "DistutilsPlatformError: no compiler",
    "ConnectionResetError: Caught ConnectionResetError in DataLoader worker process 0.\nOriginal Traceback",
    "cannot read /data/FileStore/x: connection closed; fix its permissions or mount",  # a UserError has no name
    "ArithmeticError: planted in this step",
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
]


@pytest.mark.parametrize("own", OWN)
def test_the_rank_that_failed_is_named_whatever_its_message_holds(own):
    for left in LEFT:
        notes = [{"status": "failed", "reason": left, "rank": 0}, {"status": "failed", "reason": own, "rank": 1}]
        assert first_cause(notes, "", 1, num_ranks=2) == ("failed", f"rank 1: {own}"), left


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("DistBackendError: NCCL error in: x.cpp:77, unhandled system error", "; /dev/shm may be too small"),
        ("DistBackendError: NCCL error in: x.cpp:77, remote process exited", ""),
        ("rank 1: signal 7, a bus error: a file was cut short, or /dev/shm is full", "; /dev/shm may be too small"),
        ("RuntimeError: [gloo/x.cc:1] Unable to find interface for: ib0", "; unset GLOO_SOCKET_IFNAME"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "--global-batch"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "--global-batch"),
        ("exit code 1: libgomp: Thread creation failed: Resource temporarily unavailable", "; raise ulimit -u"),
        ("OSError: [Errno 24] Too many open files: 'x'", "; raise ulimit -n"),
        ("RuntimeError: shapes do not match", ""),
    ],
)
def test_a_cause_whose_words_name_no_remedy_gets_one(reason, named):
    assert named in remedies(reason) and bool(named) == bool(remedies(reason))


NCCL = """[rank{0}]:[E1121 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=9408, Timeout(ms)=10000) ran for 10021 ms
"""
NEWER = "E1121 7 ProcessGroupNCCL.cpp:512] [TC][rank={0}][name=default_pg] Operation timed out after 10000 ms\n"
SIGNAL_6 = "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 7)\n"


@pytest.mark.parametrize("line", [NCCL, NEWER])
def test_what_nccl_says_of_a_rank_that_hangs(line):
    """NCCL's watchdog aborts the ranks that waited: they leave no note, and their signal 6 is not the cause."""
    log = line.format(0) + line.format(2) + SIGNAL_6
    timeout = "rank 0: a collective timed out"
    assert first_cause([], log, 1, num_ranks=3) == ("timeout", f"{timeout}; rank 1 gave no sign")
    assert first_cause([], log, 1, num_ranks=4) == ("timeout", timeout)
    assert first_cause([], SIGNAL_6, 1, num_ranks=3) == ("failed", "rank 0: signal 6")


def test_a_command_without_a_result_says_how_it_ended():
    assert first_cause([], "", 0, num_ranks=1) == ("failed", "ended with exit code 0 but left no result")
    assert first_cause([], "", -9, num_ranks=1)[1].startswith("its command: signal 9, possibly out of memory")
    assert first_cause([], "x\nKeyError: 'a'\n", 1, num_ranks=1) == ("failed", "exit code 1: KeyError: 'a'")
