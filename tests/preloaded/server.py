"""Has imported torch, and forks an interpreter for each client that connects: tests/preloaded/interpreter.py starts it.

    python server.py FOLDER LISTENING_DESCRIPTOR CONTROL_DESCRIPTOR

A fork has the environment, folder, umask, limits, signals and descriptors of its client, which ends as it does and
passes signals on. What differs from a real interpreter: its parent is this server, /proc shows the server's command
line and environment, and a fork waits for no disk, as conftest.wait_for_no_disk says. When a client dies, its fork and
the fork's process group are killed. When CONTROL is closed, all are, and the server ends.
"""

import array
import atexit
import builtins
import contextlib
import ctypes
import dataclasses
import fcntl
import gc
import importlib
import io
import marshal
import os
import random
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref

PRELOADED = (
    "torch torchvision torchvision.transforms.v2 torch._dynamo torch.utils.data torch.utils.flop_counter "
    "torch._subclasses.fake_tensor torch.distributed.fsdp torch.distributed.pipelining torch.distributed.optim "
    "torch.distributed.tensor torch.distributed.device_mesh torch.distributed.launcher.api "
    "torch.distributed.elastic.multiprocessing.errors torch.distributed.argparse_util "
    "torch.distributed.elastic.rendezvous.registry torch.distributed.algorithms.ddp_comm_hooks "
    "torch.multiprocessing torch.multiprocessing.spawn torch.testing._internal.distributed.fake_pg "
    "numpy pandas scipy.stats scipy.special scipy.optimize PIL.Image tyro yaml tqdm psutil jinja2 "
    "matplotlib.figure matplotlib.backends.backend_agg pytest cloudpickle http.server"
)
OURS = ("benchmarks", "scripts", "horovod", "sitecustomize")  # what each fork imports by itself, from its own folder
PR_SET_PDEATHSIG = 1
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
MOST_DESCRIPTORS = 253  # of one message (unix(7))
REQUEST_LIMIT_S = 30.0
CODE_OF_A_FAILED_FLUSH = 120
_LIBC = ctypes.CDLL(None)


@dataclasses.dataclass
class Request:
    arguments: list[str]
    environment: dict[bytes, bytes]
    numbers: list[int]
    """Of its open descriptors."""
    umask: int
    ignored: list[int]
    blocked: list[int]
    descriptors: list[int]
    """Those, in this process."""
    client_pid: int


def receive(connection: socket.socket) -> Request:
    """Raises OSError or EOFError where the client has ended meanwhile."""
    connection.settimeout(REQUEST_LIMIT_S)
    space = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
    head, ancillary, _, _ = connection.recvmsg(4, space)
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    content = bytearray()
    size = int.from_bytes(head, sys.byteorder)
    while head and len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            break
        content += part
    if not head or len(content) < size:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EOFError("the client has ended")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    client_pid, _, _ = struct.unpack("3i", credentials)
    connection.settimeout(None)
    return Request(*marshal.loads(content), list(descriptors), client_pid)


