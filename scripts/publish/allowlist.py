"""What a published set may say. Every file is searched, and what is not allowed is named with its line.

    lines = not_allowed(folder, local_names())

Only files of known kinds are allowed. Addresses may be of the few hosts that charts and reports name. Paths may be
those of the system, which are the same everywhere. A user at a host is not allowed, nor is a name of this machine or of
its user. Needs no torch.
"""

import contextlib
import getpass
import ipaddress
import os
import re
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from scripts.publish.public_paths import public_arguments, public_path
from scripts.runner.environment import PACKAGES

# Beginnings of tokens: GitHub, GitLab, Hugging Face, OpenAI, Amazon, Slack, PyPI, NVIDIA, Google, npm, Stripe. Parts
# of a JSON Web Token (RFC 7519) begin with {" in base64.
TOKEN = re.compile(
    r"(?<![\w-])(?:(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|A[KS]IA|xox[abepr]-|pypi-AgE|nvapi-|AIza|npm_|[rs]k_live_)[\w-]{16,}"
    r"|ya29\.[\w-]{16,}"
    r"|eyJ[\w-]+\.eyJ[\w-]+)"
)
TEXTS = (".csv", ".json", ".html", ".md", ".tex", ".svg")
MOST_FAULTS = 20
# Hosts of the addresses in charts, in XML's names and in reports' own sentences.
HOSTS = ("www.w3.org", "matplotlib.org", "purl.org", "creativecommons.org", "github.com", "arxiv.org", "doi.org")
# The same on every machine. People have folders of their own in /opt, /usr/local, /etc and /dev/shm.
OF_THE_SYSTEM = ("/usr/bin/", "/usr/lib/", "/usr/include/", "/lib/", "/bin/", "/proc/", "/sys/", "/dev/null")
# With a scheme, or as a page takes one: //host/x, www.host.
ADDRESS = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*://|(?<![\w/.~*:-])//(?=[\w\[%.@])|(?<![\w/.@-])www\.)[^\s\"'<>()\\]*", re.ASCII
)
USER_AT = re.compile(r"[\w.%+:-]+@[\w-]*[A-Za-z0-9][\w.-]*", re.ASCII)
AFTER_OPTION = r"(?<=[\s\"'`=,(\[]-[A-Za-z])|(?<=-isystem)|(?<=-iquote)|(?<=-idirafter)|(?<=-include)"
"""Where a path begins in a compiler's word: -I/x, -isystem/x."""
# Of a user, which is a path behind any letter. Windows' users have theirs, too.
HOME_FOLDER = re.compile(r"(?:/(?:home|Users|root)/|[A-Za-z]:\\{1,2}Users\\{1,2})[\w.@+~-]+")
# At the beginning of a word, since images/s is no path, in a compiler's word, and in <...> where it is no tag of HTML.
# Of relative ones only those with ./ or ../ in front can be told from other words; ./bench is the suite's own command.
PATH_PATTERN = re.compile(
    rf"(?:(?<=[\s\"'`=:,;(\[{{|>])|{AFTER_OPTION}|(?<=<)(?=/[\w.@+~-]+/)|^)(?!\./bench\b)"
    r"(?:~[\w-]*|[A-Z]:|\.\.?)?/[\w.@+~-][\w.@+~/-]*"
)
# Of four numbers, but for a version, name==1.2.3.4; at a sentence's end, too.
IP = re.compile(r"(?<![\w.])(?<!==)(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?(?!\w|\.\w)")
# A host's name and a port, such as node17:29400. The number of a line in Python's code is no port.
HOST_PORT = re.compile(
    r"(?<![\w./:@-])(?!localhost:)[A-Za-z][\w-]*(?:\.[\w-]+)*(?<!\.py):\d{4,5}(?![\w:]|\.\d)", re.ASCII
)
# A host's name without a port, where its last part is one of private networks. Others cannot be told from names of
# files and of Python's modules.
HOST_NAME = re.compile(
    r"(?<![\w./@%\\-])(?!(?:threading\.local|scipy\.cluster)\b)[A-Za-z][\w-]*(?:\.[\w-]+)*"
    r"\.(?:local|localdomain|internal|intranet|lan|corp|home|private|cluster|svc)(?![\w(-]|\.\w)",
    re.ASCII,
)
SSH_HOST = re.compile(r"`ssh [\w.-]+`")  # in the reason of horovod_ddp.sh for skipping a run
MAYBE_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*(?![\w:])")
JSON_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/])|[bfnrt])')
COMMON = {"root", "user", "users", "home", "ubuntu", "admin", "debian", "localhost", "runner", "test", "nobody"}
PACKAGE_VERSION = re.compile(r"[0-9][\w.+-]{0,40}", re.ASCII)
PEAK = ("device_name", "threads", "tflops", "passes")
# Lines of torch's collect_env, the first part of lscpu's among them. Any other line is left out.
COLLECTED = re.compile(
    r"(?:(?:PyTorch|GCC|Clang|CMake|Libc|Python|CUDA runtime|Nvidia driver|cuDNN|HIP runtime|MIOpen runtime) version"
    r"|Is (?:debug build|(?:CUDA|XPU|XNNPACK) available)|(?:CUDA|ROCm SDK|HIP) used to build PyTorch|OS|Python platform"
    r"|CUDA_MODULE_LOADING set to|GPU models and configuration|GPU \d+|Caching allocator config|CPU|Architecture"
    r"|CPU op-mode\(s\)|Address sizes|Byte Order|(?:On-line |Off-line )?CPU\(s\)(?: list)?|Vendor ID|BIOS Vendor ID"
    r"|(?:BIOS )?Model name|(?:BIOS )?CPU family|Model"
    r"|(?:Thread|Core|Socket|Cluster)\(s\)(?: per (?:core|socket))?"
    r"|Stepping|Frequency boost|CPU(?:\(s\))? (?:max|min|scaling) MHz|BogoMIPS|Flags|Virtualization(?: type)?"
    r"|Hypervisor vendor|L\d[di]? cache|NUMA node\(s\)|NUMA node\d+ CPU\(s\)|Vulnerability [\w ]+"
    r"|Versions of relevant libraries):.*"
    r"|\[(?:pip3|conda)\] (?:Could not collect|[\w.-]+(?:==| +)[0-9][\w.+-]*(?: +[\w.+-]+){0,2})"
)
ENVIRONMENT = (
    "schema", "platform", "python", "num_cores", "memory_gb", "packages", "variables", "measured_peak", "collect_env",
)  # fmt: skip
PUBLISHED_VARIABLES = (
    "NPROC", "NUM_GPUS", "THREADS_PER_RANK", "CONFIG", "DATA", "ARGS", "CUDA_VISIBLE_DEVICES", "TIMEOUT", "NODES",
    "TASKS_PER_NODE", "GPUS_PER_NODE", "CPUS_PER_TASK", "PARTITION", "TIME", "NNODES", "NODE_RANK", "ALLOCATION",
    "CONTAINER",
)  # fmt: skip


