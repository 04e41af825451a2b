"""Two network namespaces joined by a veth pair with limited bandwidth: a network between two machines, on one machine.

Needs root.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator

from benchmarks.common.system.errors import UserError

NAMESPACES = tuple(f"predict{os.getpid()}-{end}" for end in "ab")
INTERFACE = "joined"


@contextlib.contextmanager
def joined_namespaces(gbit: float) -> Iterator[tuple[list[list[str]], str]]:
    """While the context lasts: (for each namespace the words before a command that runs in it, the interface's name).

    Each namespace sends at most `gbit` Gb/s (tc's token bucket filter, tbf). Raises UserError where the kernel or the
    user's rights do not allow this.
    """
    try:
        for namespace in NAMESPACES:
            _ip("netns", "add", namespace)
        first, second = NAMESPACES
        _ip("link", "add", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE, "netns", second)
        for number, namespace in enumerate(NAMESPACES, start=1):
            _ip("-n", namespace, "addr", "add", f"10.83.0.{number}/24", "dev", INTERFACE)
            _ip("-n", namespace, "link", "set", INTERFACE, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
            # The burst is what 0.1 ms sends, since the kernel's timers are no finer, and some packets more.
            limit = ["tbf", "rate", f"{1000 * gbit:.0f}mbit", "burst", f"{32 + 12.5 * gbit:.0f}kb", "latency", "100ms"]
            _run(["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", INTERFACE, "root", *limit])
        yield [["ip", "netns", "exec", namespace] for namespace in NAMESPACES], INTERFACE
    finally:
        for namespace in NAMESPACES:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed; run: apt-get install iproute2") from None
    if done.returncode:
        why = f"`{' '.join(command)}` failed ({done.stderr.strip()})"
        raise UserError(f"{why}; --gbit needs root and a kernel with veth and tbf")
