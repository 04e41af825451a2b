"""A fork of the preloaded interpreter is what the real interpreter would be."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from preloaded.interpreter import IS_ON, REAL
from support import environment, hear_sigint

pytestmark = pytest.mark.skipif(not IS_ON, reason="PRELOADED=no, or no Linux")

TELLS = """
import json, os, resource, signal, sys, numpy, torch
streams = [sys.stdin, sys.stdout, sys.stderr]
told = {
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "environment": dict(os.environ), "name": __name__,
    "umask": os.umask(0), "cores": sorted(os.sched_getaffinity(0)),
    "limits": [resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)],
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "streams": [(each.encoding, each.errors, each.line_buffering, each.name, each.mode) for each in streams],
    "threads": torch.get_num_threads(), "bytecode": sys.dont_write_bytecode, "read": sys.stdin.read(),
}
print(json.dumps(told))
"""
ENDS = {
    "exit 3": "import sys; sys.exit(3)",
    "exit with words": "import sys; sys.exit('words')",
    "an exception": "def f():\n    1 / 0\nf()",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "SIGINT": "import os; os.kill(os.getpid(), 2)",
    "abort": "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
    "atexit": "import atexit; atexit.register(print, 'bye')",
    "a full pipe's end": "import os, sys; os.close(1); os.open('/dev/full', 1); print(1)",
}


def by_both(arguments, **popen) -> list[subprocess.CompletedProcess]:
    """The same command line by the real interpreter and by a fork."""
    return [
        subprocess.run(
            [each, *arguments], **{"capture_output": True, "text": True, "input": "", "timeout": 120} | popen
        )
        for each in (REAL, sys.executable)
    ]


def limit() -> None:
    hear_sigint()
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4000))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


def test_a_fork_has_what_the_real_process_has(tmp_path):
    (tmp_path / "a folder").mkdir()
    env = environment(PYTHON="x", OMP_NUM_THREADS=1, GREETING="grüße", PYTHONPATH=f"{tmp_path}:relative")
    with open(tmp_path / "file", "w") as file:
        popen = {"cwd": tmp_path / "a folder", "env": env, "pass_fds": [file.fileno()], "input": "words"}
        popen |= {"start_new_session": True, "preexec_fn": limit}
        real, fork = by_both(["-c", TELLS, "a b", "--c"], **popen)
    assert (real.returncode, real.stderr, fork.returncode, fork.stderr) == (0, "", 0, "")
    assert json.loads(fork.stdout) == json.loads(real.stdout)


@pytest.mark.parametrize("how", ENDS)
def test_a_fork_ends_as_the_real_process_does(how):
    real, fork = by_both(["-c", ENDS[how]], env=environment(), preexec_fn=hear_sigint)
    assert (fork.returncode, fork.stdout) == (real.returncode, real.stdout)
    assert fork.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_modules_files_and_spawned_processes(tmp_path):
    """Children of multiprocessing's spawn import __main__ again."""
    text = (
        "import multiprocessing, sys\n"
        "def tell(queue):\n    queue.put((__name__, sys.argv[1:], multiprocessing.parent_process() is not None))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n    queue = context.Queue()\n"
        "    process = context.Process(target=tell, args=(queue,))\n    process.start()\n"
        "    print(__name__, sys.argv[1:], sys.path[0], queue.get())\n    process.join()\n    print(process.exitcode)\n"
    )
    (tmp_path / "benchmarks").mkdir()
    path = tmp_path / "benchmarks" / "told.py"
    path.write_text(text)
    for arguments in (["-m", "benchmarks.told", "x"], [str(path), "x"]):
        real, fork = by_both(arguments, cwd=tmp_path, env=environment())
        assert (fork.returncode, fork.stdout, fork.stderr) == (0, real.stdout, real.stderr) and real.stdout


def fork_that_waits(**popen) -> tuple[subprocess.Popen, psutil.Process]:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **popen)
    return client, psutil.Process(int(client.stdout.readline()))


def until_gone(process: psutil.Process) -> None:
    deadline = time.monotonic() + 60
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the fork lives on"
        time.sleep(0.01)


def test_a_client_that_is_killed_ends_its_fork():
    client, fork = fork_that_waits()
    client.kill()
    assert client.wait(60) == -signal.SIGKILL
    until_gone(fork)


def test_signals_reach_the_fork():
    client, fork = fork_that_waits(stderr=subprocess.DEVNULL, preexec_fn=hear_sigint)
    client.send_signal(signal.SIGINT)
    assert client.wait(60) == -signal.SIGINT
    until_gone(fork)


def test_a_fork_ends_with_the_parent_of_its_client(tmp_path):
    """As the suite's ranks do with their launcher, even by SIGKILL."""
    code = (
        "import subprocess, sys, time\nfrom scripts.shared.forward_signals import die_with_parent\n"
        "waits = 'import os, time; print(os.getpid(), flush=True); time.sleep(100)'\n"
        "subprocess.Popen([sys.executable, '-c', waits], preexec_fn=die_with_parent())\ntime.sleep(100)"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, env=environment(), stdout=subprocess.PIPE, text=True
    )
    fork = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait(60)
    until_gone(fork)


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["-I"], {}),
        ([], {"PYTHONHASHSEED": 0}),
        ([], {"LD_PRELOAD": ""}),
    ],
)
def test_what_a_fork_cannot_be_is_the_real_interpreter(arguments, variables):
    real, fork = by_both([*arguments, "-c", "import sys; print(sys.executable)"], env=environment(**variables))
    assert (fork.returncode, fork.stdout) == (real.returncode, real.stdout)