def is_of_the_system(path: str) -> bool:
    return path.startswith(OF_THE_SYSTEM) and "/.." not in path


def local_names() -> set[str]:
    """Names of this machine, of its user, and of the machines that its files of hosts list, which a set may not say.
    Common words are left out."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0], Path.home().name, os.environ.get("USER", "")}
    with contextlib.suppress(OSError, KeyError):  # an unknown uid
        names.add(getpass.getuser())
    names |= _listed_hosts()
    return {name for name in names if len(name) > 2 and name.lower() not in COMMON}


def _listed_hosts() -> set[str]:
    """The names in /etc/hosts and, where they are not hashed, in ssh's known_hosts. HOSTS are left out."""
    found: set[str] = set()
    for path, column in ((Path("/etc/hosts"), slice(1, None)), (Path.home() / ".ssh/known_hosts", slice(0, 1))):
        with contextlib.suppress(OSError):
            lines = (line.partition("#")[0].split() for line in path.read_text(errors="replace").splitlines())
            found |= {
                re.sub(r"^\[|\](:\d+)?$", "", name) for line in lines for name in ",".join(line[column]).split(",")
            }
    names = {name for name in found if re.fullmatch(r"[A-Za-z][\w.-]*", name, re.ASCII) and name not in HOSTS}
    return {name for name in names if not name.startswith(("localhost", "ip6-"))}


def allowed_environment(environment: dict, names: set[str]) -> dict:
    """What a set may say of environment.json: known keys, known variables, versions of the packages, and those lines
    of collect_env that torch writes and that hold nothing private. collect_env is a long text of torch.utils."""
    kept = {key: value for key, value in environment.items() if key in ENVIRONMENT}
    if isinstance(kept.get("variables"), dict):
        variables = {name: text for name, text in kept["variables"].items() if name in PUBLISHED_VARIABLES}
        kept["variables"] = {name: _without_folders(name, text) for name, text in variables.items()}
    if isinstance(kept.get("collect_env"), str):
        lines = kept["collect_env"].splitlines()
        known = (line for line in lines if not line or COLLECTED.fullmatch(line))
        kept["collect_env"] = "\n".join(line for line in known if not [*faults_in_line(line, names)])
    if isinstance(kept.get("packages"), dict):
        versions = {name: kept["packages"].get(name) for name in PACKAGES if name in kept["packages"]}
        kept["packages"] = {
            name: text for name, text in versions.items() if text is None or PACKAGE_VERSION.fullmatch(str(text))
        }
    if isinstance(kept.get("measured_peak"), dict):
        kept["measured_peak"] = {name: value for name, value in kept["measured_peak"].items() if name in PEAK}
    return kept


