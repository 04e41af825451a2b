"""Which hosts of HOSTS are other machines, and by which network interface this one reaches them.

    python -m scripts.runner.remote_hosts node0:8,node1:8

Prints the interface, or -, and each other host, in one line.
"""

import socket

import psutil
import tyro

from scripts.shared.programs import run_main_and_exit

ANY_PORT = 9  # nothing is sent there


def remote_hosts(hosts: str) -> tuple[str, list[str]]:
    """(the interface that leads to the first remote host with an address, the remote hosts). hosts: such as a:4,b:4."""
    names_of_own = {each.address: name for name, addresses in psutil.net_if_addrs().items() for each in addresses}
    remote, interface = [], ""
    for host in (each.rpartition(":")[0] for each in hosts.split(",")):
        found = _addresses(host)
        if {address[4][0] for address in found} & names_of_own.keys():
            continue
        remote.append(host)
        interface = interface or next((names_of_own.get(_own_address(address), "") for address in found), "")
    return interface, remote


def _addresses(host: str) -> list[tuple]:
    try:
        return socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # a label of a name that is longer than 63 characters
        return []


def _own_address(address: tuple) -> str:
    """The address of this machine from which packets leave; '' without a route."""
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
    print(interface or "-", *remote)


if __name__ == "__main__":
    run_main_and_exit(lambda: tyro.cli(main, description=__doc__))
