"""Two connections between any two ranks: one for words, one for letters."""

import os
import platform
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import hpcsgd
from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp import addresses, greeting
from hpcsgd.comm.tcp.desk import Meeting, patience
from hpcsgd.comm.tcp.doorman import Doorman
from hpcsgd.comm.tcp.greeting import Stranger
from hpcsgd.comm.tcp.store import meet
from hpcsgd.comm.tcp.where import LOOPBACK, Port, SharedFile
from hpcsgd.comm.usage import node
from hpcsgd.errors import TransportError

WORDS, LETTERS = 0, 1  # channels


@dataclass
class Mesh:
    """This rank's ends, by rank of the other end."""

    own: Launched
    place: Port | SharedFile
    rows: list[dict[str, Any]]
    words: dict[int, socket.socket] = field(default_factory=dict)
    letters: dict[int, socket.socket] = field(default_factory=dict)

    def whom(self, rank: int) -> str:
        """A rank as a sentence names it."""
        row = self.rows[rank]
        return f"rank {rank} of {self.own.size} (process {row['pid']} on {row['host']})"


def connect_all(
    own: Launched, place: Port | SharedFile, environ: Mapping[str, str] = os.environ
) -> Mesh:
    """Meet at the store, then connect any two ranks; called by all."""
    addresses.have_room(3 * own.size)
    only = place.loopback if isinstance(place, Port) else ""
    with closing(Doorman(own.size, address=only)) as doorman:
        row = _row(doorman.port, only)
        meeting = meet(own, place, row, environ)
        mesh = Mesh(own, place, meeting.rows)
        _Connecting(mesh, meeting).run(doorman, patience(environ))
    for sock in (*mesh.words.values(), *mesh.letters.values()):
        addresses.prepare(sock)
        sock.setblocking(False)
    return mesh


def _row(port: int, only: str) -> dict[str, Any]:
    """What the others should know of this rank."""
    return {
        "addresses": [only] if only else addresses.own_addresses(),
        "named": addresses.ADDRESS in os.environ,  # it knows best how it is reached
        "port": port,
        "node": node(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": hpcsgd.__version__,
        "python": platform.python_version(),
    }


class _Connecting:
    """Connects to all lower ranks while a thread lets in the higher ones."""

    def __init__(self, mesh: Mesh, meeting: Meeting) -> None:
        self.mesh, self.rank = mesh, mesh.own.rank
        self._key, self._rows = bytes.fromhex(meeting.word), meeting.rows
        self._changed = threading.Condition()

    def run(self, doorman: Doorman, limit: float) -> None:
        """Until all connections are there; of strangers nothing is kept."""
        doorman.admit(self._key, str(self.rank), self._came, lambda _: None)
        for other in range(self.rank):
            for channel in (WORDS, LETTERS):
                self._keep(other, channel, self._reach(other, channel))
        self._wait(limit)

    def _wait(self, limit: float) -> None:
        """For the higher ranks."""
        with self._changed:
            higher = range(self.rank + 1, self.mesh.own.size)
            come = self._changed.wait_for(
                lambda: (
                    all(r in self.mesh.letters for r in higher)
                    and all(r in self.mesh.words for r in higher)
                ),
                timeout=limit,
            )
        if not come:
            missing = [self.mesh.whom(r) for r in higher if r not in self.mesh.letters]
            raise TransportError(
                f"{missing[0]} did not connect to rank {self.rank} on"
                f" {socket.gethostname()} within {limit:g} s; its own error says more,"
                f" and {addresses.ADDRESS} names the address by which a node is reached"
            )

    def _reach(self, other: int, channel: int) -> socket.socket:
        row = self._rows[other]

        def greet(sock: socket.socket) -> None:
            greeting.ask_in(sock, self._key, str(other))
            greeting.say(sock, [self.rank, channel])

        tried = list(dict.fromkeys(self._addresses(row)))
        for attempt in range(3):
            try:
                return addresses.reach(tried, row["port"], greet)
            except (OSError, Stranger) as error:
                why = str(error)
                time.sleep(0.2 * attempt)
        raise TransportError(
            f"rank {self.rank} on {socket.gethostname()} cannot reach"
            f" {self.mesh.whom(other)} at {', '.join(tried)} port {row['port']}"
            f" ({why}); set {addresses.ADDRESS} on each node to the address by which"
            " the others reach it"
        )

    def _addresses(self, row: dict[str, Any]) -> list[str]:
        """The likeliest first: this node itself, then what the store has seen."""
        far = [one for one in row["addresses"] if not addresses.is_loopback(one)]
        near = [LOOPBACK, *row["addresses"]]
        return [*near, *far] if row["node"] == node() else [*far, *near]

    def _came(self, sock: socket.socket, _: str) -> None:
        other, channel = greeting.hear(sock)
        self._keep(other, channel, sock)

    def _keep(self, other: int, channel: int, sock: socket.socket) -> None:
        with self._changed:
            kept = self.mesh.letters if channel == LETTERS else self.mesh.words
            kept[other] = sock
            self._changed.notify_all()
