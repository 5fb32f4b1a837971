"""Who has come to the store so far: kept by rank 0, which tells all how it ended."""

import queue
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp import greeting
from hpcsgd.comm.tcp.where import Port, SharedFile
from hpcsgd.errors import ConfigError, TransportError

SECONDS = "HPCSGD_STORE_SECONDS"  # how long ranks wait for each other here
PATIENCE = 120.0
NAMED = 8  # ranks that a sentence names


@dataclass(frozen=True)
class Meeting:
    """What all ranks know when they part: a word of theirs, and a row of each."""

    word: str
    rows: list[dict[str, Any]]  # of each rank: addresses, port, node, pid


def patience(environ: Mapping[str, str]) -> float:
    """Seconds that ranks wait for each other."""
    said = environ.get(SECONDS, "")
    try:
        found = float(said or PATIENCE)
    except ValueError:
        found = 0.0
    if not 0.0 < found < 1e6:
        raise ConfigError(f"{SECONDS} = {said!r} must be seconds above 0")
    return found


class Desk:
    """Who has come so far; each connection has a thread until it has said who it is."""

    def __init__(
        self, own: Launched, row: dict[str, Any], place: Port | SharedFile
    ) -> None:
        self.own, self.place = own, place
        self.rows: dict[int, dict[str, Any]] = {0: row}
        self.turned_away: list[str] = []
        self._socks: dict[int, socket.socket] = {}
        self._all_socks: list[socket.socket] = []
        self._news: queue.Queue[tuple[str, Any, socket.socket]] = queue.Queue()

    def greet(self, sock: socket.socket, address: str) -> None:
        """In a thread: one that has proved itself says who it is, and waits."""
        said = greeting.hear(sock)
        if not said["row"]["named"]:
            said["row"]["addresses"].insert(0, address)
        self._news.put(("came", said, sock))
        with suppress(OSError):
            sock.settimeout(None)
            sock.recv(1)  # it says nothing more: this is its end
        self._news.put(("left", said, sock))

    def wait(self, limit: float) -> Meeting:
        """Until all are here, or somebody is one too many, or the time is over."""
        end = time.monotonic() + limit
        try:
            while len(self.rows) < self.own.size:
                try:
                    left = max(0.0, end - time.monotonic())
                    self._take(*self._news.get(timeout=left))
                except queue.Empty:
                    raise TransportError(self._late(limit)) from None
        except TransportError as error:
            self._tell({"error": str(error)})
            raise
        word = secrets.token_hex(32)
        rows = [self.rows[rank] for rank in range(self.own.size)]
        self._tell({"word": word, "rows": rows})
        return Meeting(word, rows)

    def _take(self, what: str, said: Any, sock: socket.socket) -> None:
        rank = said["rank"]
        if what == "left":
            if self._socks.get(rank) is sock:
                raise TransportError(
                    f"rank {rank} ({_whom(said)}) ended before all ranks had met; its"
                    " own error says more"
                )
            return
        self._all_socks.append(sock)
        wrong = self._wrong(said)
        if wrong:
            raise TransportError(wrong)
        self.rows[rank] = said["row"]
        self._socks[rank] = sock

    def _wrong(self, said: dict[str, Any]) -> str:
        """Why it cannot be one of us; "" where it can."""
        rank, size, row = said["rank"], said["size"], said["row"]
        mine = self.rows[0]
        if size != self.own.size or not 0 <= rank < size:
            return (
                f"rank 0 is one of {self.own.size} and {_whom(said)} is rank {rank} of"
                f" {size}; start all ranks by one launcher"
            )
        if rank in self.rows:
            both = f"{_whom({'row': self.rows[rank]})} and {_whom(said)}"
            return (
                f"two processes are rank {rank} of {size}: {both}; start each rank"
                " once, and two jobs with a meeting place each"
            )
        for name in ("version", "python"):
            if row[name] != mine[name]:
                return (
                    f"rank {rank} has {name} {row[name]} and rank 0 {mine[name]}; use"
                    " one installation on all nodes"
                )
        return ""

    def _late(self, limit: float) -> str:
        missing = [r for r in range(self.own.size) if r not in self.rows]
        shown = ", ".join(map(str, missing[:NAMED]))
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        away = f" (turned away: {self.turned_away[-1]})" if self.turned_away else ""
        ranks = "ranks" if len(missing) > 1 else "rank"
        return (
            f"{ranks} {shown}{more} of {self.own.size} did not come to {self.place}"
            f" within {limit:g} s{away}; their own errors say more, {SECONDS} allows"
            " more time"
        )

    def _tell(self, document: Any) -> None:
        for sock in self._all_socks:
            with suppress(OSError):
                greeting.say(sock, document)


def _whom(said: dict[str, Any]) -> str:
    row = said["row"]
    return f"process {row['pid']} on {row['host']}"
