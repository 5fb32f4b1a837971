"""Addresses of this node, and connections to others."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from hpcsgd.comm.tcp.doorman import plain
from hpcsgd.comm.tcp.greeting import PATIENCE, Stranger
from hpcsgd.errors import TransportError

ADDRESS = "HPCSGD_ADDRESS"  # of this node, where it has several and one is meant
CONNECTING = 3.0  # seconds for one address to answer
SIOCGIFADDR = 0x8915
# Nobody has these: the system says by which of its own addresses it would go there.
ANYWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


def own_addresses() -> list[str]:
    """What others may reach this node by, the likeliest first; no name is looked up."""
    said = os.environ.get(ADDRESS)
    found = [said] if said else [*_routed(), *_of_interfaces()]
    return [one for one in dict.fromkeys(found) if said or not is_loopback(one)]


def is_loopback(address: str) -> bool:
    """True for addresses of the node itself."""
    return address.startswith("127.") or address == "::1"


def reach(
    addresses: Iterable[str], port: int, greet: Callable[[socket.socket], None]
) -> socket.socket:
    """A connection to the first of them at which `greet` finds whom it looks for.

    Where there is none the likeliest address has the word on why.
    """
    failed: list[Exception] = []
    for address in addresses:
        try:
            sock = socket.create_connection((address, port), CONNECTING)
        except OSError as error:
            failed.append(error)
            continue
        try:
            sock.settimeout(PATIENCE)
            greet(sock)
            return sock
        except (OSError, Stranger) as error:
            sock.close()
            failed.append(error)
    raise failed[0] if failed else OSError("no address is known")


def prepare(sock: socket.socket) -> None:
    """No waiting for more to send; a node that is lost is noticed in the end."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_name(host: str, remedy: str) -> None:
    """Refuse a host that nobody knows."""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise TransportError(
            f"the name {host} of rank 0's node is not known on"
            f" {socket.gethostname()} ({error}); {remedy}"
        ) from error


def have_room(sockets: int) -> None:
    """Raise the limit of open files where so many would not fit."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sockets + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < needed:
            raise TransportError(
                f"{sockets} connections are needed and this process may open {hard}"
                " files; raise the limit (ulimit -n), or use ranks of MPI"
            )


def within(seconds: float, pause: float = 0.05) -> Iterable[float]:
    """Again and again until the time is over: how long it is since the beginning."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        yield passed
        time.sleep(min(pause, max(0.0, seconds - passed)))
        pause = min(1.5 * pause, 0.5)


def _routed() -> Sequence[str]:
    found = []
    for family, there in ANYWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((there, 9))  # of a datagram: nothing is sent
            found.append(plain(sock.getsockname()[0]))
    return found


def _of_interfaces() -> Sequence[str]:
    """IPv4 alone; Linux alone."""
    found: list[str] = []
    with suppress(ImportError, OSError):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _, name in socket.if_nameindex():
                asked = struct.pack("256s", name.encode()[:15])
                with suppress(OSError):
                    said: Any = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, asked)
                    found.append(socket.inet_ntoa(said[20:24]))
    return found
