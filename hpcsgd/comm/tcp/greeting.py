"""How two ends of a connection make sure of each other, and small documents.

Either end proves that it knows the key, and that it is of the same start, before
anything that it says is looked at; the key itself is never sent.
"""

import hmac
import json
import secrets
import socket
import struct
from typing import Any

MAGIC = b"hpcsgd ranks 1\r\n"
DRAWN = 32  # bytes of a challenge, and of its answer
PATIENCE = 10.0  # seconds for the other end to say who it is
TURNED_AWAY = (
    "it turned this rank away, which has another key or is of another start; set"
    " HPCSGD_KEY to one long random word on all ranks"
)
LONGEST = 64 * 2**20  # bytes of a document
_length = struct.Struct("<I")


class Stranger(Exception):
    """Who is there is no rank of this start."""


class Closed(Stranger):
    """Who is there says nothing more."""


def ask_in(sock: socket.socket, key: bytes, start: str) -> None:
    """As the end that has connected."""
    drawn = secrets.token_bytes(DRAWN)
    sock.sendall(MAGIC + drawn)
    said = _read(sock, len(MAGIC) + DRAWN)
    if not said.startswith(MAGIC):
        raise Stranger("something else listens there")
    theirs = said[len(MAGIC) :]
    sock.sendall(_answer(key, b"in", theirs, drawn, start))
    try:
        answer = _read(sock, DRAWN)
    except Closed as error:
        raise Stranger(TURNED_AWAY) from error
    if not hmac.compare_digest(answer, _answer(key, b"out", theirs, drawn, start)):
        raise Stranger("it does not know the word of these ranks")


def let_in(sock: socket.socket, key: bytes, start: str) -> None:
    """As the end that was connected to."""
    drawn = secrets.token_bytes(DRAWN)
    said = _read(sock, len(MAGIC) + DRAWN)
    if not said.startswith(MAGIC):
        raise Stranger("it does not speak as ranks do")
    theirs = said[len(MAGIC) :]
    sock.sendall(MAGIC + drawn)
    answer = _read(sock, DRAWN)
    if not hmac.compare_digest(answer, _answer(key, b"in", drawn, theirs, start)):
        raise Stranger("it has another key, or is of another start")
    sock.sendall(_answer(key, b"out", drawn, theirs, start))


def say(sock: socket.socket, document: Any) -> None:
    """Send something that JSON can hold."""
    text = json.dumps(document).encode()
    sock.sendall(_length.pack(len(text)) + text)


def hear(sock: socket.socket) -> Any:
    """What the other end says next."""
    (length,) = _length.unpack(_read(sock, _length.size))
    if length > LONGEST:
        raise Stranger("its document is too long")
    return json.loads(_read(sock, length))


def _answer(key: bytes, end: bytes, drawn: bytes, theirs: bytes, start: str) -> bytes:
    return hmac.digest(key, end + drawn + theirs + start.encode(), "sha256")


def _read(sock: socket.socket, size: int) -> bytes:
    parts, missing = [], size
    while missing:
        part = sock.recv(min(missing, 1 << 20))
        if not part:
            raise Closed("it has closed the connection")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
