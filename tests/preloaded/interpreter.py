"""An interpreter for the processes that tests start, which has imported torch already.

For each test conftest.py makes sys.executable the path of a client (client.py), which has a fork of a server
(server.py) do what it was asked, or becomes the real interpreter where a fork could not be the same, such as with
LD_PRELOAD. The server is started when the first client connects, and ends with this process.

A test of signals, of imports, of start-up or of memory is marked real_interpreter. PRELOADED=no: all of them are.
"""

import atexit
import multiprocessing
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).parent
REAL = sys.executable
KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")  # as support.environment
SHEBANG_BYTES = 127  # that the oldest kernels read
IS_ON = sys.platform == "linux" and os.environ.get("PRELOADED") != "no"
SHARED = "PRELOADED_CLIENT"  # names the client to the worker processes of pytest-xdist
_clients: list[str] = []


def choose(is_real: bool) -> None:
    """Make sys.executable, and what multiprocessing starts, the real interpreter or the client."""
    # Importing torchvision sets it, and what inherits it would be the real interpreter: client.py, AT_LOADING.
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    os.environ.pop("PYTHON", None)  # make's: with it, what a test's own process starts would be the real interpreter
    sys.executable = REAL if is_real else client()
    multiprocessing.set_executable(sys.executable)


def client() -> str:
    """Its path; that of the real interpreter where there can be none."""
    if not IS_ON or len(_shebang()) > SHEBANG_BYTES or " " in os.path.realpath(REAL):
        return REAL
    if not _clients:
        _clients.append(os.environ.get(SHARED) or _listen())
    return _clients[0]


def share() -> None:
    """Have the processes that this one starts use this one's server."""
    os.environ[SHARED] = client()


def _listen() -> str:
    folder = tempfile.mkdtemp(prefix="preloaded.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{folder}/socket")
    listener.listen(128)
    threading.Thread(target=_start_when_needed, args=(folder, listener), daemon=True).start()
    return _write_client(folder)


def _start_when_needed(folder: str, listener: socket.socket) -> None:
    """Once somebody connects, who then waits until the server has imported everything."""
    select.select([listener], [], [])
    ends_with_us, _ = os.pipe()  # the kernel closes the other end when this process ends
    descriptors = [listener.fileno(), ends_with_us]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    with listener, open(f"{folder}/log", "wb") as log:
        subprocess.Popen(
            [REAL, HERE / "server.py", folder, *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            pass_fds=descriptors,
            start_new_session=True,
        )
    os.close(ends_with_us)


def _write_client(folder: str) -> str:
    constants = {
        "FOLDER": folder,
        "REAL": REAL,
        "LANG": os.environb.get(b"LANG", b""),
        "LIBRARIES": os.environb.get(b"LD_LIBRARY_PATH", b""),
    }
    lines = [_shebang(), *(f"{name} = {value!r}" for name, value in constants.items())]
    path = Path(folder, "python")
    path.write_text("\n".join([*lines, (HERE / "client.py").read_text()]))
    path.chmod(0o700)
    return str(path)


def _shebang() -> str:
    return f"#!{os.path.realpath(REAL)} -IS"
