"""Which hosts of HOSTS are other machines, and by which network interface this one reaches them.

    python -m scripts.runner.remote_hosts node0:8,node1:8

Prints the interface's name, which is empty where all hosts are this machine, and then each other host, one a line.
launchers/horovod_ddp.sh gives the interface to horovodrun: left to find one, horovodrun starts a server that listens on
all interfaces and unpickles what comes with a key, and the key stands in the command lines of ssh, which all users can
read. Exit code: 2 for a host without an address, or one that no interface leads to. Needs no torch.
"""

import socket

import psutil
import tyro

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.programs import run_main_and_exit

ANY_PORT = 9  # nothing is sent there


def remote_hosts(hosts: str) -> tuple[str, list[str]]:
    """(the interface that leads to the first remote host, the names of the remote hosts); ("", []) without any.

    hosts: such as a:4,b:4. Raises UserError for a host without an address, and for one that no interface leads to.
    """
    names_of_own = {each.address: name for name, addresses in psutil.net_if_addrs().items() for each in addresses}
    remote: dict[str, tuple] = {}
    for host in (each.rpartition(":")[0] for each in hosts.split(",")):
        found = _addresses(host)
        if not {str(address[4][0]) for address in found} & names_of_own.keys():
            remote[host] = found[0]
    if not remote:
        return "", []
    first, address = next(iter(remote.items()))
    interface = names_of_own.get(_own_address(address), "")
    if not interface:
        raise UserError(f"no network interface leads to {first} of HOSTS; correct it, or name one: GLOO_SOCKET_IFNAME")
    return interface, [*remote]


def _addresses(host: str) -> list:
    try:
        return socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise UserError(f"HOSTS names {host!r}, which has no address here ({error.strerror}); correct it") from None


def _own_address(address: tuple) -> str:
    """The address of this machine from which packets to that one leave; '' where no route leads there."""
    family, kind, protocol, _, place = address
    with socket.socket(family, kind, protocol) as probe:
        try:
            probe.connect(place)  # of a datagram socket: chooses the route, and sends nothing
        except OSError:
            return ""
        own: str = probe.getsockname()[0]
        return own


def main(hosts: str, /) -> None:
    interface, remote = remote_hosts(hosts)
    print(interface, *remote, sep="\n")


if __name__ == "__main__":
    run_main_and_exit(lambda: tyro.cli(main, description=__doc__), errors=(UserError,))
