# The body of the executable that tests take for their interpreter. interpreter.py writes it, below a first line and
# constants: FOLDER, REAL, LANG, LIBRARIES. It runs as `python -IS` and imports built-in modules only: a start must take
# milliseconds.
import _signal
import _socket
import marshal
import posix
import sys

ARGUMENTS = sys.argv[1:]
MODULES = ("benchmarks.", "scripts.", "torch.distributed.run", "horovod.runner.launch", "pytest")
# What is read when an interpreter or a library is loaded, so before a fork.
AT_LOADING = (
    b"LD_PRELOAD FAKETIME SLURM_JOB_ID TORCHINDUCTOR_ TORCHDYNAMO_ TORCH_COMPILE TORCH_LOGS MKL_ KMP_ GOMP_ "
    b"ATEN_ ONEDNN_ DNNL_ LC_ LOGLEVEL"
)
OF_PYTHON = (b"PYTHON", b"PYTHONPATH", b"PYTHONUNBUFFERED", b"PYTHONDONTWRITEBYTECODE", b"PYTHON_EXEC")
NO_SIGNAL_TO_PASS_ON = {
    *(_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU),
    *(_signal.SIGCHLD, _signal.SIGURG, _signal.SIGWINCH, _signal.SIGPIPE, _signal.SIGXFSZ),
}
DUMPS_CORE = (_signal.SIGQUIT, _signal.SIGILL, _signal.SIGABRT, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGSEGV)


def can_be_forked():
    """Whether a fork of the server is what the real interpreter would be."""
    words = ARGUMENTS[:]
    while words and words[0] in ("-u", "-B"):
        del words[0]
    if len(words) > 1 and words[0] == "-m":
        known = words[1].startswith(MODULES)
    else:
        known = bool(words) and (words[0].endswith(".py") or (words[0] == "-c" and len(words) > 1))
    names = posix.environ.keys()
    return (
        known
        and not any(name.startswith(tuple(AT_LOADING.split())) for name in names)
        and not any(name.startswith(b"PYTHON") and name not in OF_PYTHON for name in names)
        and posix.environ.get(b"LANG", b"") == LANG  # noqa: F821
        and posix.environ.get(b"LD_LIBRARY_PATH", b"") == LIBRARIES  # noqa: F821
    )


def inherited_descriptors():
    found = []
    for number in map(int, posix.listdir("/proc/self/fd")):
        try:
            posix.fstat(number)
        except OSError:  # the one that listed them
            continue
        found.append(number)
    return found


def request(descriptors):
    """(arguments, environment, numbers of the descriptors, umask, ignored signals, blocked signals)."""
    mask = posix.umask(0)
    posix.umask(mask)
    ignored = [number for number in range(1, 32) if _signal.getsignal(number) == _signal.SIG_IGN]
    blocked = [int(number) for number in _signal.pthread_sigmask(_signal.SIG_BLOCK, ())]
    return marshal.dumps((ARGUMENTS, posix.environ, descriptors, mask, ignored, blocked))


def end_as(code):
    """End with this exit code; less than 0: by that signal."""
    if code >= 0:
        posix._exit(code)
    if -code in DUMPS_CORE:  # the fork has dumped it
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != _signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (-code,))
    posix.kill(posix.getpid(), -code)
    posix._exit(128 - code)


def main():
    descriptors = inherited_descriptors()
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(FOLDER + "/socket")  # noqa: F821

    def pass_on(number, frame):
        try:  # noqa: SIM105
            server.send(bytes([number]))
        except OSError:  # it has ended
            pass

    content = request(descriptors)
    blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, range(1, 32))  # a signal's byte comes after the request
    for number in set(range(1, 32)) - NO_SIGNAL_TO_PASS_ON:
        # An ignored one, too: the fork begins with it ignored, and may set a handler of its own.
        _signal.signal(number, pass_on)
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if descriptors else []
    server.sendmsg([len(content).to_bytes(4, sys.byteorder)], rights)
    server.sendall(content)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
    answer = server.recv(4)
    if not answer:
        posix.write(2, b"error: the server of preloaded interpreters has ended\n")
        posix._exit(125)
    end_as(int.from_bytes(answer, sys.byteorder, signed=True))


if can_be_forked():
    main()
else:
    posix.execve(REAL, [REAL, *ARGUMENTS], posix.environ)  # noqa: F821
