"""The one place where something of this package listens to a network.

It does so while ranks meet, and no longer; whoever does not prove that it is one of
them is turned away before a word of it is looked at.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from hpcsgd.comm.tcp import greeting
from hpcsgd.comm.tcp.greeting import Stranger

LOOK = 0.2  # seconds between looks whether it is over
Came = Callable[[socket.socket, str], None]  # who has been let in, and from where


class Doorman:
    """Listens at a port of one address, or of all networks ("", IPv6 too)."""

    def __init__(self, ranks: int, port: int = 0, address: str = "") -> None:
        self._listener = _listen(port, address, 2 * ranks + 16)
        self._over = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        number: int = self._listener.getsockname()[1]
        return number

    def admit(
        self, key: bytes, start: str, came: Came, strange: Callable[[str], None]
    ) -> None:
        """From now on, in a thread; each guest has one of its own, for `came` too."""
        self._listener.settimeout(LOOK)

        def greet(sock: socket.socket, address: str) -> None:
            try:
                sock.settimeout(greeting.PATIENCE)
                greeting.let_in(sock, key, start)
                came(sock, address)
            except (OSError, Stranger, ValueError, KeyError, TypeError) as error:
                sock.close()
                strange(f"{address}, {error}")

        threading.Thread(target=self._serve, args=(greet,), daemon=True).start()

    def close(self) -> None:
        """Nobody is let in any more."""
        self._over.set()
        with suppress(OSError):  # wakes who waits in it, which would hold the port
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, greet: Came) -> None:
        """Looks up now and then: not every system wakes who waits in it."""
        while not self._over.is_set():
            try:
                sock, (address, *_) = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            guest = (sock, plain(address))
            threading.Thread(target=greet, args=guest, daemon=True).start()


def plain(address: str) -> str:
    """An IPv4 address as such, which IPv6 sockets wrap."""
    return address.removeprefix("::ffff:").partition("%")[0]


def _listen(port: int, address: str, backlog: int) -> socket.socket:
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(
                ("", port),
                family=socket.AF_INET6,
                backlog=backlog,
                dualstack_ipv6=True,
            )
    return socket.create_server(("", port), backlog=backlog)
