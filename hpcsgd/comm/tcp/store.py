"""The store at which ranks meet: rank 0 listens, and tells all who the others are.

It lives until everybody is there, and what it tells is a word that was drawn for this
meeting, and where each rank can be reached. Whoever does not know the key, or is of
another start (the ranks that a requeued job left behind), is turned away.
"""

import json
import os
import queue
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp import addresses, greeting
from hpcsgd.comm.tcp.addresses import within
from hpcsgd.comm.tcp.doorman import Doorman, plain
from hpcsgd.comm.tcp.greeting import Stranger
from hpcsgd.comm.tcp.key import check_own, key_of
from hpcsgd.comm.tcp.where import REMEDY, Port, SharedFile, start_of
from hpcsgd.errors import ConfigError, TransportError

SECONDS = "HPCSGD_STORE_SECONDS"  # how long ranks wait for each other here
PATIENCE = 120.0
NAMELESS = 5.0  # seconds for which a name may be unknown
NAMED = 8  # ranks that a sentence names


@dataclass(frozen=True)
class Meeting:
    """What all ranks know when they part: a word of theirs, and a row of each."""

    word: str
    rows: list[dict[str, Any]]  # of each rank: addresses, port, node, pid


@dataclass(frozen=True)
class Door:
    """Where the store is, and what opens it."""

    host: str
    ports: tuple[int, ...]
    key: bytes
    start: str


def meet(
    own: Launched, place: Port | SharedFile, row: dict[str, Any], environ: Any
) -> Meeting:
    """Meet all others; every rank says the same sentence where some do not come."""
    limit = patience(environ)
    if own.rank == 0:
        return _host(own, place, row, environ, limit)
    return _visit(own, place, row, environ, limit)


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


def _host(
    own: Launched,
    place: Port | SharedFile,
    row: dict[str, Any],
    environ: Mapping[str, str],
    limit: float,
) -> Meeting:
    """As rank 0."""
    if isinstance(place, SharedFile):
        doorman, key = Doorman(own.size), secrets.token_bytes(32)
        _write(place.path, doorman.port, key)
    else:
        doorman = _open(place, own.size)
        key = key_of(environ)
    desk = Desk(own, row, place)
    try:
        with closing(doorman):
            doorman.admit(key, start_of(environ), desk.greet, desk.turned_away.append)
            return desk.wait(limit)
    finally:
        if isinstance(place, SharedFile):
            with suppress(OSError):
                place.path.unlink()


def _open(place: Port, ranks: int) -> Doorman:
    """At the first port that is free."""
    for port in place.ports:
        with suppress(OSError):
            return Doorman(ranks, port, place.loopback)
    tried = ", ".join(map(str, place.ports))
    raise TransportError(
        f"rank 0 cannot listen at port {tried} of {socket.gethostname()}: another"
        f" program does; {REMEDY}"
    )


def _write(path: Path, port: int, key: bytes) -> None:
    """Whole or not at all, in the place of what an earlier start has left."""
    said = {
        "addresses": addresses.own_addresses(),
        "node": socket.gethostname(),
        "port": port,
        "key": key.hex(),
    }
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as out:
            json.dump(said, out)
        os.replace(fresh, path)
    except OSError as error:
        raise ConfigError(
            f"rank 0 cannot write where it is into {path}: {error.strerror}; name a"
            " file in a folder that all ranks see"
        ) from error


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


def _visit(
    own: Launched,
    place: Port | SharedFile,
    row: dict[str, Any],
    environ: Mapping[str, str],
    limit: float,
) -> Meeting:
    """As any other rank: find the store, say who we are, wait until all are there."""
    sock, at = _find(own, place, environ, limit)
    with sock:
        try:
            sock.settimeout(None)
            mine = {**row, "addresses": [*row["addresses"]]}
            greeting.say(sock, {"rank": own.rank, "size": own.size, "row": mine})
            sock.settimeout(limit + greeting.PATIENCE)
            said = greeting.hear(sock)
        except (OSError, Stranger) as error:
            raise TransportError(
                f"rank 0 left {place} before all ranks had met; its own error says more"
            ) from error
    if "error" in said:
        failed = TransportError(said["error"])
        failed.on_all_ranks = True  # rank 0 says it
        raise failed
    if not said["rows"][0]["named"]:
        said["rows"][0]["addresses"].insert(0, at)
    return Meeting(said["word"], said["rows"])


def _find(
    own: Launched, place: Port | SharedFile, environ: Mapping[str, str], limit: float
) -> tuple[socket.socket, str]:
    """A connection to the store, and the address at which it is."""
    key = None if isinstance(place, SharedFile) else key_of(environ)
    why = "nobody listens there"
    for passed in within(limit):
        for address, door in _doors(place, key, environ):
            try:
                greet = _greeting(door)
                sock = addresses.reach([address], door.ports[0], greet)
                return sock, plain(sock.getpeername()[0])
            except (OSError, Stranger) as error:
                why = str(error) if isinstance(error, Stranger) else _plainly(error)
                if isinstance(error, socket.gaierror) and passed > NAMELESS:
                    addresses.check_name(address, REMEDY)
                if isinstance(error, Stranger | TimeoutError) and key is None:
                    break  # it was left by an earlier start: look at the file again
    if isinstance(place, Port):
        addresses.check_name(place.host, REMEDY)
    elif not place.path.exists():
        why = "there is no such file"
    raise TransportError(
        f"rank {own.rank} of {own.size} found no rank 0 at {place} within {limit:g} s"
        f" ({why}); see whether rank 0 runs and the network lets ranks meet there, or"
        f" {REMEDY}"
    )


def _greeting(door: Door) -> Any:
    return lambda sock: greeting.ask_in(sock, door.key, door.start)


def _doors(
    place: Port | SharedFile, key: bytes | None, environ: Mapping[str, str]
) -> list[tuple[str, Door]]:
    """Every address and port at which the store may be now."""
    start = start_of(environ)
    if isinstance(place, Port):
        assert key is not None
        return [
            (place.host, Door(place.host, (port,), key, start)) for port in place.ports
        ]
    with suppress(OSError):
        os.listdir(place.path.parent)  # a network's file system looks again
    try:
        check_own(place.path)
        said = json.loads(place.path.read_text())
        door = Door("", (said["port"],), bytes.fromhex(said["key"]), start)
        here = said["node"] == socket.gethostname()
        found = ["127.0.0.1", *said["addresses"]] if here else said["addresses"]
        return [(address, door) for address in [*found, said["node"]]]
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _plainly(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _whom(said: dict[str, Any]) -> str:
    row = said["row"]
    return f"process {row['pid']} on {row['host']}"
