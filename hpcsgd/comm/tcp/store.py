"""The store at which ranks meet: rank 0 listens, and tells all who the others are.

It lives until everybody is there, and what it tells is a word that was drawn for this
meeting, and where each rank can be reached. Whoever does not know the key, or is of
another start (the ranks that a requeued job left behind), is turned away.
"""

import json
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp import addresses
from hpcsgd.comm.tcp.desk import Desk, Meeting, patience
from hpcsgd.comm.tcp.doorman import Doorman
from hpcsgd.comm.tcp.key import key_of
from hpcsgd.comm.tcp.visit import visit
from hpcsgd.comm.tcp.where import REMEDY, Port, SharedFile, start_of
from hpcsgd.errors import ConfigError, TransportError


def meet(
    own: Launched,
    place: Port | SharedFile,
    row: dict[str, Any],
    environ: Mapping[str, str],
) -> Meeting:
    """Meet all others; every rank says the same sentence where some do not come."""
    limit = patience(environ)
    if own.rank == 0:
        return _host(own, place, row, environ, limit)
    return visit(own, place, row, environ, limit)


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
