"""How a rank other than 0 finds the store, and waits there until all have come."""

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp import addresses, greeting
from hpcsgd.comm.tcp.addresses import within
from hpcsgd.comm.tcp.desk import Meeting
from hpcsgd.comm.tcp.doorman import plain
from hpcsgd.comm.tcp.greeting import Stranger
from hpcsgd.comm.tcp.key import check_own, key_of
from hpcsgd.comm.tcp.where import LOOPBACK, REMEDY, Port, SharedFile, start_of
from hpcsgd.errors import ConfigError, TransportError

NAMELESS = 5.0  # seconds for which a name may be unknown


@dataclass(frozen=True)
class Door:
    """Where the store is, and what opens it."""

    port: int
    key: bytes
    start: str


def visit(
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
        except TimeoutError as error:
            raise TransportError(
                f"rank {own.rank} on {socket.gethostname()} was let in by rank 0 at"
                f" {at} and has heard nothing of it since; see whether rank 0 is"
                " stopped, or the network between the two is down"
            ) from error
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
    why, away = "nobody listens there", ""
    for passed in within(limit):
        for address, door in _doors(place, key, environ):
            try:
                greet = _greeting(door)
                sock = addresses.reach([address], door.port, greet)
                return sock, plain(sock.getpeername()[0])
            except (OSError, Stranger) as error:
                if isinstance(error, Stranger):
                    why = away = str(error)
                else:
                    why = away or _plainly(error)  # nobody elsewhere says less
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


def _greeting(door: Door) -> Callable[[socket.socket], None]:
    return lambda sock: greeting.ask_in(sock, door.key, door.start)


def _doors(
    place: Port | SharedFile, key: bytes | None, environ: Mapping[str, str]
) -> list[tuple[str, Door]]:
    """Every address and port at which the store may be now."""
    start = start_of(environ)
    if isinstance(place, Port):
        assert key is not None
        return [(place.host, Door(port, key, start)) for port in place.ports]
    with suppress(OSError):
        os.listdir(place.path.parent)  # a network's file system looks again
    try:
        check_own(place.path)
        said = json.loads(place.path.read_text())
        door = Door(said["port"], bytes.fromhex(said["key"]), start)
        here = said["node"] == socket.gethostname()
        found = [LOOPBACK, *said["addresses"]] if here else said["addresses"]
        return [(address, door) for address in [*found, said["node"]]]
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _plainly(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