class Server:
    """Forks, and tells each client how its fork has ended."""

    def __init__(self, listener: socket.socket, control: int):
        self.listener, self.control = listener, control
        self.connections: dict[int, socket.socket] = {}  # by descriptor
        self.pids: dict[int, int] = {}  # by connection
        self.ends: dict[int, int] = {}  # pidfd: connection
        self.poll = select.poll()
        for descriptor in (control, listener.fileno()):
            self.poll.register(descriptor, select.POLLIN)

    def serve(self) -> Request:
        """Returns in forks only."""
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == self.control:
                    self.end()
                elif descriptor == self.listener.fileno():
                    request = self.accept()
                    if request is not None:
                        return request
                elif descriptor in self.ends:
                    self.reap(descriptor)
                elif descriptor in self.connections:
                    self.hear(descriptor)

    def accept(self) -> Request | None:
        """The request, in its fork; None in the server."""
        connection, _ = self.listener.accept()
        try:
            request = receive(connection)
        except (OSError, EOFError, ValueError):
            connection.close()
            return None
        server_pid, pid = os.getpid(), os.fork()
        if pid == 0:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server_pid:
                os._exit(1)
            lead_as(request.client_pid)
            for each in (self.listener, connection, *self.connections.values()):
                each.detach()  # their numbers become others'
            return request
        for descriptor in request.descriptors:
            os.close(descriptor)
        ending = os.pidfd_open(pid)
        self.connections[connection.fileno()] = connection
        self.pids[connection.fileno()] = pid
        self.ends[ending] = connection.fileno()
        self.poll.register(connection.fileno(), select.POLLIN)
        self.poll.register(ending, select.POLLIN)
        return None

    def hear(self, number: int) -> None:
        try:
            signals = self.connections[number].recv(64)
        except OSError:
            signals = b""
        for signum in signals:
            os.kill(self.pids[number], signum)  # it has not been waited for, so the number is its own
        if not signals:
            self.kill(self.pids[number])
            self.poll.unregister(number)  # until it has ended

    @staticmethod
    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it leads no group
            os.killpg(pid, signal.SIGKILL)

    def reap(self, ending: int) -> None:
        number = self.ends.pop(ending)
        connection, pid = self.connections.pop(number), self.pids.pop(number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for descriptor in (ending, number):
            with contextlib.suppress(KeyError):  # of a client that has died
                self.poll.unregister(descriptor)
        os.close(ending)
        with contextlib.suppress(OSError):
            connection.sendall(code.to_bytes(4, sys.byteorder, signed=True))
        connection.close()

    def end(self) -> None:
        for pid in self.pids.values():
            self.kill(pid)
        os._exit(0)


def lead_as(client_pid: int) -> None:
    """Lead a session or a group where the client does: who leads none may call setsid."""
    if os.getsid(client_pid) == client_pid:
        os.setsid()
    elif os.getpgid(client_pid) == client_pid:
        os.setpgid(0, 0)


# ---- in a fork -------------------------------------------------------------------------------------------------


def become(request: Request, executable: str) -> None:
    take_descriptors(request)
    os.umask(request.umask)
    take_from_client(request.client_pid)
    set_signals(request)
    set_environment(request.environment)
    open_streams(unbuffered=b"PYTHONUNBUFFERED" in request.environment or "-u" in options(request.arguments))
    no_bytecode = b"PYTHONDONTWRITEBYTECODE" in request.environment or "-B" in options(request.arguments)
    sys.dont_write_bytecode = no_bytecode
    sys.orig_argv = [executable, *request.arguments]
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].seed()
    num_threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    if num_threads != sys.modules["torch"].get_num_threads():
        sys.modules["torch"].set_num_threads(num_threads)


def options(arguments: list[str]) -> list[str]:
    """The interpreter's own: those before -c, -m or the file."""
    rest = words_of_program(arguments)
    return arguments[: len(arguments) - len(rest)]


def words_of_program(arguments: list[str]) -> list[str]:
    at = 0
    while arguments[at] in ("-u", "-B"):
        at += 1
    return arguments[at:]


def take_descriptors(request: Request) -> None:
    """Have the client's descriptors under their numbers, and no others."""
    used = [*request.numbers, *map(int, os.listdir("/proc/self/fd"))]
    first = max(used) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, first) for descriptor in request.descriptors]
    os.closerange(0, first)
    for descriptor, number in zip(moved, request.numbers, strict=True):
        os.dup2(descriptor, number, inheritable=True)
    os.closerange(first, max([first, *moved]) + 1)


def take_from_client(client_pid: int) -> None:
    """Its folder, cores and limits."""
    os.chdir(f"/proc/{client_pid}/cwd")
    os.sched_setaffinity(0, os.sched_getaffinity(client_pid))
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            which = getattr(resource, name)
            limits = resource.prlimit(client_pid, which)
            if limits != resource.getrlimit(which):
                resource.setrlimit(which, limits)


def set_signals(request: Request) -> None:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signum in request.ignored or signum in IGNORED_BY_PYTHON:
            signal.signal(signum, signal.SIG_IGN)
        elif signum == signal.SIGINT:
            signal.signal(signum, signal.default_int_handler)
        elif signal.getsignal(signum) != signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)


