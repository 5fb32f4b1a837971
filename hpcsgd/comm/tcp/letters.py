"""Letters between ranks, and what they say when they end; a thread reads them.

It costs nothing while all is well: it sleeps until something comes. Where a rank ends
without a word, or ends the job, the main thread hears of it in its collective; one that
is in none is ended from here, as MPI would do it.
"""

import os
import selectors
import struct
import sys
import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcsgd.comm.tcp.mesh import Mesh
from hpcsgd.comm.tcp.parcel import pack, unpack
from hpcsgd.comm.usage import node, process_state

GRACE = 3.0  # seconds for the main thread to hear of an end by itself
HEARSAY = 0.3  # seconds for a last word to arrive behind a closed connection
TICK = 1.0  # seconds between looks whether something is left to do
MAIL, BYE, END, LOST = "mail", "bye", "end", "lost"
_length = struct.Struct("<I")


@dataclass(frozen=True)
class Ending:
    """Why this rank cannot go on."""

    text: str
    code: int = 1


class Letters:
    """This rank's letters, of all groups."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.ending: Ending | None = None  # the first that was heard of
        self.is_known = False  # the main thread has heard of it
        self.is_closing = False  # ends are what is expected
        self.boxes: dict[int, deque[tuple[int, Any]]] = defaultdict(deque)
        self._left: set[int] = set()  # who has said so
        self._parts: dict[int, bytearray] = {r: bytearray() for r in mesh.letters}
        self._out: dict[int, bytearray] = {r: bytearray() for r in mesh.letters}
        self._lock = threading.Lock()
        self._heard = threading.Event()
        self._selector = selectors.DefaultSelector()
        for rank, sock in mesh.letters.items():
            self._selector.register(sock, selectors.EVENT_READ, rank)
        self._until = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._run, name="letters", daemon=True).start()

    def post(self, rank: int, *content: Any) -> None:
        """Send it on its way; never waits."""
        text = pack(content)
        with self._lock:
            self._out[rank] += _length.pack(len(text)) + text
            self._push(rank)

    def tell_all(self, *content: Any) -> None:
        """The same to everybody."""
        for rank in self.mesh.letters:
            self.post(rank, *content)

    def why_lost(self, rank: int, has_left: bool) -> Ending:
        """What became of a rank that is gone; others are told once."""
        if self.ending is None and not has_left:
            self._heard.wait(HEARSAY)
        if self.ending is None:
            whom = self.mesh.whom(rank)
            self._note(
                f"{whom} has ended its program while others wait for it"
                if has_left
                else f"{whom} is gone: its connections closed without a word (killed,"
                " out of memory, or its node was lost)"
            )
        self.is_known = True
        assert self.ending is not None
        self.tell_all(LOST, self.ending.text)
        return self.ending

    def close(self) -> None:
        """Ends are expected from now on."""
        self.is_closing = True
        self.tell_all(BYE)

    def drop(self) -> None:
        """Nothing is read any more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(TICK):
                self._read(key.data, key.fileobj)
            for rank in self._out:
                with self._lock:
                    self._push(rank)
            if self.ending and not self.is_known and time.monotonic() > self._until:
                self._end(self.ending)

    def _read(self, rank: int, sock: Any) -> None:
        try:
            said = sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._selector.unregister(sock)
            if rank not in self._left and not self.is_closing:
                self._note(
                    f"{self.mesh.whom(rank)} is gone: its connections closed without a"
                    " word (killed, out of memory, or its node was lost)"
                )
            return
        held = self._parts[rank]
        held += said
        while len(held) >= 4 and len(held) >= 4 + _length.unpack_from(held)[0]:
            end = 4 + _length.unpack_from(held)[0]
            content = unpack(bytes(held[4:end]))
            del held[:end]
            self._take(rank, *content)

    def _take(self, rank: int, kind: str, *content: Any) -> None:
        if kind == MAIL:
            group, sender, message = content
            self.boxes[group].append((sender, message))
        elif kind == BYE:
            self._left.add(rank)
        elif kind == LOST:
            self._left.add(rank)
            self._note(content[0])
        elif kind == END:
            self._left.add(rank)
            self._note(f"{self.mesh.whom(rank)} has ended the job", content[0])

    def _note(self, text: str, code: int = 1) -> None:
        """The first word on an end is the one that counts."""
        if self.ending is None:
            self.ending = Ending(text, code)
            self._until = time.monotonic() + GRACE
        self._heard.set()

    def _end(self, ending: Ending) -> None:
        own = self.mesh.own
        said = f"hpcsgd: rank {own.rank} of {own.size} ends: {ending.text}\n"
        os.write(2, said.encode())
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(ending.code)

    def _push(self, rank: int) -> None:
        waiting = self._out[rank]
        with suppress(OSError):
            while waiting:
                del waiting[: self.mesh.letters[rank].send(waiting)]


class TcpMail:
    """Those of the watchdogs of one group."""

    def __init__(self, letters: Letters, number: int, members: list[int], rank: int):
        self.rank, self.size = rank, len(members)
        self._letters, self._number, self._members = letters, number, members
        self._box = letters.boxes[number]

    def post(self, rank: int, message: Any) -> None:
        """Send it on its way."""
        to = self._members[rank]
        self._letters.post(to, MAIL, self._number, self.rank, message)

    def fetch(self) -> tuple[int, Any] | None:
        """(sender, message), if one has arrived."""
        return self._box.popleft() if self._box else None

    def look(self, rank: int) -> str:
        """From /proc, where the rank is on this node."""
        row = self._letters.mesh.rows[self._members[rank]]
        return process_state(row["pid"]) if row["node"] == node() else ""
