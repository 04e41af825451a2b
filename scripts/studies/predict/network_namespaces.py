"""Two network namespaces joined by a veth pair of limited bandwidth: a network between machines, on one. Needs root.

from scripts.studies.predict.network_namespaces import joined
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator

from benchmarks.common.system.errors import UserError

NAMES, INTERFACE = tuple(f"predict{os.getpid()}-{end}" for end in "ab"), "joined"


@contextlib.contextmanager
def joined(gbit: float) -> Iterator[tuple[list[list[str]], str]]:
    """(for each end the words that run a command inside, the interface's name) while the context lasts.

    Each end sends at most `gbit` Gb/s (tc's token bucket, tbf). Raises UserError where the kernel or the rights lack.
    """
    try:
        for name in NAMES:
            _ip("netns", "add", name)
        first, second = NAMES
        _ip("link", "add", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE, "netns", second)
        for number, name in enumerate(NAMES, start=1):
            _ip("-n", name, "addr", "add", f"10.83.0.{number}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            # bytes that may leave at once: of 0.1 ms, the kernel's timers are no finer, and some packets
            limit = ["tbf", "rate", f"{1000 * gbit:.0f}mbit", "burst", f"{32 + 12.5 * gbit:.0f}kb", "latency", "100ms"]
            _run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", INTERFACE, "root", *limit])
        yield [["ip", "netns", "exec", name] for name in NAMES], INTERFACE
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(f"{words[0]} is not installed; run: apt-get install iproute2") from None
    if done.returncode:
        why = f"`{' '.join(words)}` failed ({done.stderr.strip()})"
        raise UserError(f"{why}; --gbit needs root and a kernel with veth and tbf")