def set_environment(environment: dict[bytes, bytes]) -> None:
    os.environb.clear()
    os.environb.update(environment)
    time.tzset()
    tempfile.tempdir = None


def open_streams(unbuffered: bool) -> None:
    descriptors = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))
    streams = [open_stream(number, mode, unbuffered) for number, _, mode in descriptors]
    for (_, name, _), stream in zip(descriptors, streams, strict=True):
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def open_stream(number: int, mode: str, unbuffered: bool) -> io.TextIOWrapper | None:
    """As the interpreter opens it, whose locale is the server's; None where the descriptor is closed."""
    try:
        raw = io.FileIO(number, mode, closefd=False)
    except OSError:
        return None
    raw.name = f"<{('stdin', 'stdout', 'stderr')[number]}>"
    buffer = raw
    if mode == "r":
        buffer = io.BufferedReader(raw)
    elif not unbuffered:
        buffer = io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        buffer,
        encoding=sys.__stdin__.encoding,
        errors="backslashreplace" if number == 2 else sys.__stdin__.errors,
        newline="\n" if mode == "w" else None,
        line_buffering=number == 2 or raw.isatty(),
        write_through=unbuffered,
    )
    stream.mode = mode
    return stream


def run(arguments: list[str], base_path: list[str]) -> None:
    """Run -c CODE, -m MODULE or FILE as __main__."""
    kind, *words = words_of_program(arguments)
    python_path = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [*python_path, *base_path]
    importlib.invalidate_caches()
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    if python_path:
        import_sitecustomize()
    if kind == "-m":
        sys.argv = ["-m", *words[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(words[0])
    elif kind == "-c":
        sys.argv = ["-c", *words[1:]]
        sys.path.insert(0, "")
        exec(compile(words[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [kind, *words]
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
        main.__file__, main.__cached__ = os.path.abspath(kind), None
        with io.open_code(kind) as file:
            code = compile(file.read(), kind, "exec")
        exec(code, main.__dict__)


def import_sitecustomize() -> None:
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise


def run_to_its_end(arguments: list[str], base_path: list[str]) -> int:
    """Returns the exit code, -SIGINT after a KeyboardInterrupt, as the interpreter chooses it."""
    try:
        run(arguments, base_path)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        show(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> None:
    """End as the interpreter does, but for the objects of modules, which it frees: here a second of work."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            if stream is sys.stdout:
                code = CODE_OF_A_FAILED_FLUSH
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def free_nothing_at_exit() -> None:
    """Finalizers of the modules imported here take a third of the time of a fork that does nothing. A fork's own
    run."""
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False


def show(error: BaseException) -> None:
    """As the interpreter does, without the frames of this file."""
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename == __file__:
        shown = shown.tb_next
    sys.excepthook(type(error), error, shown)


def main() -> tuple[Request, list[str], str]:
    folder, listening, control = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    base_path = sys.path[1:]
    sys.path[:] = base_path
    for name in PRELOADED.split():
        importlib.import_module(name)
    sys.modules.pop("sitecustomize", None)  # Debian's: each fork imports its own
    foreign = [name for name in sys.modules if name.partition(".")[0] in OURS]
    if foreign:
        raise RuntimeError(f"imported before the fork: {', '.join(foreign)}")
    executable = f"{folder}/python"
    sys.executable = executable
    import multiprocessing.spawn

    multiprocessing.spawn.set_executable(executable)
    os.fsync = lambda descriptor: None
    os.sync = lambda: None
    os.chdir("/")
    free_nothing_at_exit()
    # A signal that comes before a fork has its own handlers waits for set_signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=listening)
    listener.setblocking(True)
    request = Server(listener, control).serve()
    return request, base_path, executable


if __name__ == "__main__":
    asked, import_path, client = main()
    sys.modules["preloaded_server"] = sys.modules["__main__"]  # its names live as long as the process
    try:
        become(asked, client)
    except BaseException:  # on the server's own stderr, or the client's
        traceback.print_exc()
        os._exit(125)
    end(run_to_its_end(asked.arguments, import_path))