def _without_folders(name: str, value: object) -> object:
    """The value of a variable without the user's folders, which relative paths name, too."""
    if not isinstance(value, str):
        return value
    if name == "ARGS":
        return public_arguments(value)
    if name == "CUDA_VISIBLE_DEVICES":  # a device's identifier is that of one card in the world
        return re.sub(r"\b(GPU|MIG)-[\w/-]+", r"\1-...", value)
    return public_path(value) if name in ("CONFIG", "DATA") else value


def not_allowed(folder: Path, names: set[str]) -> list[str]:
    """A line for each thing in the files of `folder` that a set may not say: file, line, and what it is."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            found.append(f"{name} is a link or no regular file")
        elif path.is_file():
            found += [f"{name}{place}: {what}" for place, what in _of_file(path, names)]
    more = [f"and {len(found) - MOST_FAULTS} more"] if len(found) > MOST_FAULTS else []
    return found[:MOST_FAULTS] + more


def _of_file(path: Path, names: set[str]) -> Iterator[tuple[str, str]]:
    if path.suffix in TEXTS:
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            # JSON writes é as \u00e9. Other texts may have backslashes of their own.
            both = [*faults_in_line(line, names), *faults_in_line(without_json_escapes(line), names)]
            for what in dict.fromkeys(both):
                yield f", line {number}", what
    elif path.suffix in (".png", ".pdf"):
        texts = _texts_of_png(path.read_bytes()) if path.suffix == ".png" else _texts_of_pdf(path.read_bytes())
        for text in texts:
            for what in faults_in_line(text, names):
                yield ", in its metadata", what
    else:
        yield "", "a set has no files of this kind"


def without_json_escapes(line: str) -> str:
    """The line with the characters that JSON's escapes stand for (RFC 8259, 7), a space for those of white space."""
    plain = JSON_ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2] or " ", line)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # two escapes of one character


def faults_in_line(line: str, names: set[str]) -> Iterator[str]:
    """What a line may not say, each with the beginning of the text."""
    for found in ADDRESS.finditer(line):
        rest = re.sub(r"^[A-Za-z0-9+.-]*:?//", "", found[0])
        if "@" in rest:
            yield f"an address with a user or a password ({found[0].removesuffix(rest)}...)"
        elif not rest.startswith(tuple(f"{host}/" for host in HOSTS)) and rest not in HOSTS:
            yield f"an address ({found[0][:40]})"
    if user := USER_AT.search(ADDRESS.sub("", line)):
        yield f"a user or a token at a host (...@{user[0].rpartition('@')[2][:20]})"
    paths = [found[0] for found in PATH_PATTERN.finditer(ADDRESS.sub("", line)) if not is_of_the_system(found[0])]
    for path in paths or HOME_FOLDER.findall(ADDRESS.sub("", line)):
        yield f"a path ({path[:40]})"
    for found in IP.finditer(line):
        if not found[0].startswith("127.") and all(int(part) < 256 for part in found[0].partition(":")[0].split(".")):
            yield f"an address of a machine ({found[0]})"
    for found in HOST_PORT.finditer(ADDRESS.sub("", line)):
        yield f"an address of a machine ({found[0][:40]})"
    for found in SSH_HOST.finditer(line):
        yield f"the name of a machine ({found[0][:40]})"
    for found in HOST_NAME.finditer(ADDRESS.sub("", line)):
        yield f"the name of a machine ({found[0][:40]})"
    for found in MAYBE_IPV6.finditer(line):
        if _is_ipv6_of_a_machine(found[0]):
            yield f"an address of a machine ({found[0]})"
    for found in TOKEN.finditer(line):
        yield f"a token ({found[0][:6]}...)"
    lower = line.lower()
    for name in names:
        if name.lower() in lower and re.search(
            rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", line, re.IGNORECASE
        ):
            yield "a name of this machine, of its user, or of a machine that it knows"


def _is_ipv6_of_a_machine(text: str) -> bool:
    with contextlib.suppress(ValueError):
        address = ipaddress.IPv6Address(text)
        return not (address.is_loopback or address.is_unspecified)
    return False


def _texts_of_png(content: bytes) -> Iterator[str]:
    """The texts in a PNG's chunks (PNG, third edition, 11.3.3)."""
    at = 8
    while at + 8 <= len(content):
        (length,), kind = struct.unpack(">I", content[at : at + 4]), content[at + 4 : at + 8]
        data = content[at + 8 : at + 8 + length]
        if kind in (b"tEXt", b"iTXt", b"eXIf"):
            yield data.replace(b"\0", b" ").decode("utf-8", "replace")
        elif kind == b"zTXt":
            key, _, packed = data.partition(b"\0")
            yield f"{key.decode('latin-1')} {zlib.decompress(packed[1:]).decode('latin-1')}"
        at += length + 12


def _texts_of_pdf(content: bytes) -> Iterator[str]:
    """What a PDF says outside of its streams: who made it, of what, with what."""
    outside = re.sub(rb"stream\r?\n.*?endstream", b"", content, flags=re.DOTALL)
    for found in re.finditer(rb"\((?:[^()\\]|\\.)*\)", outside, re.DOTALL):
        yield found[0].decode("latin-1")
